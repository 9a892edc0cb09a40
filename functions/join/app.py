"""Lambda function `join`: writes joins to the log. It reads two secrets and no row of any table."""

from typing import Any

from aws_lambda_powertools import Logger, Metrics
from aws_lambda_powertools.event_handler import Response
from aws_lambda_powertools.metrics import MetricUnit
from aws_lambda_powertools.utilities.typing import LambdaContext
from pydantic import ValidationError

from kanon import aws, clock, snapshots
from kanon.errors import texts_withheld
from kanon.gate.fingerprints import check_join
from kanon.gate.joining import Join, Joining
from kanon.gate.mechanism.steps import step_at
from kanon.gate.models import (
    NOT_LOGGED,
    UNKNOWN_TYPE,
    BatchedJoin,
    BatchJoinAnswer,
    BatchJoinBody,
    JoinAnswer,
    JoinBody,
    JoiningClient,
)
from kanon.gate.paths import SetInPath, TypeInPath
from kanon.gate.settings import JoinSettings
from kanon.gate.storage.control import Control
from kanon.gate.storage.step_log import StepLog
from kanon.http.answers import ErrorAnswer
from kanon.http.bodies import RequestError
from kanon.http.edge import RETRY_AFTER, described, handle, invalid, json_answer, resolver
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


@app.post(
    "/v1/types/<type>/sets/<set>:join",
    summary="Join a set",
    operation_id="join",
    responses=described("The join is in the log", 400, 401, 403, 404, 413, 415, 503),
)
def join(type_name: TypeInPath, set_id: SetInPath, body: JoinBody) -> Response[JoinAnswer]:
    """Log that a client joined a set. Repeating a join within a step changes nothing."""
    if type_name not in TYPES:
        raise RequestError(UNKNOWN_TYPE)
    accepted = 0
    try:
        joining().join(_join(type_name, set_id, body), clock.now())
        accepted = 1
    finally:
        _count(accepted, 1)
    return json_answer(JoinAnswer())


@app.post(
    "/v1:batchJoin",
    summary="Join many sets at once",
    operation_id="batchJoin",
    responses=described("The result of each join", 400, 401, 403, 413, 415, 503, partly_later=True),
)
def batch_join(body: BatchJoinBody) -> Response[BatchJoinAnswer]:
    """Log up to 500 joins independently; ``results`` has one entry for every join, in order."""
    now = clock.now()
    read = [_read(entry) for entry in body.joins]
    joins = [entry for entry in read if isinstance(entry, Join)]
    logged: list[bool] = []
    try:
        logged = joining().join_all(joins, now)
    finally:
        _count(sum(logged), len(joins))
    results = [JoinAnswer() if isinstance(entry, Join) else entry for entry in read]
    places = [place for place, entry in enumerate(read) if isinstance(entry, Join)]
    for place, stored in zip(places, logged, strict=True):
        if not stored:
            results[place] = NOT_LOGGED
    headers = None if all(logged) else {"Retry-After": RETRY_AFTER}
    return json_answer(BatchJoinAnswer(results=results), headers)


def _join(type_name: str, set_id: bytes, body: JoiningClient) -> Join:
    if body.client is not None:
        return Join(type_name, set_id, "client", body.client.encode())
    return Join(type_name, set_id, "short", str(body.short_client_identifier).encode())


def _read(entry: Any) -> Join | ErrorAnswer:
    """The join of one entry of a batch, or its error."""
    try:
        body = BatchedJoin.model_validate(entry)
    except ValidationError as error:
        return invalid(error.errors(include_url=False, include_input=False))
    return _join(body.type, body.set, body) if body.type in TYPES else UNKNOWN_TYPE


def _count(accepted: int, joins: int) -> None:
    """Count well-formed joins, accepted and refused: the service level is their ratio."""
    metrics.add_metric("JoinsAccepted", MetricUnit.Count, accepted)
    metrics.add_metric("JoinsRefused", MetricUnit.Count, joins - accepted)


@texts_withheld()
@logger.inject_lambda_context(log_event=False)
@metrics.log_metrics
def handler(event: dict[str, Any], context: LambdaContext) -> dict[str, Any]:
    """Entry point."""
    result = handle(app, event, context, logger, ORIGIN)
    metrics.add_metric("RequestsRejected", MetricUnit.Count, 400 <= result["statusCode"] < 500)
    return result
