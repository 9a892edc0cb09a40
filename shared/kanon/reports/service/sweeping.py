"""The sweep continues jobs whose messages were lost: jobs that have not moved for some minutes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from kanon.reports.service.messages import Message
from kanon.reports.service.stages import Stages
from kanon.reports.storage.report_jobs import STUCK, ReportJobs

QUIET = 240
"""Seconds without a step after which a job's messages are sent again: less than the five minutes between sweeps."""


@dataclass
class Swept:
    """The result of a sweep.

    Attributes:
        stuck: jobs that are not finished after 12 hours.
        failed: the kinds of errors of jobs that could not be resumed.
    """

    stuck: int = 0
    failed: list[str] = field(default_factory=list)


def sweep(stages: Stages, jobs: ReportJobs, send: Callable[[Sequence[Message]], None]) -> Swept:
    """Send the messages of every job that has not moved. A job that cannot be resumed does not stop the others."""
    swept, now = Swept(), stages.clock()
    for job in list(jobs.unfinished()):
        try:
            row = jobs.read(job)
            if row is None:
                continue
            swept.stuck += now - row.received_at >= STUCK
            if now - jobs.moved_at(row) >= QUIET:
                send(stages.resumed(job))
        except Exception as error:  # noqa: BLE001, the caller reports it
            swept.failed.append(type(error).__name__)
    return swept
