"""Lambda function `gateway`: decrypts requests of relays, and lets other functions answer them. It sees no table."""

import json
import re
from typing import Any

from aws_lambda_powertools import Logger, Metrics
from aws_lambda_powertools.metrics import MetricUnit
from aws_lambda_powertools.utilities.typing import LambdaContext

from kanon import aws, snapshots
from kanon.errors import texts_withheld
from kanon.gate.models import ISSUER_KEYS, JOIN_PATH
from kanon.gateway.answering import Gateway
from kanon.gateway.epochs import Epochs
from kanon.gateway.oblivious import GATEWAY_PATH
from kanon.gateway.settings import GatewaySettings
from kanon.http.edge import refused
from kanon.http.origin import RELAYED, edge_of, relays_of
from kanon.keys import fetch_secret
from kanon.starting import Once

SETTINGS = GatewaySettings.from_environment()

ORIGIN, RELAYS = edge_of(SETTINGS.edge_secret), relays_of(SETTINGS.relay_secret)

# An invocation bypasses the checks of API Gateway. Without the secret of relays only what anybody may call goes on.
JOINS = re.compile(rf"POST (?:{JOIN_PATH.pattern}{'|/v1:batchJoin' if RELAYS else ''})")
OTHERS = re.compile(
    rf"POST /v1:(?:query|validateHashes{'|batchQuery' if RELAYS else ''})"
    r"|GET /v1/types(?:/[^/]+(?:/sets/[^/]+)?)?"
    rf"{f'|GET {ISSUER_KEYS}' if SETTINGS.issuer_function else ''}"
)

snapshots.on_snapshot(lambda: aws.load_models("lambda", "secretsmanager"))

logger = Logger()
metrics = Metrics()

lambda_client = Once(aws.functions)


@Once
def gateway() -> Gateway:
    """The gateway with its keys, built once per execution environment. It passes no identity on."""
    key = fetch_secret(aws.secrets_manager(), "gateway-key", SETTINGS.gateway_key_secret)
    return Gateway(Epochs(key), SETTINGS.period, JOINS, OTHERS, frozenset({"content-type"}))


def _function(path: str, *, is_join: bool) -> str:
    """The function that answers a request."""
    if path == ISSUER_KEYS:
        return SETTINGS.issuer_function
    return SETTINGS.join_function if is_join else SETTINGS.query_function


def called(event: dict[str, Any]) -> dict[str, Any]:
    """The result of the function for a decrypted request; an error inside, if it gives none."""
    asked = event["requestContext"]["http"]
    is_join = JOINS.fullmatch(f"{asked['method']} {asked['path']}")
    event["requestContext"][RELAYED] = True
    try:
        reply = lambda_client().invoke(
            FunctionName=_function(asked["path"], is_join=bool(is_join)),
            Payload=json.dumps(event).encode(),
        )
        result: dict[str, Any] = json.loads(reply["Payload"].read())
        if reply.get("FunctionError"):
            raise RuntimeError("the function failed")  # its own log says how
    except Exception as error:  # noqa: BLE001, whatever it is, the outer answer must not show it
        metrics.add_metric("RelayedCallsFailed", MetricUnit.Count, 1)
        return refused(error, logger)
    return result


def answered(event: dict[str, Any]) -> dict[str, Any]:
    """The outer answer. Anybody may read the key, so that clients can compare it with that of their relay."""
    try:
        if ORIGIN is not None:
            ORIGIN.check(event)
        if RELAYS is not None and event["rawPath"] == GATEWAY_PATH:
            RELAYS.check(event)
        return gateway().answer(event, called)
    except Exception as error:  # noqa: BLE001, the one place that answers and logs outer errors
        result = refused(error, logger)
        if result["statusCode"] >= 500:
            metrics.add_metric("RelayedCallsFailed", MetricUnit.Count, 1)
        return result


@texts_withheld()
@logger.inject_lambda_context(log_event=False)
@metrics.log_metrics
def handler(event: dict[str, Any], context: LambdaContext) -> dict[str, Any]:  # noqa: ARG001, Lambda passes both
    """Entry point."""
    result = answered(event)
    metrics.add_metric("RequestsRejected", MetricUnit.Count, 400 <= result["statusCode"] < 500)
    return result
