"""The HTTP routes of lists, and the thread that publishes one at each tick."""

import csv
import json
import threading
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from io import StringIO
from typing import Annotated, Any

from aws_lambda_powertools import Logger
from aws_lambda_powertools.event_handler import APIGatewayHttpResolver, Response
from aws_lambda_powertools.event_handler.openapi.params import Path, Query

from kanon import clock
from kanon.errors import KanonError, kind_and_place
from kanon.gate.models import unknown_type
from kanon.gate.paths import TypeInPath
from kanon.gate.ranges import ListStep
from kanon.http.answers import Problem, error_answer, meant
from kanon.http.bodies import RequestError
from kanon.http.encoding import cell
from kanon.serving.evaluating import MOST_SECONDS_ASLEEP, SECONDS_TO_RETRY, Stop
from kanon.serving.lists import MOST_VALUES, Found, Lister
from kanon.serving.measures import ListMeasures, Measures

JSON, CSV, BINARY = "application/json", "text/csv; charset=utf-8", "application/octet-stream"
NOT_LISTED = error_answer(
    404, "this type is not listed: its values have no list", Problem(field="type", reason="unlisted")
)
GONE = error_answer(404, "there is no such list any more, or yet: begin again with the newest one")
LATE_STEPS = 2
MOST_STEP = 1 << 53


class Listing:
    """Publishes the lists of a directory in a thread of its own."""

    def __init__(self, lister: Lister, measures: Measures, logger: Logger) -> None:
        self.lister = lister
        self._measures, self._logger = ListMeasures(measures), logger
        self._error = ""

    def run(self, stop: Stop) -> None:
        """Publish until told to stop."""
        while not stop.wait(self.turn(clock.now())):
            pass

    def turn(self, now: float) -> float:
        """Publish what is visible at ``now``. Returns the seconds until the next turn."""
        try:
            new = self.lister.publish(now)
        except KanonError as error:
            return self._failed(reason=str(error))
        except Exception as error:  # noqa: BLE001, its text may hold a value
            return self._failed(**kind_and_place(error))
        self._error = ""
        self._measures.unopened.set(self.lister.unopened)
        if self.lister.unopened:
            self._logger.error("sealed values do not open", values=self.lister.unopened)
        if new:
            self._logger.info("listed")
        behind = self.lister.behind(now)
        self._measures.behind.set(behind)
        if behind:
            return 1.0  # the step of this tick is not evaluated yet
        return min(max(0.0, self.lister.next_tick(now) - clock.now()), MOST_SECONDS_ASLEEP)

    def _failed(self, **fields: str) -> float:
        self._measures.stopped.inc()
        self._error = "lists are not published"
        self._logger.error(self._error, extra=fields)
        return SECONDS_TO_RETRY

    def problem(self, now: float) -> str:
        """What is wrong with the lists at ``now``, in words; empty if nothing is."""
        if self._error:
            return f"{self._error}: the log of the service says why"
        behind = self.lister.behind(now)
        return f"lists are {behind} steps behind the answers" if behind >= LATE_STEPS else ""


def start(listing: Listing, stop: threading.Event) -> threading.Thread:
    """Publish in a thread until ``stop`` is set."""
    thread = threading.Thread(target=listing.run, args=(stop,), name="list", daemon=True)
    thread.start()
    return thread


@dataclass(frozen=True)
class ListRoutes:
    """The routes of lists.

    Attributes:
        lister: has the lists.
        shared: whether caches of everybody may keep the answers.
    """

    lister: Lister
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

        app.get("/v1/types/<type>/released", include_in_schema=False)(released)
        app.get("/v1/types/<type>/ranges", include_in_schema=False)(self.pointer)
        app.get("/v1/types/<type>/ranges/<step>/<prefix>", include_in_schema=False)(self.range_file)

    def released(self, type_name: str, after: str, limit: int, *, as_csv: bool) -> Response[str]:
        """The values that the crowd shares, in pages; JSON or CSV."""
        self._refuse(type_name)
        step, last = place_of(after) if after else (None, b"")
        found = self.lister.file.of_step(type_name, step)
        if found is None and after:
            raise RequestError(GONE)
        rows = [] if found is None else self.lister.file.page(type_name, found.step, last, limit + 1)
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
        found = self.lister.file.newest(type_name)
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
        found = self.lister.file.of_step(type_name, step)
        of = ListStep(type_name, step, self.lister.next_update(step))
        content = None if found is None else self.lister.file.range_file(of, found, prefix)
        if content is None:
            raise RequestError(GONE)
        kept = f"{self._whose}, max-age=86400, immutable"
        headers = {"Cache-Control": kept, "ETag": f'"{sha256(content).hexdigest()[:32]}"'}
        answer = Response(200, BINARY, b64encode(content).decode(), headers)
        answer.base64_encoded = True  # a body of bytes would be validated as a text
        return answer

    def _refuse(self, type_name: str) -> None:
        types = self.lister.directory.types
        if type_name not in types:
            raise RequestError(unknown_type(type_name, types))
        if not types[type_name].listed:
            raise RequestError(NOT_LISTED)

    @property
    def _whose(self) -> str:
        return "public" if self.shared else "private"

    def _of(self, type_name: str, found: Found | None) -> dict[str, Any]:
        step = None if found is None else found.step
        return {"type": type_name, "step": step, "nextUpdate": _moment(self._next_update(found))}

    def _next_update(self, found: Found | None) -> int:
        return self.lister.next_tick(clock.now()) if found is None else self.lister.next_update(found.step)

    def _kept(self, found: Found | None) -> dict[str, str]:
        age = max(0, int(self._next_update(found) - clock.now()))
        return {"Cache-Control": f"{self._whose}, max-age={age}", "Vary": "Accept"}


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
    step, _, digest = after.partition(".")
    try:
        if step.isascii() and step.isdigit() and int(step) < MOST_STEP and len(digest) == 64:
            return int(step), bytes.fromhex(digest)
    except ValueError:
        pass
    reason = "must be `next` of an answer"
    raise RequestError(error_answer(400, f"after: {reason}", Problem(field="after", reason=reason)))


def table(rows: "list[tuple[bytes, Any]]") -> str:
    """Values as CSV."""
    text = StringIO()
    writer = csv.writer(text)
    writer.writerow(("value", "since"))
    writer.writerows((cell(each.value), each.since) for _, each in rows)
    return text.getvalue()


def dumps(body: Mapping[str, Any]) -> str:
    """A body as JSON."""
    return json.dumps(body, ensure_ascii=False)


def _moment(unix: int) -> str:
    return datetime.fromtimestamp(unix, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
