"""Reads stored jobs: the request, and where the summary goes."""

from collections.abc import Callable
from fractions import Fraction

from kanon.reports.errors import JobError
from kanon.reports.parameters import EPSILON_CAP
from kanon.reports.service.requests import JobRequest, RequestRefusedError, named_buckets, read_request
from kanon.reports.settings import Jobs
from kanon.reports.storage.report_jobs import BEFORE_COMMIT, Row


def reader(settings: Jobs) -> Callable[[Row], JobRequest]:
    """Read stored requests under the settings of a function.

    The reader raises a ``JobError`` if the settings no longer allow the request. They are not asked for a job
    that has begun to commit: its budget is returned, or its summary published, whatever a deployment has changed.
    """

    def read(row: Row) -> JobRequest:
        if row.state not in BEFORE_COMMIT:
            buckets = named_buckets(row.request)
            return read_request(row.request, Fraction(1), buckets, Fraction(EPSILON_CAP), stored=True)
        try:
            return read_request(row.request, settings.delta_cap, settings.buckets, settings.epsilon_cap, stored=True)
        except RequestRefusedError as error:
            message = f"{error.field} is no longer allowed: put it back into the parameters of the stack"
            raise JobError("INVALID_JOB", message) from None

    return read


def output_of(row: Row, request: JobRequest) -> tuple[str, str]:
    """The bucket and the prefix of a job's summary, as last requested."""
    bucket, prefix = row.values.get("output", (request.output_bucket, request.output_prefix))
    return bucket, prefix
