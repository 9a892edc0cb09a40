"""What the measurements run: the functions as Lambda runs them, warm, on an emulator.

The emulator has a process of its own, so neither its time nor the time spent waiting for it is measured: only that of
the functions' code and their AWS client.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import runpy
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

import botocore.session
from botocore.awsrequest import AWSPreparedRequest, AWSResponse
from botocore.compat import HTTPHeaders

from kanon import aws
from kanon.gate.joining import Join, Joining
from kanon.gate.settings import JoinSettings
from kanon.gate.storage.aws.step_log import StepLog
from kanon.gate.types import Type, read_types
from kanon.keys import Secret
from kanon.local import Stack
from kanon.local.functions import HandlerContext
from kanon.local.gateway import GatewayRequest, event
from kanon.noise.words import NoiseKey

PERIOD = 3600
START = 1_700_000_000 // PERIOD * PERIOD
"""The start of the service's clock: the first second of a step."""
TYPES = json.dumps({"fledge": {"k": 50, "window": 720, "profile": "published"}})

KEY = NoiseKey("1", bytes(32))
TAIL = 1.1
"""Exponent of the Pareto distribution of a set's popularity. Near 1, few sets have most of the weight."""
CONTEXT = HandlerContext("bench", "1769", lambda: 120.0)


def fledge(**changed: int) -> Type:
    """The type of the rows, with some parameters changed."""
    (entry,) = json.loads(TYPES).values()
    return read_types(json.dumps({"fledge": {**entry, **changed}}), PERIOD)["fledge"]


class Service:
    """A stack whose functions are started in this process, with nothing between them and boto3.

    ``dynamodb`` and ``s3`` are clients as the functions have them: the bare calls of a row use them too, so that a row
    compares code and not configurations of a client.
    """

    def __init__(self, stack: Stack) -> None:
        self.stack = stack
        self.tables = stack.storage.tables
        self.environments = {name: dict(function.environment) for name, function in stack.functions.items()}
        self.bucket = self.environments["evaluate"]["KANON_STATES_BUCKET"]
        with variables(self.environments["join"]):
            self.dynamodb, self.s3 = aws.dynamodb(), aws.s3()
        self._handlers: dict[str, Any] = {}

    def request(self, method: str, path: str, body: object) -> dict[str, Any]:
        """The event of a request."""
        asked = GatewayRequest(method, path, (("content-type", "application/json"),), json.dumps(body).encode())
        found = self.stack.gateway.find(asked)
        assert found is not None, path
        return event(asked, *found, self.stack.clock.now())

    def call(self, name: str, asked: dict[str, Any]) -> Any:
        """The answer of a function; its first event starts it."""
        with contextlib.redirect_stdout(io.StringIO()):
            if name not in self._handlers:
                path = self.stack.functions[name].directory / "app.py"
                with variables(self.environments[name]):
                    self._handlers[name] = runpy.run_path(str(path))["handler"]
                    return self._handlers[name](asked, CONTEXT)
            return self._handlers[name](asked, CONTEXT)

    def new_table(self, name: str, *keys: str) -> str:
        """A table for the bare calls; its keys are binary."""
        self.dynamodb.create_table(
            TableName=name,
            BillingMode="PAY_PER_REQUEST",
            AttributeDefinitions=[{"AttributeName": key, "AttributeType": "B"} for key in keys],
            KeySchema=[
                {"AttributeName": key, "KeyType": kind}  # type: ignore[typeddict-item]
                for key, kind in zip(keys, ("HASH", "RANGE"), strict=False)
            ],
        )
        return name


@contextlib.contextmanager
def variables(wanted: Mapping[str, str]) -> Iterator[None]:
    """The environment variables of a function, for its cold start and for creating its clients."""
    outside = dict(os.environ)
    os.environ.update({"AWS_DEFAULT_REGION": "us-east-1", "AWS_LAMBDA_FUNCTION_NAME": "bench", **wanted})
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(outside)


@contextlib.contextmanager
def service(parameters: Mapping[str, str] | None = None) -> Iterator[Service]:
    """A service that runs until the block ends, on a simulated clock."""
    made_by = aws.session
    with Stack(parameters or {}, start=START, seed=1) as stack:
        aws.session = cache(botocore.session.get_session)  # the functions' own, as their environment variables say
        try:
            yield Service(stack)
        finally:
            aws.session = made_by


def workload(type_name: str, sets: int, seed: int) -> Iterator[Join]:
    """An endless stream of joins of different clients in ``sets`` sets."""
    chance = random.Random(seed)
    weights = [1 / (rank + 1) ** TAIL for rank in range(sets)]
    names = [chance.randbytes(32) for _ in range(sets)]
    number = 0
    while True:
        for name in chance.choices(names, weights, k=1000):
            number += 1
            yield Join(type_name, name, "client", f"client-{seed}-{number}".encode())


def log_of(stack: Stack, client: Any) -> StepLog:
    """The log of a stack, on a client of DynamoDB."""
    settings = JoinSettings.from_environment(stack.functions["join"].environment)
    return StepLog(client, stack.storage.tables["StepLog"], settings.layouts)


def joining_of(stack: Stack, client: Any) -> Joining:
    """The use case of ``join`` with the settings and secrets of a stack, on a client of DynamoDB."""
    settings = JoinSettings.from_environment(stack.functions["join"].environment)
    return Joining(
        settings.read_types(),
        Secret.derived("set-pepper", stack.storage.secrets["SetPepper"]),
        Secret.derived("client-key", stack.storage.secrets["ClientKey"]),
        log_of(stack, client),
        settings.period,
        settings.outage_allowance,
    )


def answer(request: AWSPreparedRequest, status: int, body: object) -> AWSResponse:
    """An answer that takes the place of an engine's, for botocore's event ``before-send``. ``body`` is sent as JSON."""
    return AWSResponse(request.url, status, HTTPHeaders(), _Raw(json.dumps(body).encode()))


class _Raw(io.BytesIO):
    """A body that botocore can read."""

    def stream(self, **_: object) -> Iterator[bytes]:
        yield self.read()
