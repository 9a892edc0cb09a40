"""Lambda function `collect`: accepts encrypted reports from anybody, and queues them. It cannot decrypt them."""

from typing import Any

from aws_lambda_powertools import Logger, Metrics
from aws_lambda_powertools.metrics import MetricUnit
from aws_lambda_powertools.utilities.typing import LambdaContext

from kanon import aws, snapshots
from kanon.errors import texts_withheld
from kanon.http.edge import handle, resolver
from kanon.http.origin import edge_of
from kanon.reports.collect_routes import CollectRoutes, counted_as
from kanon.reports.collecting import REPORT_BODIES, ReportMessage
from kanon.reports.settings import CollectSettings
from kanon.reports.storage.key_ring import KeyRing, KnownKeys
from kanon.starting import Once

SETTINGS = CollectSettings.from_environment()

ORIGIN = edge_of(SETTINGS.edge_secret)

snapshots.on_snapshot(lambda: aws.load_models("dynamodb", "sqs", "secretsmanager"))

logger = Logger()
metrics = Metrics()
app = resolver(logger)

sqs_client = Once(aws.sqs)
key_ring = Once(lambda: KeyRing(aws.dynamodb(), SETTINGS.control_table))
known_keys = Once(lambda: KnownKeys(key_ring()))


def queue(message: ReportMessage) -> None:
    """Send a message. After an error the report is not accepted."""
    sqs_client().send_message(QueueUrl=SETTINGS.arrivals_url, MessageBody=message.text())


CollectRoutes(SETTINGS.allows, key_ring, known_keys, queue).add_to(app)


@texts_withheld()
@logger.inject_lambda_context(log_event=False)
@metrics.log_metrics
def handler(event: dict[str, Any], context: LambdaContext) -> dict[str, Any]:
    """Entry point."""
    result = handle(app, event, context, logger, ORIGIN, REPORT_BODIES)
    method, status = event["requestContext"]["http"]["method"], result["statusCode"]
    counted = counted_as(method, event["rawPath"], status)
    metrics.add_metric("RequestsRejected", MetricUnit.Count, counted == "RequestsRejected")
    if method != "POST":
        metrics.add_metric("KeysRefused", MetricUnit.Count, counted == "KeysRefused")
    elif counted is not None and counted != "RequestsRejected":
        metrics.add_metric(counted, MetricUnit.Count, 1)
    return result
