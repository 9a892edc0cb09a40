"""Lambda function `released`: serves the lists that `list` has published. It has no key but the secret of the edge."""

from typing import Any

from aws_lambda_powertools import Logger, Metrics
from aws_lambda_powertools.metrics import MetricUnit
from aws_lambda_powertools.utilities.typing import LambdaContext

from kanon import aws
from kanon.errors import texts_withheld
from kanon.gate.list_routes import ListRoutes
from kanon.gate.settings import ReleasedSettings
from kanon.gate.storage.aws.lists import ListObjects, ListTable, PublishedLists
from kanon.http.edge import handle, resolver
from kanon.http.origin import edge_of
from kanon.starting import Once

SETTINGS = ReleasedSettings.from_environment()

ORIGIN = edge_of(SETTINGS.edge_secret)

logger = Logger()
metrics = Metrics()
app = resolver(logger)


@Once
def lists() -> PublishedLists:
    """The lists, as readers see them."""
    table = ListTable(aws.dynamodb(), SETTINGS.control_table)
    return PublishedLists(table, ListObjects(aws.s3(), SETTINGS.list_bucket, SETTINGS.period))


ListRoutes(
    lists, SETTINGS.read_types(), SETTINGS.period, SETTINGS.publish_delay, shared=SETTINGS.list_auth == "NONE"
).add_to(app)


@texts_withheld()
@logger.inject_lambda_context(log_event=False)
@metrics.log_metrics
def handler(event: dict[str, Any], context: LambdaContext) -> dict[str, Any]:
    """Entry point."""
    result = handle(app, event, context, logger, ORIGIN)
    status = result["statusCode"]
    outcome = "ListRequestsFailed" if status >= 500 else "RequestsRejected" if status >= 400 else "ListsRead"
    metrics.add_metric(outcome, MetricUnit.Count, 1)
    return result
