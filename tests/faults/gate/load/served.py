"""The local stack in separate processes, so that it does not share an interpreter with the load.

As on Lambda, each environment of the function is a process that answers one request at a time.
"""

from __future__ import annotations

import io
import json
import multiprocessing
import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from multiprocessing.connection import Connection
from multiprocessing.sharedctypes import RawValue
from typing import Any, NoReturn, Self, cast

import boto3
from botocore.awsrequest import AWSPreparedRequest, AWSResponse, HeadersDict
from botocore.httpsession import URLLib3Session

from bench.stack import answer, log_of
from kanon.gate.joining import Join
from kanon.gate.mechanism.steps import step_at
from kanon.gate.names import client_token, set_key
from kanon.gate.parts import keys_of
from kanon.gate.storage.aws.step_joins import StepJoins
from kanon.gate.storage.aws.step_log import StepLog
from kanon.gate.types import read_types
from kanon.keys import Secret
from kanon.local import Stack

Row = tuple[bytes, int]
"""A set key and a client token."""


class Served:
    """A stack that ``environments`` processes serve over HTTP until it is closed; a context manager."""

    def __init__(self, environments: int = 16) -> None:
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, environments), daemon=True)

    def __enter__(self) -> Self:
        self._process.start()
        started: dict[str, Any] = self._connection.recv()
        self.urls: list[str] = started["urls"]
        self._pepper = Secret.derived("set-pepper", started["pepper"])
        self._client_key = Secret.derived("client-key", started["client_key"])
        self._types = read_types(started["types"], 3600)
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.send(("stop", None))
        self._process.join(30)
        if self._process.is_alive():
            self._process.kill()

    def throttle(self, share: float) -> None:
        """Make DynamoDB refuse this share of the writes of join from now on; some batches are refused in part."""
        self._connection.send(("throttle", share))
        self._connection.recv()

    def rows(self) -> set[Row]:
        """The joins of the last two hours that are in the log."""
        self._connection.send(("rows", None))
        rows: set[Row] = self._connection.recv()
        return rows

    def row(self, join: Join) -> Row:
        """The set key and the token that a join must have in the log."""
        name = set_key(self._pepper, join.type_name, join.set_id)
        bits = self._types[join.type_name].parameters.client_bits
        return name, client_token(self._client_key, name, join.kind, join.client, bits)


def _serve(connection: Connection, environments: int) -> None:
    """The process: it serves, and answers requests from the connection."""
    throttle = Throttle()
    with Stack({"Slots": "4"}, logs=_Discard()) as stack:
        join = stack.functions["join"]
        stack.functions["join"] = replace(join, session=lambda name: throttle.before(join.session(name)))
        with _forked(stack, throttle, environments) as urls:
            connection.send(
                {
                    "urls": urls,
                    "pepper": stack.storage.secrets["SetPepper"],
                    "client_key": stack.storage.secrets["ClientKey"],
                    "types": join.environment["KANON_TYPES"],
                }
            )
            log = log_of(stack, stack.session.client("dynamodb"))
            types = list(read_types(join.environment["KANON_TYPES"], 3600))
            while (asked := connection.recv())[0] != "stop":
                if asked[0] == "throttle":
                    throttle.share.value = asked[1]
                    connection.send(None)
                else:
                    now = step_at(stack.clock.now(), 3600)
                    connection.send(_logged(log, now - 1, types) | _logged(log, now, types))


def _logged(log: StepLog, step: int, types: list[str]) -> set[Row]:
    """The joins of a step."""
    rows: set[Row] = set()
    for slot in log.layouts.slots:
        with StepJoins(log, slot, dict.fromkeys(types, 1)) as joins:
            found = joins.joins(step, bytes(32), None)
            rows.update(zip(keys_of(found["key"]), found["token"].tolist(), strict=True))
    return rows


@contextmanager
def _forked(stack: Stack, throttle: Throttle, environments: int) -> Iterator[list[str]]:
    """Copies of this process, each of which serves the stack. Yields their addresses; they end with the block."""
    stack.cold_start("join")  # import shared modules once, before the copies
    ends, alive = os.pipe()
    url_reader, url_writer = os.pipe()
    copies = []
    for number in range(environments):
        copy = os.fork()
        if not copy:
            os.close(alive)
            throttle.chance.seed(number)
            _environment(stack, url_writer, ends)
        copies.append(copy)
    os.close(url_writer)
    with os.fdopen(url_reader) as lines:  # read to its end, because every copy closes it
        urls = lines.read().split()
    try:
        yield urls
    finally:
        os.close(alive)
        for copy in copies:
            os.waitpid(copy, 0)
        os.close(ends)


def _environment(stack: Stack, url_writer: int, ends: int) -> NoReturn:
    """A copy: it serves until the first process closes the other end of ``ends`` or ends itself."""
    try:
        server = stack.serve()
        os.write(url_writer, f"{server.url}\n".encode())
        os.close(url_writer)
        os.read(ends, 1)
    finally:
        os._exit(0)  # the first process stops the shared engine


class Throttle:
    """Intercepts the writes to the engine and refuses a share of them, as a busy table does.

    Every second refused batch is refused in part: half of it is written, the other half is unprocessed.
    """

    def __init__(self) -> None:
        self.share = RawValue("d", 0.0)  # one for all copies of the process
        self.chance = random.Random(1)
        self._http = URLLib3Session()

    def before(self, session: boto3.Session) -> boto3.Session:
        """Intercept every write of the session's clients."""
        for operation in ("PutItem", "BatchWriteItem"):
            session.events.register(f"before-send.dynamodb.{operation}", self._before_send)
        return session

    def _before_send(self, event_name: str, request: AWSPreparedRequest, **_: object) -> Any:
        if self.chance.random() >= self.share.value:
            return None
        if event_name.endswith("BatchWriteItem") and self.chance.random() < 0.5:
            return self._half(request)
        body = {"__type": "com.amazonaws#ProvisionedThroughputExceededException", "message": "on purpose"}
        return answer(request, 400, body)

    def _half(self, request: AWSPreparedRequest) -> AWSResponse:
        """Write only the second half of a batch."""
        ((table, asked),) = json.loads(cast(bytes, request.body))["RequestItems"].items()
        cut = -(-len(asked) // 2)
        if asked[cut:]:
            body = json.dumps({"RequestItems": {table: asked[cut:]}}).encode()
            headers: Any = HeadersDict({**request.headers, "Content-Length": str(len(body))})
            part = AWSPreparedRequest("POST", request.url, headers, body, stream_output=False)
            written = self._http.send(part)
            if written.status_code != 200 or json.loads(written.content).get("UnprocessedItems"):
                raise RuntimeError(f"the engine did not store half of a batch: {written.status_code}")
        return answer(request, 200, {"UnprocessedItems": {table: asked[:cut]}})


class _Discard(io.StringIO):
    def write(self, text: str) -> int:
        return len(text)
