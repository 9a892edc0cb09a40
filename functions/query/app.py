"""Lambda function `query`: serves statuses from the Statuses table and the objects of true sets, never a join."""

import time
from typing import Any

from aws_lambda_powertools import Logger, Metrics
from aws_lambda_powertools.metrics import MetricUnit
from aws_lambda_powertools.utilities.typing import LambdaContext

from kanon import aws, snapshots
from kanon.errors import kind_and_place, texts_withheld
from kanon.gate.fingerprints import fingerprints
from kanon.gate.memory import Memory
from kanon.gate.query_routes import QueryRoutes
from kanon.gate.querying import Querying
from kanon.gate.settings import QuerySettings
from kanon.gate.storage.aws.control import Control
from kanon.gate.storage.aws.statuses import Statuses
from kanon.gate.storage.aws.true_objects import read_true
from kanon.gate.true_sets import TrueSets
from kanon.http.edge import handle, resolver
from kanon.http.origin import edge_of
from kanon.keys import fetch_secret
from kanon.starting import Once

SETTINGS = QuerySettings.from_environment()
TYPES = SETTINGS.read_types()

ORIGIN = edge_of(SETTINGS.edge_secret)

snapshots.on_snapshot(lambda: aws.load_models("dynamodb", "s3", "secretsmanager"))

s3_client = Once(aws.s3_for_requests)

logger = Logger()
metrics = Metrics()
app = resolver(logger)


def true_sets(name: str) -> TrueSets | None:
    """An object of true sets; None if it cannot be read: then the table answers. S3 says 403 of a missing one."""
    began = time.monotonic()
    try:
        found = read_true(s3_client(), SETTINGS.states_bucket, name)
    except Exception as error:  # noqa: BLE001, whatever it is, the table answers
        logger.warning("an object of true sets was not read; the table answers", **kind_and_place(error))
        return None
    metrics.add_metric("TrueSetsLoadTime", MetricUnit.Milliseconds, round(1000 * (time.monotonic() - began)))
    return found


@Once
def querying() -> Querying:
    """The use case with its secret, built once per execution environment. A changed fingerprint is an error."""
    dynamodb = aws.dynamodb()
    pepper = fetch_secret(aws.secrets_manager(), "set-pepper", SETTINGS.set_pepper_secret)
    Control(dynamodb, SETTINGS.control_table).check("query", fingerprints(SETTINGS, TYPES, (pepper,)))
    memory = Memory(Statuses(dynamodb, SETTINGS.statuses_table), true_sets)
    return Querying(
        TYPES,
        pepper,
        memory,
        SETTINGS.period,
        SETTINGS.layouts,
        SETTINGS.publish_delay,
        SETTINGS.max_stale,
        memory.load,
    )


QueryRoutes(TYPES, querying, SETTINGS.anonymous_hashes, reports=True).add_to(app)


@texts_withheld()
@logger.inject_lambda_context(log_event=False)
@metrics.log_metrics
def handler(event: dict[str, Any], context: LambdaContext) -> dict[str, Any]:
    """Entry point."""
    result = handle(app, event, context, logger, ORIGIN)
    status = result["statusCode"]
    outcome = "QueriesRefused" if status >= 500 else "RequestsRejected" if status >= 400 else "QueriesAnswered"
    metrics.add_metric(outcome, MetricUnit.Count, 1)
    return result
