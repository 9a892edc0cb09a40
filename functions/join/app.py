"""Lambda function `join`: writes joins to the log. It reads two secrets and no row of any table."""

from typing import Any

from aws_lambda_powertools import Logger, Metrics
from aws_lambda_powertools.metrics import MetricUnit
from aws_lambda_powertools.utilities.typing import LambdaContext

from kanon import aws, clock, snapshots
from kanon.errors import texts_withheld
from kanon.gate.fingerprints import check_join
from kanon.gate.join_routes import JoinRoutes
from kanon.gate.joining import Joining
from kanon.gate.mechanism.steps import step_at
from kanon.gate.settings import JoinSettings
from kanon.gate.storage.aws.control import Control
from kanon.gate.storage.aws.step_log import StepLog
from kanon.http.bodies import JOIN_BODIES
from kanon.http.edge import handle, resolver
from kanon.http.origin import edge_of
from kanon.keys import fetch_secret
from kanon.starting import Once

SETTINGS = JoinSettings.from_environment()
TYPES = SETTINGS.read_types()

ORIGIN = edge_of(SETTINGS.edge_secret)

snapshots.on_snapshot(lambda: aws.load_models("dynamodb", "secretsmanager"))

logger = Logger()
metrics = Metrics()
app = resolver(logger)


@Once
def joining() -> Joining:
    """The use case with its secrets, built once per execution environment. A changed fingerprint is an error."""
    dynamodb, secrets = aws.dynamodb(), aws.secrets_manager()
    pepper = fetch_secret(secrets, "set-pepper", SETTINGS.set_pepper_secret)
    client_key = fetch_secret(secrets, "client-key", SETTINGS.client_key_secret)
    control, step = Control(dynamodb, SETTINGS.control_table), step_at(clock.now(), SETTINGS.period)
    check_join(control, SETTINGS, TYPES, (pepper, client_key), step)
    log = StepLog(dynamodb, SETTINGS.step_log_table, SETTINGS.layouts)
    return Joining(TYPES, pepper, client_key, log, SETTINGS.period, SETTINGS.outage_allowance)


def count(accepted: int, joins: int) -> None:
    """Count well-formed joins, accepted and refused: the service level is their ratio."""
    metrics.add_metric("JoinsAccepted", MetricUnit.Count, accepted)
    metrics.add_metric("JoinsRefused", MetricUnit.Count, joins - accepted)


JoinRoutes(TYPES, joining, count).add_to(app)


@texts_withheld()
@logger.inject_lambda_context(log_event=False)
@metrics.log_metrics
def handler(event: dict[str, Any], context: LambdaContext) -> dict[str, Any]:
    """Entry point."""
    result = handle(app, event, context, logger, ORIGIN, JOIN_BODIES)
    metrics.add_metric("RequestsRejected", MetricUnit.Count, 400 <= result["statusCode"] < 500)
    return result
