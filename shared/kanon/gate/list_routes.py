"""The HTTP routes of lists, on AWS and on one machine."""

import csv
import json
import re
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from io import StringIO
from typing import Annotated, Any

from aws_lambda_powertools.event_handler import APIGatewayHttpResolver, Response
from aws_lambda_powertools.event_handler.openapi.params import Path, Query
from pydantic import BaseModel

from kanon import clock
from kanon.errors import meant
from kanon.gate.lists import MOST_VALUES, ListEntry, Lists, ReadableList
from kanon.gate.models import NextUpdate, Step, unknown_type, utc_text
from kanon.gate.paths import TypeInPath
from kanon.gate.publishing import next_tick, tick_of
from kanon.gate.ranges import ListStep
from kanon.gate.types import Type
from kanon.http.answers import AnswerBody, Problem, error_answer, wrong_field
from kanon.http.bodies import RequestError
from kanon.http.edge import SIGNED_OR_TOKEN_OR_OPEN, described
from kanon.http.encoding import cell

JSON, CSV, BINARY = "application/json", "text/csv; charset=utf-8", "application/octet-stream"
NOT_LISTED = error_answer(
    404, "this type is not listed: its values have no list", Problem(field="type", reason="unlisted")
)
GONE = error_answer(404, "there is no such list any more, or yet: begin again with the newest one")
MOST_STEP = 1 << 53


class ListedAnswer(AnswerBody):
    """A value that the crowd shares, and the step since which it does."""

    value: str
    since: int


class ReleasedAnswer(AnswerBody):
    """A page of the values of a type that the crowd shares at a step."""

    type: str
    step: Step
    next_update: NextUpdate
    values: list[ListedAnswer]
    next: str | None


class RangesAnswer(AnswerBody):
    """Which range files there are: one for each number of ``prefixBits`` bits; null before the first list."""

    type: str
    step: Step
    next_update: NextUpdate
    prefix_bits: int | None
    count: int


@dataclass(frozen=True)
class ListRoutes:
    """The routes of lists.

    Attributes:
        lists: provides the lists.
        types: the types of the deployment by name.
        period: the length of a step in seconds.
        publish_delay: from the end of a step to its tick, in seconds.
        shared: whether caches of everybody may keep the answers.
    """

    lists: Callable[[], Lists]
    types: Mapping[str, Type]
    period: int
    publish_delay: int
    shared: bool

    def add_to(self, app: APIGatewayHttpResolver) -> None:
        """Let a resolver answer these routes."""

        def released(
            type_name: TypeInPath,
            after: Annotated[str, Query(max_length=100)] = "",
            limit: Annotated[int, Query(ge=1, le=MOST_VALUES)] = MOST_VALUES,
        ) -> Response[str]:
            event = app.current_event
            refuse_unknown(event.query_string_parameters or {})
            return self.released(type_name, after, limit, as_csv=CSV.partition(";")[0] in accepted(event.headers))

        app.get(
            "/v1/types/<type>/released",
            summary="The values that the crowd shares, in pages",
            operation_id="listReleased",
            responses=_answers("The values of a page", ReleasedAnswer),
            security=SIGNED_OR_TOKEN_OR_OPEN,
        )(released)
        app.get(
            "/v1/types/<type>/ranges",
            summary="Which range files there are",
            operation_id="getRanges",
            responses=_answers("The step and the number of the files", RangesAnswer),
            security=SIGNED_OR_TOKEN_OR_OPEN,
        )(self.pointer)
        app.get(
            "/v1/types/<type>/ranges/<step>/<prefix>",
            summary="The hashes of values with a prefix, in bytes",
            operation_id="getRange",
            responses=_answers("A range file", None),
            security=SIGNED_OR_TOKEN_OR_OPEN,
        )(self.range_file)

    def released(self, type_name: str, after: str, limit: int, *, as_csv: bool) -> Response[str]:
        """The values that the crowd shares, in pages; JSON or CSV."""
        self._refuse(type_name)
        step, last = place_of(after) if after else (None, b"")
        found = self.lists().of_step(type_name, step)
        rows = self.lists().page(type_name, found, last, limit + 1) if found else None if after else []
        if rows is None:
            raise RequestError(GONE)
        more = len(rows) > limit
        rows = rows[:limit]
        following = f"{found.step}.{rows[-1][0].hex()}" if found and more else None
        headers = self._kept(found)
        if as_csv:
            if following:
                headers["Link"] = f'</v1/types/{type_name}/released?after={following}&limit={limit}>; rel="next"'
            return Response(200, CSV, table(rows), headers)
        values = [{"value": listed.value, "since": listed.since} for _, listed in rows]
        return Response(200, JSON, dumps({**self._of(type_name, found), "values": values, "next": following}), headers)

    def pointer(self, type_name: TypeInPath) -> Response[str]:
        """Which range files there are."""
        self._refuse(type_name)
        found = self.lists().newest(type_name)
        bits, count = (None, 0) if found is None else (found.bits, found.values)
        body = {**self._of(type_name, found), "prefixBits": bits, "count": count}
        return Response(200, JSON, dumps(body), self._kept(found))

    def range_file(
        self,
        type_name: TypeInPath,
        step: Annotated[int, Path(ge=0, lt=MOST_STEP)],
        prefix: Annotated[str, Path(max_length=16)],
    ) -> Response[str]:
        """A range file. It changes only if a value is unlisted."""
        self._refuse(type_name)
        found = self.lists().of_step(type_name, step)
        of = ListStep(type_name, step, self._tick_after(step))
        content = None if found is None else self.lists().range_file(of, found, prefix)
        if content is None:
            raise RequestError(GONE)
        kept = f"{self._whose}, max-age=86400, immutable"
        headers = {"Cache-Control": kept, "ETag": f'"{sha256(content).hexdigest()[:32]}"'}
        answer = Response(200, BINARY, b64encode(content).decode(), headers)
        answer.base64_encoded = True  # a body of bytes would be validated as a text
        return answer

    def _refuse(self, type_name: str) -> None:
        if type_name not in self.types:
            raise RequestError(unknown_type(type_name, self.types))
        if not self.types[type_name].listed:
            raise RequestError(NOT_LISTED)

    @property
    def _whose(self) -> str:
        return "public" if self.shared else "private"

    def _of(self, type_name: str, found: ReadableList | None) -> dict[str, Any]:
        step = None if found is None else found.step
        return {"type": type_name, "step": step, "nextUpdate": utc_text(self._next_update(found))}

    def _next_update(self, found: ReadableList | None) -> int:
        now = clock.now()
        return next_tick(now, self.period, self.publish_delay) if found is None else self._tick_after(found.step)

    def _tick_after(self, step: int) -> int:
        return tick_of(step + 1, self.period, self.publish_delay)

    def _kept(self, found: ReadableList | None) -> dict[str, str]:
        age = max(0, int(self._next_update(found) - clock.now()))
        return {"Cache-Control": f"{self._whose}, max-age={age}", "Vary": "Accept"}


def _answers(answer: str, model: type[BaseModel] | None) -> dict[int, Any]:
    """The OpenAPI responses of a route. Bodies are written without their models, which describe them."""
    found = described(answer, 400, 401, 403, 404, 503)
    found[200]["content"] = {BINARY: {"schema": {"type": "string", "format": "binary"}}}
    if model is not None:
        found[200]["content"] = {JSON: {"model": model}}
    return found


def accepted(headers: Mapping[str, str]) -> set[str]:
    """The media types that a request accepts."""
    return {entry.partition(";")[0].strip().lower() for entry in (headers.get("accept") or "").split(",")}


def refuse_unknown(parameters: Mapping[str, str]) -> None:
    """Refuse a parameter that nobody reads.

    Raises:
        RequestError: 400.
    """
    for name in parameters:
        if name not in ("after", "limit"):
            reason = f"a parameter is unknown{meant(name, ('after', 'limit'))}: give only after and limit there"
            raise RequestError(error_answer(400, reason, Problem(field="query", reason=reason)))


def place_of(after: str) -> tuple[int, bytes]:
    """Step and hash of the last value that was read.

    Raises:
        RequestError: 400, it is not what an answer gave as ``next``.
    """
    found = re.fullmatch("([0-9]{1,16})[.]([0-9a-f]{64})", after)
    if found and int(found[1]) < MOST_STEP:
        return int(found[1]), bytes.fromhex(found[2])
    raise RequestError(wrong_field("after", "must be `next` of an answer"))


def table(rows: Sequence[tuple[bytes, ListEntry]]) -> str:
    """Values as CSV."""
    text = StringIO()
    writer = csv.writer(text)
    writer.writerow(("value", "since"))
    writer.writerows((cell(each.value), each.since) for _, each in rows)
    return text.getvalue()


def dumps(body: Mapping[str, Any]) -> str:
    """A body as JSON."""
    return json.dumps(body, ensure_ascii=False)
