"""Lambda function `jobs`: creates jobs and reports their state. It reads no secret, and no sum of any report."""

from typing import Any

from aws_lambda_powertools import Logger, Metrics
from aws_lambda_powertools.metrics import MetricUnit
from aws_lambda_powertools.utilities.typing import LambdaContext
from botocore.exceptions import BotoCoreError, ClientError

from kanon import aws, snapshots
from kanon.errors import texts_withheld
from kanon.http.edge import handle, resolver
from kanon.http.origin import edge_of
from kanon.queues import send_all
from kanon.reports.job import Amount
from kanon.reports.service.answers import JOB_BODIES, jobs_form
from kanon.reports.service.job_routes import NO_LISTS, JobRoutes, KeyLists
from kanon.reports.settings import JobsSettings, RecordedSettings
from kanon.reports.storage.budgets import Budgets
from kanon.reports.storage.objects import Objects
from kanon.reports.storage.report_jobs import ReportJobs, StageMessage
from kanon.starting import Once

SETTINGS = JobsSettings.from_environment()

ORIGIN = edge_of(SETTINGS.edge_secret)

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
    RecordedSettings(client, SETTINGS.control_table).compare("jobs", SETTINGS)
    return client


def report_jobs() -> ReportJobs:
    """The jobs."""
    return ReportJobs(dynamodb_client(), SETTINGS.report_jobs_table)


def budgets() -> Budgets:
    """The budgets, which this function only reads."""
    return Budgets(dynamodb_client(), SETTINGS.budgets_table, Amount.of(SETTINGS.epsilon_cap, SETTINGS.delta_cap))


def bucket(name: str) -> Objects:
    """A bucket."""
    return Objects(s3_client(), name)


@Once
def lists() -> KeyLists:
    """The lists of the gate. A job's row names its list, and ``aggregate`` reads that one."""
    if not SETTINGS.listed_types:
        return NO_LISTS
    from kanon.gate.lists import join_bounds  # 150 ms
    from kanon.gate.storage.aws.lists import ListTable
    from kanon.gate.types import read_types

    joins = join_bounds(read_types(SETTINGS.listed_types, SETTINGS.period))
    return KeyLists(joins, ListTable(dynamodb_client(), SETTINGS.control_table).newest)


def wake(job: str) -> None:
    """Send a message that starts the job. If that fails, the schedule finds the job."""
    try:
        send_all(sqs_client(), SETTINGS.stages_url, [StageMessage(job=job)])
    except (ClientError, BotoCoreError, RuntimeError) as error:
        logger.warning("a job waits for the schedule: its message was not sent", kind=type(error).__name__)


JobRoutes(SETTINGS, report_jobs, budgets, bucket, wake, lists).add_to(app)


@texts_withheld()
@logger.inject_lambda_context(log_event=False)
@metrics.log_metrics
def handler(event: dict[str, Any], context: LambdaContext) -> dict[str, Any]:
    """Entry point."""
    result = handle(app, event, context, logger, ORIGIN, JOB_BODIES, jobs_form)
    metrics.add_metric("RequestsRejected", MetricUnit.Count, 400 <= result["statusCode"] < 500)
    metrics.add_metric("JobRequestsRefused", MetricUnit.Count, result["statusCode"] >= 500)
    return result
