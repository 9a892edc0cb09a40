"""Reads the request of a stored job."""

from collections.abc import Callable

from kanon.reports.errors import JobError
from kanon.reports.service.requests import JobRequest, RequestRefusedError, read_request
from kanon.reports.settings import Jobs
from kanon.reports.storage.report_jobs import Row


def reader(settings: Jobs) -> Callable[[Row], JobRequest]:
    """Read stored requests under the settings of a function.

    The reader raises a ``JobError`` if the settings no longer allow the request.
    """

    def read(row: Row) -> JobRequest:
        try:
            return read_request(row.request, settings.delta_cap, settings.buckets, settings.epsilon_cap)
        except RequestRefusedError as error:
            message = f"{error.field} is no longer allowed: put it back into the parameters of the stack"
            raise JobError("INVALID_JOB", message) from None

    return read
