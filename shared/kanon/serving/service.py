"""The service on one machine: the routes of gate and reports over one directory, with its health and its counts."""

import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from aws_lambda_powertools import Logger
from aws_lambda_powertools.event_handler import APIGatewayHttpResolver, Response

from kanon import clock
from kanon.console.answering import Console
from kanon.cors import Cors
from kanon.gate.join_routes import JoinRoutes
from kanon.gate.list_routes import ListRoutes
from kanon.gate.models import Presentation
from kanon.gate.query_routes import QueryRoutes
from kanon.http.bodies import JOIN_BODIES
from kanon.http.edge import handle, resolver
from kanon.reports.collecting import JOB_PATHS
from kanon.serving.access import COLLECTED, JOINS, METRICS, Access, AuthMode
from kanon.serving.directory import Directory
from kanon.serving.evaluating import Evaluating, start
from kanon.serving.http import Server
from kanon.serving.listing import ListPublication
from kanon.serving.measures import Measures
from kanon.serving.routes import RouteKind, Routes

if TYPE_CHECKING:
    from kanon.gate.enrol_routes import EnrolRoutes
    from kanon.gateway.answering import Gateway
    from kanon.serving.lists import Lister
    from kanon.serving.reporting import DirectoryReports

ANONYMOUS_HASHES = 100
"""The most hashes of a query without a key, as the template's parameter of this name."""
HEALTH = "/healthz"
PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"
SECONDS_TO_STOP = 30.0


class Service:
    """Answers the requests of a directory, those of its reports and those of relays, if these are on."""

    def __init__(
        self,
        directory: Directory,
        access: Access,
        logger: Logger,
        reporting: "DirectoryReports | None" = None,
        gateway: "Gateway | None" = None,
        lister: "Lister | None" = None,
        enrolment: "EnrolRoutes | None" = None,
    ) -> None:
        self._directory, self._access, self._logger = directory, access, logger
        self._gateway, self._enrolment = gateway, enrolment
        self._measures = Measures()
        self.evaluating = Evaluating(directory, self._measures, logger)
        self.console = Console()
        self.reports = None if reporting is None else reporting.work(self._measures, logger)
        self.listing = None if lister is None else ListPublication(lister, self._measures, logger)
        self._of_thread = threading.local()

    def answer(self, event: dict[str, Any]) -> dict[str, Any]:
        """The answer to an event of API Gateway. Any thread may call it."""
        method, body = event["requestContext"]["http"]["method"], event.get("body", "")
        shown = self.console.answer(method, event["rawPath"], event["headers"], body)
        if shown is not None:
            return {"statusCode": shown.status, "headers": shown.headers, "body": shown.body}
        if self._gateway is not None and self._gateway.has(event["rawPath"]):
            return self._relayed(self._gateway, event)
        result = self._answer(event)
        if result["statusCode"] == 401:
            result["headers"]["WWW-Authenticate"] = "Bearer"
        return result

    def _relayed(self, gateway: "Gateway", event: dict[str, Any]) -> dict[str, Any]:
        """The answer to a relay. The request in it is counted as if it had come by itself."""
        result = gateway.answer(event, self._answer)
        if result["statusCode"] != 200:
            self._measures.count_answer(result["statusCode"], of_join=False)
        return result

    def _answer(self, event: dict[str, Any]) -> dict[str, Any]:
        path, kind = event["rawPath"], self._kind(event["rawPath"])
        of_join = JOINS.fullmatch(path) is not None
        app, bodies, form = self._routes()[kind]
        result = handle(app, event, None, self._logger, self._access, JOIN_BODIES if of_join else bodies, form)
        if self.reports is not None and kind is RouteKind.COLLECTED:
            self.reports.count(event["requestContext"]["http"]["method"], path, result["statusCode"])
        elif path not in (HEALTH, METRICS):
            self._measures.count_answer(result["statusCode"], of_join=of_join)
        return result

    def _kind(self, path: str) -> RouteKind:
        if self.reports is None:
            return RouteKind.GATE
        if path in COLLECTED:
            return RouteKind.COLLECTED
        return RouteKind.JOBS if path.startswith(JOB_PATHS) else RouteKind.GATE

    def _routes(self) -> Mapping[RouteKind, Routes]:
        """The routes of this thread: neither Powertools' resolvers nor the cached horizons may be shared."""
        made: Mapping[RouteKind, Routes] | None = getattr(self._of_thread, "routes", None)
        if made is None:
            of_reports = self.reports.routes() if self.reports else {}
            made = self._of_thread.routes = {RouteKind.GATE: Routes(self._gate()), **of_reports}
        return made

    def _gate(self) -> APIGatewayHttpResolver:
        directory, made = self._directory, resolver(self._logger)
        querying = replace(directory.querying)
        admit = None if self._enrolment is None else self._admit(self._enrolment)
        JoinRoutes(directory.types, lambda: directory.joining, self._measures.count_joins, admit).add_to(made)
        QueryRoutes(directory.types, lambda: querying, ANONYMOUS_HASHES, reports=self.reports is not None).add_to(made)
        if self._enrolment is not None:
            self._enrolment.add_to(made)
        if self.listing is not None:
            file, settings = self.listing.lister.file, directory.settings
            shared = self._access.lists is AuthMode.OPEN
            ListRoutes(lambda: file, directory.types, settings.period, settings.publish_delay, shared).add_to(made)
        made.get(HEALTH, include_in_schema=False)(self._health)
        made.get(METRICS, include_in_schema=False)(self._metrics)
        return made

    def _admit(self, enrolment: "EnrolRoutes") -> Callable[[str, bytes, Presentation, float], bytes]:
        from kanon.credentials.enrolling import Admission
        from kanon.gate.admitting import admit

        return partial(admit, Admission(enrolment.enrolling.issuer, self._directory.settings.period))

    def _health(self) -> Response[str]:
        """200 if the answers are up to date."""
        now = clock.now()
        others = (work.problem(now) for work in (self.listing, self.reports) if work is not None)
        problem = self.evaluating.problem(now) or next(filter(None, others), "")
        status, text = (503, problem) if problem else (200, "healthy")
        return Response(status, "text/plain; charset=utf-8", f"{text}\n", {"Cache-Control": "no-store"})

    def _metrics(self) -> Response[str]:
        self._measures.lag.set(self._directory.lag(clock.now()))
        return Response(200, PROMETHEUS, self._measures.text(), {"Cache-Control": "no-store"})


class Running:
    """A service that listens and evaluates, from its creation until it is closed.

    Raises:
        OSError: the address cannot be used.
    """

    def __init__(
        self,
        directory: Directory,
        access: Access,
        host: str,
        port: int,
        cors: Cors,
        reporting: "DirectoryReports | None" = None,
        gateway: "Gateway | None" = None,
        lister: "Lister | None" = None,
        enrolment: "EnrolRoutes | None" = None,
    ) -> None:
        logger = Logger(service="kanon", level="INFO", use_rfc3339=True)
        self._directory, self._logger = directory, logger
        service = Service(directory, access, logger, reporting, gateway, lister, enrolment)
        self._reports, self.console = service.reports, service.console
        self._server = Server(service.answer, host, port, lambda found: logger.error("unexpected error", **found), cors)
        self.url = self._server.url
        self._stop = threading.Event()
        self._threads = [start("evaluate", service.evaluating.turn, self._stop)]
        if service.listing is not None:
            self._threads.append(start("list", service.listing.turn, self._stop))
        if self._reports is not None:
            self._threads.append(self._reports.start())
        logger.info("started", url=self.url, period=directory.settings.period, types=sorted(directory.types))

    def close(self) -> None:
        """Finish the requests that have arrived, the current evaluation and stage, and close the directory."""
        self._stop.set()
        if self._reports is not None:
            self._reports.stop()
        self._server.close()
        for thread in self._threads:
            thread.join(SECONDS_TO_STOP)
        if busy := [thread.name for thread in self._threads if thread.is_alive()]:
            self._logger.warning("stopped during work, which the next start repeats with the same result", work=busy)
            return
        if self._reports is not None:
            self._reports.close()
        self._directory.close()
        self._logger.info("stopped")
