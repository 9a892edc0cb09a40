"""The service on one machine: the routes of the gate over one directory, with its health and its counts."""

import threading
from dataclasses import replace
from typing import Any

from aws_lambda_powertools import Logger
from aws_lambda_powertools.event_handler import APIGatewayHttpResolver, Response

from kanon import clock
from kanon.cors import Cors
from kanon.gate.join_routes import JoinRoutes
from kanon.gate.query_routes import QueryRoutes
from kanon.http.bodies import JOIN_BODIES, OWN_BODIES
from kanon.http.edge import handle, resolver
from kanon.serving.access import JOINS, METRICS, Access
from kanon.serving.directory import Directory
from kanon.serving.evaluating import Evaluating, start
from kanon.serving.http import Server
from kanon.serving.measures import Measures

ANONYMOUS_HASHES = 100
"""The most hashes of a query without a key, as the template's parameter of this name."""
HEALTH = "/healthz"
PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"
SECONDS_TO_STOP = 30.0


class Service:
    """Answers the requests of a directory."""

    def __init__(self, directory: Directory, access: Access, logger: Logger) -> None:
        self._directory, self._access, self._logger = directory, access, logger
        self._measures = Measures()
        self.evaluating = Evaluating(directory, self._measures, logger)
        self._of_thread = threading.local()

    def answer(self, event: dict[str, Any]) -> dict[str, Any]:
        """The answer to an event of API Gateway. Any thread may call it."""
        path = event["rawPath"]
        of_join = JOINS.fullmatch(path) is not None
        bodies = JOIN_BODIES if of_join else OWN_BODIES
        result = handle(self._resolver(), event, None, self._logger, self._access, bodies)
        if path not in (HEALTH, METRICS):
            self._measures.count_answer(result["statusCode"], of_join=of_join)
        if result["statusCode"] == 401:
            result["headers"]["WWW-Authenticate"] = "Bearer"
        return result

    def _resolver(self) -> APIGatewayHttpResolver:
        """The resolver of this thread: neither Powertools' nor the cached horizons may be shared."""
        made: APIGatewayHttpResolver | None = getattr(self._of_thread, "resolver", None)
        if made is None:
            directory = self._directory
            made = resolver(self._logger)
            querying = replace(directory.querying)
            JoinRoutes(directory.types, lambda: directory.joining, self._measures.count_joins).add_to(made)
            QueryRoutes(directory.types, lambda: querying, ANONYMOUS_HASHES, reports=False).add_to(made)
            made.get(HEALTH, include_in_schema=False)(self._health)
            made.get(METRICS, include_in_schema=False)(self._metrics)
            self._of_thread.resolver = made
        return made

    def _health(self) -> Response[str]:
        """200 if the answers are up to date."""
        problem = self.evaluating.problem(clock.now())
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

    def __init__(self, directory: Directory, access: Access, host: str, port: int, cors: Cors) -> None:
        logger = Logger(service="kanon", level="INFO", use_rfc3339=True)
        self._directory, self._logger = directory, logger
        service = Service(directory, access, logger)
        self._server = Server(service.answer, host, port, lambda found: logger.error("unexpected error", **found), cors)
        self.url = self._server.url
        self._stop = threading.Event()
        self._evaluation = start(service.evaluating, self._stop)
        logger.info("started", url=self.url, period=directory.settings.period, types=sorted(directory.types))

    def close(self) -> None:
        """Finish the requests that have arrived and the current evaluation, and close the directory."""
        self._stop.set()
        self._server.close()
        self._evaluation.join(SECONDS_TO_STOP)
        if self._evaluation.is_alive():  # the next start evaluates these steps again, with the same result
            self._logger.warning("stopped during an evaluation")
            return
        self._directory.close()
        self._logger.info("stopped")
