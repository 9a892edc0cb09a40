"""The HTTP routes of statuses, of the types, and of the description of the API. They never read a join."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from aws_lambda_powertools.event_handler import APIGatewayHttpResolver, Response

from kanon import clock
from kanon.gate.models import (
    MOST_HASHES,
    Hashes,
    HashesAnswer,
    QueryAnswer,
    QueryBody,
    SetAnswer,
    TypeAnswer,
    TypesAnswer,
    ValidateHashesBody,
    too_many_hashes,
    unknown_type,
    utc_text,
)
from kanon.gate.paths import SetInPath, TypeInPath
from kanon.gate.querying import Answer, Querying
from kanon.gate.types import Type
from kanon.http.answers import NOWHERE
from kanon.http.bodies import RequestError
from kanon.http.edge import SIGNED_OR_TOKEN, described, json_answer

HERE = Path(__file__).parent


@dataclass(frozen=True)
class QueryRoutes:
    """The routes of statuses, of the types, and of the description of the API.

    Attributes:
        types: the types of the deployment by name.
        querying: provides the use case.
        anonymous_hashes: the most hashes of a query without a signature.
        reports: whether the description covers reports. A stack may have them.
    """

    types: Mapping[str, Type]
    querying: Callable[[], Querying]
    anonymous_hashes: int
    reports: bool

    def add_to(self, app: APIGatewayHttpResolver) -> None:
        """Let a resolver answer these routes."""
        self._add_queries(app)
        app.get(
            "/v1/types",
            summary="The types and their parameters",
            operation_id="listTypes",
            responses=described("Every type of this deployment"),
        )(self.list_types)
        app.get(
            "/v1/types/<type>",
            summary="One type and its parameters",
            operation_id="getType",
            responses=described("The type", 400, 404),
        )(self.one_type)
        app.get("/openapi.json", include_in_schema=False)(self.openapi)
        app.get("/docs", include_in_schema=False)(docs)

    def _add_queries(self, app: APIGatewayHttpResolver) -> None:
        app.post(
            "/v1:query",
            summary="Which of these sets are k-anonymous?",
            operation_id="query",
            responses=described("The sets that are k-anonymous", 400, 404, 413, 415, 503),
        )(self.query)
        app.post(
            "/v1:batchQuery",
            summary="The same query, signed, for up to 1,000 hashes",
            operation_id="batchQuery",
            responses=described("The sets that are k-anonymous", 400, 401, 403, 404, 413, 415, 503),
            security=SIGNED_OR_TOKEN,
        )(self.batch_query)
        app.post(
            "/v1:validateHashes",
            summary="The same query in the format of Bidding and Auction servers",
            operation_id="validateHashes",
            responses=described("The sets that are k-anonymous", 400, 404, 413, 415, 503),
        )(self.validate_hashes)
        app.get("/v1/types/<type>/sets/<set>:<verb>", include_in_schema=False)(verb_of_a_set)
        app.get(
            "/v1/types/<type>/sets/<set>",
            summary="Is this set k-anonymous?",
            operation_id="getSet",
            responses=described("The status of the set", 400, 404, 503),
        )(self.one_set)

    def query(self, body: QueryBody) -> Response[QueryAnswer]:
        """The hashes that are k-anonymous: one entry for every type in the request, empty if none is."""
        return self._hashes(body.sets_for_type, "setsForType", self.anonymous_hashes)

    def batch_query(self, body: QueryBody) -> Response[QueryAnswer]:
        """The hashes that are k-anonymous: one entry for every type in the request, empty if none is."""
        return self._hashes(body.sets_for_type, "setsForType", MOST_HASHES)

    def validate_hashes(self, body: ValidateHashesBody) -> Response[QueryAnswer]:
        """The hashes that are k-anonymous: one entry for every type in the request, empty if none is."""
        return self._hashes(body.sets, "sets", self.anonymous_hashes)

    def one_set(self, type_name: TypeInPath, set_id: SetInPath) -> Response[SetAnswer]:
        """The status of one set, true or false; it cannot change before ``nextUpdate``."""
        if type_name not in self.types:
            raise RequestError(unknown_type(type_name, self.types))
        now = clock.now()
        answer = self.querying().query([(type_name, set_id)], now)
        status = SetAnswer(k_anonymous=answer.above[0], step=answer.step, next_update=utc_text(answer.next_update))
        return json_answer(status, _until_next_tick(answer, now))

    def list_types(self) -> Response[TypesAnswer]:
        """Every type with its parameters and its guarantee."""
        return json_answer(TypesAnswer(types=[describe(type_) for type_ in self.types.values()]))

    def one_type(self, type_name: TypeInPath) -> Response[TypeAnswer]:
        """The parameters of a type, its privacy bounds, and the counts whose answer is certain."""
        if type_name not in self.types:
            raise RequestError(unknown_type(type_name, self.types))
        return json_answer(describe(self.types[type_name]))

    def openapi(self) -> Response[str]:
        """The OpenAPI description of all routes of the service; ``make openapi`` writes it."""
        file = "openapi-with-reports.json" if self.reports else "openapi.json"
        return Response(200, "application/json", (HERE / file).read_text())

    def _hashes(self, asked: list[Hashes], field: str, most: int) -> Response[QueryAnswer]:
        if sum(len(entry.hashes) for entry in asked) > most:
            raise RequestError(too_many_hashes(field, most))
        for place, entry in enumerate(asked):
            if entry.type not in self.types:
                raise RequestError(unknown_type(entry.type, self.types, f"{field}.{place}.type"))
        now = clock.now()
        answer = self.querying().query([(entry.type, set_id) for entry in asked for _, set_id in entry.hashes], now)
        found, start = [], 0
        for entry in asked:
            above = answer.above[start : start + len(entry.hashes)]
            hashes = [text for (text, _), is_above in zip(entry.hashes, above, strict=True) if is_above]
            found.append(HashesAnswer(type=entry.type, hashes=hashes))
            start += len(entry.hashes)
        body = QueryAnswer(
            k_anonymous_sets=found,
            step=answer.step,
            next_update=utc_text(answer.next_update),
        )
        return json_answer(body, _until_next_tick(answer, now))


def verb_of_a_set() -> None:
    """A GET on a verb path is 404."""
    raise RequestError(NOWHERE)


def docs() -> Response[str]:
    """A page that shows the API description and sends requests."""
    # The page is self-contained: it may load nothing and call only this service.
    inline = "style-src 'unsafe-inline'; script-src 'unsafe-inline'"
    policy = f"default-src 'none'; connect-src 'self'; {inline}"
    page = (HERE / "docs.html").read_text()
    return Response(200, "text/html; charset=utf-8", page, {"Content-Security-Policy": policy})


@cache
def describe(type_: Type) -> TypeAnswer:
    """The description of a type, built once per process."""
    return TypeAnswer.of(type_)


def _until_next_tick(answer: Answer, now: float) -> dict[str, str]:
    return {"Cache-Control": f"max-age={max(0, int(answer.next_update - now))}"}
