"""The local stack in a process of its own, so that the load and what is loaded do not share an interpreter."""

from __future__ import annotations

import io
import json
import multiprocessing
import random
from collections.abc import Iterator
from dataclasses import replace
from multiprocessing.connection import Connection
from typing import Any, Self

import boto3
from botocore.awsrequest import AWSPreparedRequest, AWSResponse
from botocore.compat import HTTPHeaders

from infra.load.workload import Joined
from infra.local import Stack
from kanon.keys import Secret, client_token, set_key
from kanon.mechanism.steps import step_at
from kanon.storage.step_log import StepLog
from kanon.types import read_types

Row = tuple[bytes, int]
"""A set key and a client token."""


class Served:
    """A stack that is served over HTTP until closed; a context manager."""

    def __init__(self, engine: str) -> None:
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, engine), daemon=True)

    def __enter__(self) -> Self:
        self._process.start()
        started: dict[str, Any] = self._connection.recv()
        self.url: str = started["url"]
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
        """From now on DynamoDB refuses this share of the writes of join."""
        self._connection.send(("throttle", share))
        self._connection.recv()

    def rows(self) -> set[Row]:
        """The joins that are in the log, those of the last two hours."""
        self._connection.send(("rows", None))
        rows: set[Row] = self._connection.recv()
        return rows

    def row(self, join: Joined) -> Row:
        """Under which set key and token a join must be in the log."""
        name = set_key(self._pepper, join.type_name, join.set_id)
        bits = self._types[join.type_name].parameters.client_bits
        return name, client_token(self._client_key, name, "client", join.client.encode(), bits)


def _serve(connection: Connection, engine: str) -> None:
    """The process: serves, and answers what it is asked over the connection."""
    throttle = Throttle()
    with Stack({"Slots": "4"}, engine=engine, logs=_Discard()) as stack:
        join = stack.functions["join"]
        stack.functions["join"] = replace(join, session=lambda name: throttle.before(join.session(name)))
        server = stack.serve()
        environment = stack.functions["join"].environment
        connection.send(
            {
                "url": server.url,
                "pepper": stack.storage.secrets["SetPepper"],
                "client_key": stack.storage.secrets["ClientKey"],
                "types": environment["KANON_TYPES"],
            }
        )
        log = StepLog(stack.session.client("dynamodb"), stack.storage.tables["StepLog"])
        while (asked := connection.recv())[0] != "stop":
            if asked[0] == "throttle":
                throttle.share = asked[1]
                connection.send(None)
            else:
                now = step_at(stack.clock.now(), 3600)
                connection.send(
                    {
                        (touched.set_key, token)
                        for step in (now - 1, now)
                        for slot in range(4)
                        for touched in log.touched(step, slot, 1 << 32)
                        for token in touched.joined
                    }
                )
        server.close()


class Throttle:
    """Stands before the engine and refuses a share of the writes, as a busy table does."""

    def __init__(self) -> None:
        self.share = 0.0
        self._chance = random.Random(1)

    def before(self, session: boto3.Session) -> boto3.Session:
        """Have it asked before every write of the session's clients."""
        for operation in ("PutItem", "BatchWriteItem"):
            session.events.register(f"before-send.dynamodb.{operation}", self._before_send)
        return session

    def _before_send(self, request: AWSPreparedRequest, **_: object) -> Any:
        if self._chance.random() >= self.share:
            return None
        body = {"__type": "com.amazonaws#ProvisionedThroughputExceededException", "message": "on purpose"}
        return AWSResponse(request.url, 400, HTTPHeaders(), _Raw(json.dumps(body).encode()))


class _Raw(io.BytesIO):
    """A body as botocore reads it."""

    def stream(self, **_: object) -> Iterator[bytes]:
        yield self.read()


class _Discard(io.StringIO):
    def write(self, text: str) -> int:
        return len(text)
