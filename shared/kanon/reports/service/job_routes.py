"""The HTTP routes of jobs: they create jobs and tell their state. They read no secret, and no sum of any report."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

from aws_lambda_powertools.event_handler import APIGatewayHttpResolver, Response
from aws_lambda_powertools.event_handler.openapi.params import Query
from pydantic import BaseModel
from pydantic.config import JsonDict

from kanon import clock
from kanon.http.bodies import RequestError
from kanon.http.edge import SIGNED, described
from kanon.reports.errors import JobError
from kanon.reports.job import JobRequest
from kanon.reports.service.answers import (
    DUPLICATE,
    NO_SUCH_JOB,
    AcceptedAnswer,
    JobAnswer,
    JobsErrorAnswer,
    PreflightAnswer,
    bad_input,
    job_answer,
)
from kanon.reports.service.bodies import (
    JOB_ID,
    LISTED_TYPE,
    JobInBody,
    PublicationInBody,
    RequestRefusedError,
    invalid,
)
from kanon.reports.service.budget_view import BudgetAnswer, budget_answer, check_names, preflight_answer, read_unit
from kanon.reports.service.requests import (
    NO_LISTS,
    Lists,
    check_output,
    create,
    named_buckets,
    publish_again,
    read_job_id,
    read_publication,
    read_request,
)
from kanon.reports.settings import Jobs
from kanon.reports.storage.budgets import BudgetsLeft
from kanon.reports.storage.objects import ObjectStore
from kanon.reports.storage.report_jobs import AllJobs, JobRow

NOT_EMPTY: JsonDict = {"minLength": 1}
"""In OpenAPI such a parameter is required. Here the handler says that it is missing, in the form of its errors."""


def answers(model: type[BaseModel], *codes: int, answer: str, success: int = 200) -> dict[int, Any]:
    """The OpenAPI responses of a route."""
    found = described(answer, *codes, 401, 403, 503, success=success, errors=JobsErrorAnswer)
    found[success]["content"] = {"application/json": {"model": model}}
    return found


def answered(answer: BaseModel) -> Response[str]:
    """An answer without its empty fields."""
    return Response(200, "application/json", answer.model_dump_json(exclude_none=True), {"Cache-Control": "no-store"})


@dataclass(frozen=True)
class JobRoutes:
    """The routes of jobs.

    Attributes:
        settings: which buckets jobs may name, and the caps.
        jobs: provides the jobs.
        budgets: provides the budgets, which these routes only read.
        bucket: a bucket by its name.
        wake: starts a job. Without it the job starts at the next sweep.
        lists: provides the lists that the gate has published.
    """

    settings: Jobs
    jobs: Callable[[], AllJobs]
    budgets: Callable[[], BudgetsLeft]
    bucket: Callable[[str], ObjectStore]
    wake: Callable[[str], None]
    lists: Callable[[], Lists] = lambda: NO_LISTS

    def add_to(self, app: APIGatewayHttpResolver) -> None:
        """Let a resolver answer these routes."""
        app.post("/stage/v1alpha/createJob", include_in_schema=False)(self.create_job)
        app.post(
            "/v1alpha/createJob",
            summary="Create a job",
            operation_id="createJob",
            responses=answers(AcceptedAnswer, 400, 409, 413, answer="The job is stored, and will run", success=202),
            security=SIGNED,
        )(self.create_job)
        app.get("/stage/v1alpha/getJob", include_in_schema=False)(self.get_job)
        app.get(
            "/v1alpha/getJob",
            summary="How is this job?",
            operation_id="getJob",
            responses=answers(JobAnswer, 400, 404, answer="The job"),
            security=SIGNED,
        )(self.get_job)
        app.post(
            "/v1/jobs:preflight",
            summary="What would this job meet?",
            operation_id="preflight",
            responses=answers(PreflightAnswer, 400, 413, answer="What a job would meet now"),
            security=SIGNED,
        )(self.preflight)
        app.get(
            "/v1/budget",
            summary="What is left of a budget?",
            operation_id="getBudget",
            responses=answers(BudgetAnswer, 400, answer="The 24 hours of a day, and the jobs that took from them"),
            security=SIGNED,
        )(self._budget_of(app))
        app.post(
            "/v1/jobs:publish",
            summary="Publish a summary again",
            operation_id="publish",
            responses=answers(AcceptedAnswer, 400, 404, 409, 413, answer="The summary will be published", success=202),
            security=SIGNED,
        )(self.publish)

    def create_job(self, body: JobInBody) -> Response[str]:
        """Store a job: reports, keys and a budget. It spends budget and makes one noisy histogram final, or neither.

        A histogram that cannot be written within 30 days is lost, and its budget stays spent.
        """
        request = self._read(body)
        if not create(self.jobs(), request.job, body, clock.now(), **self._pinned(request)):
            raise RequestError(DUPLICATE)
        self.wake(request.job)
        return Response(202, "application/json", "{}")

    def get_job(
        self,
        job_request_id: Annotated[
            str, Query(description="The id of the job", json_schema_extra=NOT_EMPTY | JOB_ID)
        ] = "",
    ) -> Response[str]:
        """The state of a job, its result, and its guarantee."""
        row = self._found(read_job_id(job_request_id))
        caps = self.settings.epsilon_cap, self.settings.delta_cap
        return answered(job_answer(row, self._stored_request(row), *caps))

    def preflight(self, body: JobInBody) -> Response[str]:
        """Count the reports and units of a job, without creating it. It opens no report and spends nothing."""
        request = self._read(body)
        if request.listed_type is not None:
            self.lists().check(request.listed_type)
        try:
            return answered(preflight_answer(request, self.bucket, self.budgets(), int(clock.now())))
        except JobError as error:
            raise RequestError(bad_input(str(error))) from None

    def _budget_of(self, app: APIGatewayHttpResolver) -> Callable[..., Response[str]]:
        def get_budget(
            api: Annotated[str, Query(description="As in shared_info", json_schema_extra=NOT_EMPTY)] = "",
            version: Annotated[str, Query(description="As in shared_info", json_schema_extra=NOT_EMPTY)] = "",
            reporting_origin: Annotated[str, Query(description="As in shared_info", json_schema_extra=NOT_EMPTY)] = "",
            attribution_destination: Annotated[str, Query(description="As in shared_info; attribution only")] = "",
            source_registration_time: Annotated[str, Query(description="As in shared_info; attribution only")] = "",
            filtering_id: Annotated[str, Query(description="0 if left out")] = "0",
            day: Annotated[
                str, Query(description="Of scheduled_report_time, UTC, such as 2026-01-31", json_schema_extra=NOT_EMPTY)
            ] = "",
        ) -> Response[str]:
            """The epsilon and delta left for reports with these clear fields."""
            query = {
                "api": api,
                "version": version,
                "reporting_origin": reporting_origin,
                "attribution_destination": attribution_destination,
                "source_registration_time": source_registration_time,
                "filtering_id": filtering_id,
                "day": day,
            }
            check_names(app.current_event.query_string_parameters, query)
            return answered(budget_answer(self.budgets(), read_unit(query)))

        return get_budget

    def publish(self, body: PublicationInBody) -> Response[str]:
        """Publish the summary of a committed job again, elsewhere if asked. It costs no budget."""
        wanted = read_publication(body, self.settings.buckets)
        check_output(wanted.output_data_bucket_name, self.settings.reports_bucket)
        row = self._found(wanted.job_request_id)
        publish_again(self.jobs(), row, self._stored_request(row), wanted, clock.now())
        self.wake(row.job)
        return Response(202, "application/json", "{}")

    def _read(self, body: Any) -> JobRequest:
        """The job of a request body."""
        settings = self.settings
        request = read_request(body, settings.delta_cap, settings.buckets, settings.epsilon_cap)
        check_output(request.output_bucket, settings.reports_bucket)
        return request

    def _pinned(self, request: JobRequest) -> dict[str, Any]:
        """What is recorded with a new job: the keys that the gate has released by now, if it asks for them."""
        if request.listed_type is None:
            return {}
        if self.jobs().read(request.job) is not None:  # before anything is written for a job that exists
            raise RequestError(DUPLICATE)
        try:
            return self.lists().pinned(request.job, request.listed_type).recorded
        except JobError as error:
            raise invalid(LISTED_TYPE, str(error)) from None

    def _stored_request(self, row: JobRow) -> JobRequest:
        """The request of a job. Its buckets may no longer be listed.

        Raises:
            RuntimeError: it was accepted once and is refused now: not an error of the caller.
        """
        caps, buckets = self.settings, named_buckets(row.request)
        try:
            return read_request(row.request, caps.delta_cap, buckets, caps.epsilon_cap, stored=True)
        except RequestRefusedError as error:
            raise RuntimeError("a stored request is no longer valid") from error

    def _found(self, job: str) -> JobRow:
        """A job.

        Raises:
            RequestError: 404, there is no such job.
        """
        row = self.jobs().read(job)
        if row is None:
            raise RequestError(NO_SUCH_JOB)
        return row
