"""Lambda function `join`: writes joins to the log. It reads its secrets and no row of any table."""

from collections.abc import Callable
from typing import Any

from aws_lambda_powertools import Logger, Metrics
from aws_lambda_powertools.utilities.typing import LambdaContext

from kanon import aws, clock, snapshots
from kanon.errors import texts_withheld
from kanon.gate.fingerprints import check_join
from kanon.gate.join_routes import JoinRoutes
from kanon.gate.joining import Joining
from kanon.gate.mechanism.steps import step_at
from kanon.gate.models import JOIN_PATH, Presentation
from kanon.gate.settings import JoinSettings
from kanon.gate.storage.aws.control import Control
from kanon.gate.storage.aws.step_log import StepLog
from kanon.http.bodies import JOIN_BODIES
from kanon.http.edge import handle, resolver
from kanon.http.function_url import UrlGuard
from kanon.http.origin import edge_of
from kanon.http.totals import Totals
from kanon.keys import fetch_secret
from kanon.starting import Once

SETTINGS = JoinSettings.from_environment()
TYPES = SETTINGS.read_types()

GUARD = UrlGuard(JOIN_PATH, edge_of(SETTINGS.edge_secret))


def sealing() -> Callable[[bytes, bytes], bytes] | None:
    """Seals values to the lister; None without a listed type. Only then it loads the library, before a snapshot."""
    if not any(type_.listed for type_ in TYPES.values()):
        return None
    from kanon.gate.sealing import sealer

    return sealer(SETTINGS.lister_key)


def admitting() -> Callable[[str, bytes, Presentation, float], bytes] | None:
    """Checks presentations; None without a type that needs credentials. Only then it loads the library."""
    if not any(type_.credential for type_ in TYPES.values()):
        return None
    from kanon.credentials.enrolling import Admission
    from kanon.gate.admitting import ISSUER_KEY, admit, issuer_of

    @Once
    def admission() -> Admission:
        secret = fetch_secret(aws.secrets_manager(), ISSUER_KEY, SETTINGS.issuer_key_secret)
        return Admission(issuer_of(secret, SETTINGS.deployment), SETTINGS.period)

    return lambda *join: admit(admission(), *join)


SEAL = sealing()

snapshots.on_snapshot(lambda: aws.load_models("dynamodb", "secretsmanager"))

logger = Logger()
totals = Totals(Metrics(), "JoinsRefused")
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
    return Joining(TYPES, pepper, client_key, log, SETTINGS.period, SETTINGS.outage_allowance, SEAL)


def count(accepted: int, joins: int) -> None:
    """Count well-formed joins, accepted and refused: the service level is their ratio."""
    totals.add(JoinsAccepted=accepted, JoinsRefused=joins - accepted)


JoinRoutes(TYPES, joining, count, admitting()).add_to(app)


@texts_withheld()
@logger.inject_lambda_context(log_event=False)
def handler(event: dict[str, Any], context: LambdaContext) -> dict[str, Any]:
    """Entry point."""
    try:
        result = handle(app, event, context, logger, GUARD, JOIN_BODIES)
        totals.add(RequestsRejected=400 <= result["statusCode"] < 500)
        return result
    finally:
        totals.write()
