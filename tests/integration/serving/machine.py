"""A service on one machine with a simulated clock, on a free loopback port."""

import contextlib
import http.client
import io
import itertools
import json
import socket
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from aws_lambda_powertools import Logger

from kanon import clock
from kanon.cli.serve_data import Credentials
from kanon.client.connection import HttpAnswer
from kanon.cors import Cors
from kanon.serving.access import AuthMode
from kanon.serving.api_keys import ApiKeys
from kanon.serving.directory import Given, open_directory
from kanon.serving.http import NO_PAGES, Server
from kanon.serving.lists import Lister
from kanon.serving.relayed import open_gateway
from kanon.serving.reporting import RequestedParameters, open_reporting
from kanon.serving.service import Service

PERIOD = 60
TYPES = {"fledge": {"k": 50, "window": 24, "profile": "published"}}
START = 1_800_000_000.0  # a whole step
KEYS = Credentials(AuthMode.KEY, AuthMode.KEY, None, None, None)
NO_REPORTS = RequestedParameters()
_numbers = itertools.count()
JSON = {"Content-Type": "application/json"}


class Machine:
    """The service over a directory. Steps are evaluated when a test says so.

    Attributes:
        now: the time (Unix s), which only tests move.
        key: an API key.
        logs: what the service has logged.
    """

    def __init__(
        self,
        path: Path,
        credentials: Credentials,
        cors: Cors,
        types: dict[str, Any],
        asked: RequestedParameters,
        *,
        gateway: bool,
    ) -> None:
        self.now = START
        self.logs = io.StringIO()
        self.directory = open_directory(path, Given(PERIOD, json.dumps(types)), self.now)
        keys = ApiKeys(lambda: self.directory.control.database)
        self.key = keys.make(None, self.now)[1]
        logger = Logger(service=f"machine-{next(_numbers)}", level="INFO", stream=self.logs)  # one name has one stream
        try:
            self.reporting = open_reporting(self.directory, asked)
        except BaseException:
            self.directory.close()
            raise
        relayed = open_gateway(self.directory) if gateway else None
        lister = Lister(self.directory) if any(type_.listed for type_ in self.directory.types.values()) else None
        access = credentials.access(keys.has, self.directory.types.values())
        enrolment = credentials.enrolment(self.directory, keys)
        self.service = Service(self.directory, access, logger, self.reporting, relayed, lister, enrolment)
        self.server = Server(
            self.service.answer, "127.0.0.1", 0, lambda found: logger.error("unexpected", extra=found), cors
        )

    def close(self) -> None:
        self.server.close()
        if self.reporting is not None:
            self.reporting.close()
        self.directory.close()

    def request(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None, *, key: bool = True
    ) -> HttpAnswer:
        sent = {**JSON, **({"Authorization": f"Bearer {self.key}"} if key else {}), **(headers or {})}
        content = None if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        with closing(http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=20)) as connection:
            with contextlib.suppress(BrokenPipeError):  # it may refuse a body before all of it was sent
                connection.request(method, path, content, sent)
            answer = connection.getresponse()
            return HttpAnswer(answer.status, answer.getheaders(), answer.read())

    def socket(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.server.port), timeout=20)

    def sent(self, content: bytes) -> bytes:
        """What the service answers to bytes, until it closes the connection or refuses to read more."""
        got = b""
        with self.socket() as connection, contextlib.suppress(ConnectionError):
            connection.sendall(content)
            with contextlib.suppress(OSError):  # it may be closed already, and its answer still to be read
                connection.shutdown(socket.SHUT_WR)
            while part := connection.recv(65536):
                got += part
        return got

    def evaluate(self) -> float:
        """Move to when the current step is evaluated and visible, evaluate it, and publish its lists."""
        end = (self.now // PERIOD + 1) * PERIOD
        self.now = end + 3
        wait = self.service.evaluating.turn(self.now)
        self.now = end + PERIOD // 2 + 1
        if self.service.listing is not None:
            self.service.listing.turn(self.now)
        return wait


@contextmanager
def machine(
    path: Path,
    credentials: Credentials = KEYS,
    cors: Cors = NO_PAGES,
    types: dict[str, Any] = TYPES,
    asked: RequestedParameters = NO_REPORTS,
    *,
    gateway: bool = False,
) -> Iterator[Machine]:
    with pytest.MonkeyPatch.context() as patch:
        made = Machine(path, credentials, cors, types, asked, gateway=gateway)
        patch.setattr(clock, "now", lambda: made.now)
        try:
            yield made
        finally:
            made.close()
            sys.stdout.flush()
