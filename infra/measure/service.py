"""The functions as Lambda runs them, warm, on an emulator in another process.

The processor time of this process is measured: the function's code and its AWS client. It includes neither the
emulator's time nor the time spent waiting for it.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import runpy
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

import botocore.session

from kanon import aws
from kanon.gate.types import Type, read_types
from kanon.local import Stack
from kanon.local.functions import Context
from kanon.local.gateway import Request, event

PERIOD = 3600
START = 1_700_000_000 // PERIOD * PERIOD
"""The start of the service's clock: the first second of a step."""
TYPES = json.dumps({"fledge": {"k": 50, "window": 720, "profile": "published"}})

CONTEXT = Context("bench", "1769", lambda: 120.0)


def fledge(**changed: int) -> Type:
    """The type of the rows, with some parameters changed."""
    (entry,) = json.loads(TYPES).values()
    return read_types(json.dumps({"fledge": {**entry, **changed}}), PERIOD)["fledge"]


class Service:
    """A stack whose functions are started in this process, with nothing between them and boto3.

    ``dynamodb`` is a client as the functions have one: the bare calls of a row use it too, so that a row compares code
    and not configurations of a client.
    """

    def __init__(self, stack: Stack) -> None:
        self.stack = stack
        self.tables = stack.storage.tables
        self.environments = {name: dict(function.environment) for name, function in stack.functions.items()}
        with variables(self.environments["join"]):
            self.dynamodb = aws.dynamodb()
        self._handlers: dict[str, Any] = {}

    def request(self, method: str, path: str, body: object) -> dict[str, Any]:
        """The event of a request."""
        asked = Request(method, path, (("content-type", "application/json"),), json.dumps(body).encode())
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
        """A table for the bare calls. A key is binary, or of the type that follows its name: ``part:S``."""
        attributes = [key.partition(":")[::2] for key in keys]
        self.dynamodb.create_table(
            TableName=name,
            BillingMode="PAY_PER_REQUEST",
            AttributeDefinitions=[{"AttributeName": key, "AttributeType": kind or "B"} for key, kind in attributes],  # type: ignore[typeddict-item]
            KeySchema=[
                {"AttributeName": key, "KeyType": kind}  # type: ignore[typeddict-item]
                for (key, _), kind in zip(attributes, ("HASH", "RANGE"), strict=False)
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
    with Stack(parameters or {}, engine="ministack", start=START, seed=1) as stack:
        aws.session = cache(botocore.session.get_session)  # the functions' own, as their environment variables say
        try:
            yield Service(stack)
        finally:
            aws.session = made_by
