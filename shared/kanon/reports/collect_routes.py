"""The HTTP routes that anybody may call: reports come in, public keys go out. They open no report."""

from collections.abc import Callable
from dataclasses import dataclass

from aws_lambda_powertools.event_handler import APIGatewayHttpResolver, Response

from kanon import clock
from kanon.http.answers import error_answer
from kanon.http.bodies import RequestError
from kanon.http.edge import described, json_answer
from kanon.reports.collecting import (
    PUBLIC_KEYS,
    REPORTS,
    PublicKeyAnswer,
    PublicKeysAnswer,
    ReportBody,
    ReportMessage,
    TakenAnswer,
    debug_path,
    report_message,
)
from kanon.reports.shared_info import DAY
from kanon.reports.storage.key_ring import KnownKeys, RingStore

NO_KEY = error_answer(503, "there is no public key yet; retry after the time in Retry-After")
DEBUG_PATHS = frozenset(map(debug_path, REPORTS))

Receive = Callable[[ReportBody], Response[TakenAnswer]]


@dataclass(frozen=True)
class CollectRoutes:
    """The routes of the collector.

    Attributes:
        allows: whether reports of an origin are collected.
        ring: provides the ring of public keys.
        known: provides the ids of all keys that were ever published.
        queue: takes a report. After an error the report is not accepted.
    """

    allows: Callable[[str], bool]
    ring: Callable[[], RingStore]
    known: Callable[[], KnownKeys]
    queue: Callable[[ReportMessage], None]

    def add_to(self, app: APIGatewayHttpResolver) -> None:
        """Let a resolver answer these routes."""
        for path, name in REPORTS.items():
            app.post(
                path,
                summary=f"Take a report ({name})",
                operation_id=f"report-{name}",
                responses=described("The report is queued", 400, 413, 415, 503),
            )(self.receiver(name))
            app.post(
                debug_path(path),
                summary=f"Discard a debug report ({name})",
                operation_id=f"debug-report-{name}",
                responses=described("The report is valid, and discarded", 400, 413, 415),
            )(self.receiver(name, debug=True))
        app.get(
            PUBLIC_KEYS,
            summary="The keys that reports are encrypted to",
            operation_id="publicKeys",
            responses=described("One key or more; clients pick one at random", 503),
        )(self.public_keys)

    def receiver(self, api: str, *, debug: bool = False) -> Receive:
        """The handler of a path for reports of one api. A debug report is checked like a normal one, and discarded."""

        def receive(body: ReportBody) -> Response[TakenAnswer]:
            """Queue one encrypted report. Fields that are not described are discarded, above all clear text."""
            now = clock.now()
            message = report_message(body, api, self.allows, lambda key_id: self.known().has(key_id, now), now)
            if not debug:
                self.queue(message)
            return json_answer(TakenAnswer())

        return receive

    def public_keys(self) -> Response[PublicKeysAnswer]:
        """The public keys. They may be cached for the time in Cache-Control, which ends before any key does."""
        now = clock.now()
        ring = self.ring().read()
        published = ring.served(now) if ring else ()
        if not published:
            raise RequestError(NO_KEY)
        seconds = min(DAY, *(int(key.published_until - now) for key in published))
        keys = [PublicKeyAnswer(id=key.id, key=key.public) for key in published]
        return json_answer(PublicKeysAnswer(keys=keys), {"Cache-Control": f"public, max-age={seconds}"})


def counted_as(method: str, path: str, status: int) -> str | None:
    """The metric of a request; the service level is the ratio of reports accepted and refused. None: it has none."""
    if 400 <= status < 500:
        return "RequestsRejected"
    if method != "POST":
        return "KeysRefused" if status >= 500 else None
    if status >= 500:
        return "ReportsRefused"
    return "DebugReports" if path in DEBUG_PATHS else "ReportsAccepted"
