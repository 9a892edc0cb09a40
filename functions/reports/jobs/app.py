"""Lambda function `jobs`: creates jobs and reports their state. It reads no secret, and no sum of any report."""

from functools import partial
from typing import Annotated, Any

from aws_lambda_powertools import Logger, Metrics
from aws_lambda_powertools.event_handler import Response
from aws_lambda_powertools.event_handler.openapi.params import Query
from aws_lambda_powertools.metrics import MetricUnit
from aws_lambda_powertools.utilities.typing import LambdaContext
from botocore.exceptions import BotoCoreError, ClientError
from pydantic import BaseModel

from kanon import aws, clock, snapshots
from kanon.errors import texts_withheld
from kanon.http.bodies import RequestError
from kanon.http.edge import SIGNED, described, handle, resolver
from kanon.http.origin import edge_of
from kanon.queues import send_all
from kanon.reports.errors import JobError
from kanon.reports.job import Amount, JobRequest
from kanon.reports.service.answers import (
    DUPLICATE,
    JOB_BODIES,
    NO_SUCH_JOB,
    AcceptedAnswer,
    JobAnswer,
    JobsErrorAnswer,
    PreflightAnswer,
    bad_input,
    job_answer,
    jobs_form,
)
from kanon.reports.service.bodies import JobInBody, PublicationInBody, RequestRefusedError
from kanon.reports.service.budget_view import BudgetAnswer, budget_answer, check_names, preflight_answer, read_unit
from kanon.reports.service.requests import (
    check_output,
    create,
    named_buckets,
    publish_again,
    read_job_id,
    read_publication,
    read_request,
)
from kanon.reports.settings import JobsSettings, Recorded
from kanon.reports.storage.budgets import Budgets
from kanon.reports.storage.objects import Objects
from kanon.reports.storage.report_jobs import JobRow, ReportJobs, StageMessage
from kanon.starting import Once

SETTINGS = JobsSettings.from_environment()

ORIGIN = edge_of(SETTINGS.edge_secret)
NOT_EMPTY = {"minLength": 1}
"""In OpenAPI such a parameter is required. Here the handler says that it is missing, in the form of its errors."""

snapshots.on_snapshot(lambda: aws.load_models("dynamodb", "sqs", "secretsmanager"))

logger = Logger()
metrics = Metrics()
app = resolver(logger, jobs_form)

sqs_client = Once(aws.sqs)
s3_client = Once(aws.s3)


@Once
def dynamodb_client() -> Any:
    """A client, made once per execution environment. A changed fingerprint is an error: no job is created."""
    client = aws.dynamodb()
    Recorded(client, SETTINGS.control_table).compare("jobs", SETTINGS)
    return client


def report_jobs() -> ReportJobs:
    """The jobs."""
    return ReportJobs(dynamodb_client(), SETTINGS.report_jobs_table)


def budgets() -> Budgets:
    """The budgets, which this function only reads."""
    return Budgets(dynamodb_client(), SETTINGS.budgets_table, Amount.of(SETTINGS.epsilon_cap, SETTINGS.delta_cap))


def answers(model: type[BaseModel], *codes: int, answer: str, success: int = 200) -> dict[int, Any]:
    """The OpenAPI responses of a route."""
    found = described(answer, *codes, 401, 403, 503, success=success, errors=JobsErrorAnswer)
    found[success]["content"] = {"application/json": {"model": model}}
    return found


@app.post("/stage/v1alpha/createJob", include_in_schema=False)
@app.post(
    "/v1alpha/createJob",
    summary="Create a job",
    operation_id="createJob",
    responses=answers(AcceptedAnswer, 400, 409, 413, answer="The job is stored, and will run", success=202),
    security=SIGNED,
)
def create_job(body: JobInBody) -> Response[str]:
    """Store a job: reports, keys and a budget. It spends its budget and makes one noisy histogram final, or neither.

    A histogram that cannot be written within 30 days is lost, and its budget stays spent.
    """
    request = read(body)
    if not create(report_jobs(), request.job, body, clock.now()):
        raise RequestError(DUPLICATE)
    wake(request.job)
    return Response(202, "application/json", "{}")


@app.get("/stage/v1alpha/getJob", include_in_schema=False)
@app.get(
    "/v1alpha/getJob",
    summary="How is this job?",
    operation_id="getJob",
    responses=answers(JobAnswer, 400, 404, answer="The job"),
    security=SIGNED,
)
def get_job(
    job_request_id: Annotated[str, Query(description="The id of the job", json_schema_extra=NOT_EMPTY)] = "",
) -> Response[str]:
    """The state of a job, its result, and its guarantee."""
    row = found(read_job_id(job_request_id))
    return answered(job_answer(row, stored_request(row), SETTINGS.epsilon_cap, SETTINGS.delta_cap))


@app.post(
    "/v1/jobs:preflight",
    summary="What would this job meet?",
    operation_id="preflight",
    responses=answers(PreflightAnswer, 400, 413, answer="What a job would meet now"),
    security=SIGNED,
)
def preflight(body: JobInBody) -> Response[str]:
    """Count the reports and units of a job, without creating it. It opens no report and spends nothing."""
    request = read(body)
    bucket = partial(Objects, s3_client())
    try:
        return answered(preflight_answer(request, bucket, budgets(), int(clock.now())))
    except JobError as error:
        raise RequestError(bad_input(str(error))) from None


@app.get(
    "/v1/budget",
    summary="What is left of a budget?",
    operation_id="getBudget",
    responses=answers(BudgetAnswer, 400, answer="The 24 hours of a day, and the jobs that took from them"),
    security=SIGNED,
)
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
    return answered(budget_answer(budgets(), read_unit(query)))


@app.post(
    "/v1/jobs:publish",
    summary="Publish a summary again",
    operation_id="publish",
    responses=answers(AcceptedAnswer, 400, 404, 409, 413, answer="The summary will be published", success=202),
    security=SIGNED,
)
def publish(body: PublicationInBody) -> Response[str]:
    """Publish the summary of a committed job again, elsewhere if asked. It costs no budget."""
    wanted = read_publication(body, SETTINGS.buckets)
    check_output(wanted.bucket, SETTINGS.reports_bucket)
    row = found(wanted.job)
    publish_again(report_jobs(), row, stored_request(row), wanted, clock.now())
    wake(row.job)
    return Response(202, "application/json", "{}")


def read(body: Any) -> JobRequest:
    """The job of a request body."""
    request = read_request(body, SETTINGS.delta_cap, SETTINGS.buckets, SETTINGS.epsilon_cap)
    check_output(request.output_bucket, SETTINGS.reports_bucket)
    return request


def stored_request(row: JobRow) -> JobRequest:
    """The request of a job. Its buckets may no longer be listed.

    Raises:
        RuntimeError: it was accepted once and is refused now: not an error of the caller.
    """
    try:
        buckets = named_buckets(row.request)
        return read_request(row.request, SETTINGS.delta_cap, buckets, SETTINGS.epsilon_cap, stored=True)
    except RequestRefusedError as error:
        raise RuntimeError("a stored request is no longer valid") from error


def found(job: str) -> JobRow:
    """A job.

    Raises:
        RequestError: 404, there is no such job.
    """
    row = report_jobs().read(job)
    if row is None:
        raise RequestError(NO_SUCH_JOB)
    return row


def wake(job: str) -> None:
    """Send a message that starts the job. If that fails, the schedule finds the job."""
    try:
        send_all(sqs_client(), SETTINGS.stages_url, [StageMessage(job=job)])
    except (ClientError, BotoCoreError, RuntimeError) as error:
        logger.warning("a job waits for the schedule: its message was not sent", kind=type(error).__name__)


def answered(answer: BaseModel) -> Response[str]:
    """An answer without its empty fields."""
    return Response(200, "application/json", answer.model_dump_json(exclude_none=True), {"Cache-Control": "no-store"})


@texts_withheld()
@logger.inject_lambda_context(log_event=False)
@metrics.log_metrics
def handler(event: dict[str, Any], context: LambdaContext) -> dict[str, Any]:
    """Entry point."""
    result = handle(app, event, context, logger, ORIGIN, JOB_BODIES, jobs_form)
    metrics.add_metric("RequestsRejected", MetricUnit.Count, 400 <= result["statusCode"] < 500)
    metrics.add_metric("JobRequestsRefused", MetricUnit.Count, result["statusCode"] >= 500)
    return result
