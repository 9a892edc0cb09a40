"""``kanon operate accept-report-jobs``: lets jobs run on a table ReportJobs that was created again or restored.

A restored table brings back unfinished jobs. Those that have not begun to commit end by themselves, because no job is
planned or commits on a table that is not accepted. So the command waits for them: no job of a backup continues.
"""

from kanon.errors import KanonError
from kanon.operate.running_reports import RunningReports
from kanon.operate.stacks import RunningStack
from kanon.reports.storage.key_ring import Keys
from kanon.reports.storage.report_jobs import State


class NotAcceptedError(KanonError):
    """Nothing was changed; the message says why."""


def situation(stack: RunningStack) -> Keys:
    """The key ring, which names another table of jobs.

    Raises:
        NotAcceptedError: there is nothing to accept, or unfinished jobs of the replaced table may still commit.
    """
    reports = _reports(stack)
    keys = reports.key_ring.read()
    if keys is None or reports.epoch.has_jobs_of(keys):
        raise NotAcceptedError("table ReportJobs was not replaced: nothing was changed")
    rows = filter(None, map(reports.report_jobs.read, reports.report_jobs.unfinished()))
    if left := sum(row.state not in (State.COMMITTED, State.FINISHED) for row in rows):
        raise NotAcceptedError(
            f"{left} jobs of the replaced table have not ended: nothing was changed. They end by themselves within ten"
            " minutes and spend nothing: run the command again then"
        )
    return keys


def accept(stack: RunningStack, seen: Keys) -> None:
    """Let jobs run on the present table.

    Raises:
        NotAcceptedError: the ring is no longer as ``seen``.
    """
    reports = _reports(stack)
    if not reports.epoch.accept_jobs(seen):
        raise NotAcceptedError("the keys have changed meanwhile: nothing was changed, run the command again")


def _reports(stack: RunningStack) -> RunningReports:
    if stack.reports is None:
        raise NotAcceptedError("Reports is OFF in this stack: nothing was changed")
    return stack.reports
