"""Ends jobs without a result: nothing is spent, and the message says so."""

from kanon.reports.errors import JobError
from kanon.reports.storage.report_jobs import BEFORE_COMMIT, ReportJobs, Row, State

NOTHING_SPENT = "Nothing was spent."


def fail(jobs: ReportJobs, row: Row, error: JobError, now: float) -> bool:
    """End a job that has not begun to commit. If it has left its state meanwhile, another worker decides.

    Returns:
        Whether this call ended it.
    """
    if row.state not in BEFORE_COMMIT:
        return False
    return jobs.move(row, State.FINISHED, now, code=error.code, message=f"{error}. {NOTHING_SPENT}")


def untold(code: str) -> None:
    """Ignore the end of a job."""
