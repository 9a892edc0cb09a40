"""The writes of createJob and jobs:publish."""

import secrets
from collections.abc import Mapping
from typing import Any

from kanon.http.bodies import RequestError
from kanon.reports.job import JobRequest
from kanon.reports.service.answers import refusal
from kanon.reports.service.requests import Publication
from kanon.reports.storage.report_jobs import STAGED_KEPT, ReportJobs, Row, State, output_of

SECRET_BYTES = 32


class NotPublishableError(RequestError):
    """The summary of a job cannot be published now; the message says what to do. It is answered 409."""

    def __init__(self, message: str) -> None:
        super().__init__(refusal(409, "VALIDATION_FAILED", "job_request_id", message))


def create(jobs: ReportJobs, job: str, request: Mapping[str, Any], now: float) -> bool:
    """Store a new job with a new secret; False if another job has this id.

    The client retries a call whose answer was lost. Then the row exists with the same secret.
    """
    secret = secrets.token_bytes(SECRET_BYTES)
    if jobs.create(job, request, int(now), secret):
        return True
    row = jobs.read(job)
    return row is not None and row.secret == secret


def publish_again(jobs: ReportJobs, row: Row, request: JobRequest, wanted: Publication, now: float) -> None:
    """Record a new place for the summary of a committed job. It costs no budget.

    Raises:
        NotPublishableError: the job has not committed, or its parts are gone.
    """
    if row.state is not State.COMMITTED:
        raise NotPublishableError(_why_not(row))
    if now >= row.values["committed_at"] + STAGED_KEPT:
        raise NotPublishableError("the parts of the summary were deleted after 30 days: create a new job, which spends")
    bucket, prefix = output_of(row, request)
    output = [wanted.bucket or bucket, wanted.prefix or prefix]
    if not jobs.move(row, State.COMMITTED, now, output=output, code="", message=""):
        raise NotPublishableError("the job is being published: ask getJob for its state")


def _why_not(row: Row) -> str:
    if row.state is not State.FINISHED:
        return "the job has not committed yet: wait until getJob shows it as FINISHED"
    if row.committed:
        return "the summary is published already: copy its objects"
    return "the job ended without a summary, see getJob: create a new job"
