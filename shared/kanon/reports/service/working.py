"""What the functions ``decrypt`` and ``aggregate`` share: the tables and buckets of jobs, and the end of a job that
fails.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kanon.reports.errors import JobError
from kanon.reports.job import JobRequest
from kanon.reports.service.plan import Bucket, Plan, read_plan
from kanon.reports.storage.objects import ObjectStore
from kanon.reports.storage.report_jobs import BEFORE_COMMIT, Jobs, Row, State
from kanon.reports.storage.work import Work

if TYPE_CHECKING:
    from aws_lambda_powertools import Metrics

UNPUBLISHED = "UNPUBLISHED"
"""Told of a committed job whose summary could not be written. The job stays open."""
COUNTED = {"SUCCESS": "JobsFinished", "SUCCESS_WITH_ERRORS": "JobsFinished", UNPUBLISHED: "PublicationsFailed"}
"""The metric of a return code; of the others it is JobsRefused."""
NOTHING_SPENT = "Nothing was spent."


def untold(_: object) -> None:
    """Tell nobody."""


@dataclass(frozen=True, kw_only=True)
class Worker:
    """A worker on jobs with its tables and buckets.

    Attributes:
        jobs: the jobs.
        work: the work bucket.
        bucket: a bucket of inputs and outputs by its name.
        request: reads the stored request of a job.
        clock: unix seconds.
        ended: called with the return code if a run ends its job, and if its summary cannot be published.
        failed: called with an error that ends a job before its commit.
    """

    jobs: Jobs
    work: ObjectStore
    bucket: Bucket
    request: Callable[[Row], JobRequest]
    clock: Callable[[], float]
    ended: Callable[[str], None] = untold
    failed: Callable[[JobError], None] = untold

    def work_of(self, row: Row) -> Work:
        """The folder of a job in the work bucket."""
        return Work(self.work, row.job)

    def plan_of(self, row: Row) -> Plan:
        """The plan of a job."""
        return read_plan(self.work_of(row), row.values["plan"])

    def fail(self, row: Row, error: JobError) -> bool:
        """End a job that has not begun to commit: nothing is spent. If it has left its state meanwhile, another worker
        decides.

        Returns:
            Whether this call ended it.
        """
        if row.state not in BEFORE_COMMIT:
            return False
        self.failed(error)
        told: dict[str, Any] = {"code": error.code, "message": f"{error}. {NOTHING_SPENT}"}
        if error.errors is not None:
            told["counters"] = {"errors": dict(sorted(error.errors.items()))}
        ended = self.jobs.move(row, State.FINISHED, self.clock(), **told)
        if ended:
            self.ended(error.code)
        return ended


def count_outcome(metrics: "Metrics", code: str) -> None:
    """Count a job that has ended with this return code, or is unpublished. A crash just before the count loses it."""
    metrics.add_metric(COUNTED.get(code, "JobsRefused"), "Count", 1)
