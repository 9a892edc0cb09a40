"""Lambda function `query`: serves statuses. It reads the Statuses table and the set pepper, never a join."""

from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

from aws_lambda_powertools import Logger, Metrics
from aws_lambda_powertools.event_handler import Response
from aws_lambda_powertools.metrics import MetricUnit
from aws_lambda_powertools.utilities.typing import LambdaContext

from kanon import aws, clock, snapshots
from kanon.errors import texts_withheld
from kanon.gate.fingerprints import fingerprints
from kanon.gate.models import (
    MOST_HASHES,
    UNKNOWN_TYPE,
    Hashes,
    HashesAnswer,
    QueryAnswer,
    QueryBody,
    SetAnswer,
    TypeAnswer,
    TypesAnswer,
    ValidateHashesBody,
    too_many_hashes,
)
from kanon.gate.paths import SetInPath, TypeInPath
from kanon.gate.querying import Answer, Querying
from kanon.gate.settings import QuerySettings
from kanon.gate.storage.control import Control
from kanon.gate.storage.statuses import Statuses
from kanon.http.answers import NOWHERE
from kanon.http.bodies import RequestError
from kanon.http.edge import described, handle, json_answer, resolver
from kanon.http.origin import edge_of
from kanon.keys import fetch_secret
from kanon.starting import Once

SETTINGS = QuerySettings.from_environment()
TYPES = SETTINGS.read_types()
HERE = Path(__file__).parent

ORIGIN = edge_of(SETTINGS.edge_secret)

snapshots.on_snapshot(lambda: aws.load_models("dynamodb", "secretsmanager"))

logger = Logger()
metrics = Metrics()
app = resolver(logger)


@Once
def querying() -> Querying:
    """The use case with its secret, built once per execution environment. A changed fingerprint is an error."""
    dynamodb = aws.dynamodb()
    pepper = fetch_secret(aws.secrets_manager(), "set-pepper", SETTINGS.set_pepper_secret)
    Control(dynamodb, SETTINGS.control_table).check("query", fingerprints(SETTINGS, TYPES, (pepper,)))
    statuses = Statuses(dynamodb, SETTINGS.statuses_table)
    return Querying(
        TYPES, pepper, statuses, SETTINGS.period, SETTINGS.layouts, SETTINGS.publish_delay, SETTINGS.max_stale
    )


@app.post(
    "/v1:query",
    summary="Which of these sets are k-anonymous?",
    operation_id="query",
    responses=described("The sets that are k-anonymous", 400, 413, 415, 503),
)
def query(body: QueryBody) -> Response[QueryAnswer]:
    """The hashes that are k-anonymous: one entry for every type in the request, empty if none is."""
    return _hashes(body.sets_for_type, "setsForType", SETTINGS.anonymous_hashes)


@app.post(
    "/v1:batchQuery",
    summary="The same query, signed, for up to 1,000 hashes",
    operation_id="batchQuery",
    responses=described("The sets that are k-anonymous", 400, 401, 403, 413, 415, 503),
)
def batch_query(body: QueryBody) -> Response[QueryAnswer]:
    """The hashes that are k-anonymous: one entry for every type in the request, empty if none is."""
    return _hashes(body.sets_for_type, "setsForType", MOST_HASHES)


@app.post(
    "/v1:validateHashes",
    summary="The same query in the format of Bidding and Auction servers",
    operation_id="validateHashes",
    responses=described("The sets that are k-anonymous", 400, 413, 415, 503),
)
def validate_hashes(body: ValidateHashesBody) -> Response[QueryAnswer]:
    """The hashes that are k-anonymous: one entry for every type in the request, empty if none is."""
    return _hashes(body.sets, "sets", SETTINGS.anonymous_hashes)


@app.get("/v1/types/<type>/sets/<set>:<verb>", include_in_schema=False)
def verb_of_a_set() -> None:
    """A GET on a verb path is 404."""
    raise RequestError(NOWHERE)


@app.get(
    "/v1/types/<type>/sets/<set>",
    summary="Is this set k-anonymous?",
    operation_id="getSet",
    responses=described("The status of the set", 400, 404, 503),
)
def one_set(type_name: TypeInPath, set_id: SetInPath) -> Response[SetAnswer]:
    """The status of one set, true or false; it cannot change before ``nextUpdate``."""
    if type_name not in TYPES:
        raise RequestError(UNKNOWN_TYPE)
    now = clock.now()
    answer = querying().query([(type_name, set_id)], now)
    status = SetAnswer(k_anonymous=answer.above[0], step=answer.step, next_update=_moment(answer.next_update))
    return json_answer(status, _until_next_tick(answer, now))


@app.get(
    "/v1/types",
    summary="The types and their parameters",
    operation_id="listTypes",
    responses=described("Every type of this deployment"),
)
def list_types() -> Response[TypesAnswer]:
    """Every type with its parameters and its guarantee."""
    return json_answer(TypesAnswer(types=[describe(name) for name in TYPES]))


@app.get(
    "/v1/types/<type>",
    summary="One type and its parameters",
    operation_id="getType",
    responses=described("The type", 400, 404),
)
def one_type(type_name: TypeInPath) -> Response[TypeAnswer]:
    """The parameters of a type, its privacy bounds, and the counts whose answer is certain."""
    if type_name not in TYPES:
        raise RequestError(UNKNOWN_TYPE)
    return json_answer(describe(type_name))


@app.get("/openapi.json", include_in_schema=False)
def openapi() -> Response[str]:
    """The OpenAPI description of all routes, including those of ``join``; ``make openapi`` writes it."""
    return Response(200, "application/json", (HERE / "openapi.json").read_text())


@app.get("/docs", include_in_schema=False)
def docs() -> Response[str]:
    """A page that shows the API description and sends requests."""
    # The page is self-contained: it may load nothing and call only this service.
    inline = "style-src 'unsafe-inline'; script-src 'unsafe-inline'"
    policy = f"default-src 'none'; connect-src 'self'; {inline}"
    page = (HERE / "docs.html").read_text()
    return Response(200, "text/html; charset=utf-8", page, {"Content-Security-Policy": policy})


@cache
def describe(type_name: str) -> TypeAnswer:
    """The description of a type, built once per execution environment."""
    return TypeAnswer.of(TYPES[type_name])


def _hashes(asked: list[Hashes], field: str, most: int) -> Response[QueryAnswer]:
    if sum(len(entry.hashes) for entry in asked) > most:
        raise RequestError(too_many_hashes(field, most))
    now = clock.now()
    answer = querying().query([(entry.type, set_id) for entry in asked for _, set_id in entry.hashes], now)
    found, start = [], 0
    for entry in asked:
        above = answer.above[start : start + len(entry.hashes)]
        hashes = [text for (text, _), is_above in zip(entry.hashes, above, strict=True) if is_above]
        found.append(HashesAnswer(type=entry.type, hashes=hashes))
        start += len(entry.hashes)
    body = QueryAnswer(
        k_anonymous_sets=found,
        unknown_types=sorted({entry.type for entry in asked} - TYPES.keys()),
        step=answer.step,
        next_update=_moment(answer.next_update),
    )
    return json_answer(body, _until_next_tick(answer, now))


def _moment(unix: int) -> str:
    return datetime.fromtimestamp(unix, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _until_next_tick(answer: Answer, now: float) -> dict[str, str]:
    return {"Cache-Control": f"max-age={max(0, int(answer.next_update - now))}"}


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
