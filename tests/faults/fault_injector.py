"""Injects faults between a function and AWS, below botocore's own retries, where every call can fail.

A *behaviour* answers each request. It may let it pass, change it, answer instead of the engine, or raise: a network
error as botocore raises it, or ``ProcessDied``.
"""

import json
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, NoReturn
from urllib.parse import unquote, urlsplit
from xml.sax.saxutils import escape

import boto3
from botocore.awsrequest import AWSPreparedRequest, AWSResponse
from botocore.exceptions import BotoCoreError
from moto.core.botocore_stubber import MockRawResponse
from moto.core.models import botocore_stubber

SECONDS_A_CALL = 0.01


class ProcessDied(BaseException):
    """The process of a worker has died: its code cannot catch this, and its later calls do not arrive."""


@dataclass
class Call:
    """One request of a worker: the ``attempt``-th of its ``number``-th call, both from 1."""

    worker: "Worker"
    number: int
    attempt: int
    operation: str  # "dynamodb.PutItem"
    request: AWSPreparedRequest

    @property
    def on_objects(self) -> bool:
        """Whether the call is to S3, which uses XML and bodies of objects."""
        return self.operation.startswith("s3.")

    @property
    def body(self) -> dict[str, Any]:
        """The request as JSON, which all services here but S3 use."""
        body: dict[str, Any] = json.loads(self.request.body)
        return body

    @property
    def object(self) -> tuple[str, str]:
        """The last part of the bucket's name, and the key; the key is empty if a whole bucket is asked."""
        host, path = urlsplit(_text(self.request.url))[1:3]
        bucket, found, _ = host.partition(".s3.")
        key = path[1:]
        if not found:
            bucket, _, key = key.partition("/")
        return bucket.rpartition("-")[2], unquote(key)

    @property
    def table(self) -> str:
        """The last part of the table's name, or the empty string."""
        if self.on_objects:
            return ""
        if "TransactItems" in self.body:
            ((asked,), *_) = (entry.values() for entry in self.body["TransactItems"])
            return str(asked["TableName"]).rpartition("-")[2]
        named = self.body.get("TableName") or next(iter(self.body.get("RequestItems", {"": 0})))
        return str(named).rpartition("-")[2]

    def send(self, body: dict[str, Any] | bytes | None = None) -> AWSResponse:
        """Send the request, or another body instead, to the engine. Returns the engine's answer."""
        request = self.request
        if body is not None:
            data = body if isinstance(body, bytes) else json.dumps(body).encode()
            request = AWSPreparedRequest(
                request.method, request.url, request.headers.copy(), data, request.stream_output
            )
            request.headers["Content-Length"] = str(len(data))
        response = botocore_stubber("before-send", request)
        self.worker.effects.append((self.operation, self.number))
        return response

    def die(self) -> NoReturn:
        """The worker dies; what it has not sent yet never arrives."""
        self.worker.dead = True
        raise ProcessDied

    def answer(self, status: int, body: dict[str, Any]) -> AWSResponse:
        """An answer in the engine's place."""
        raw = MockRawResponse(json.dumps(body))
        return AWSResponse(self.request.url, status, {"Content-Type": "application/x-amz-json-1.0"}, raw)

    def error(self, status: int, code: str) -> AWSResponse:
        """An error of the service, in its own form."""
        if not self.on_objects:
            return self.answer(status, {"__type": f"com.amazonaws#{code}", "message": "on purpose"})
        raw = MockRawResponse(f"<Error><Code>{escape(code)}</Code><Message>on purpose</Message></Error>")
        return AWSResponse(self.request.url, status, {"Content-Type": "application/xml"}, raw)


Behaviour = Callable[[Call], AWSResponse]


def undisturbed(call: Call) -> AWSResponse:
    """Every call arrives and is answered."""
    return call.send()


@dataclass
class Worker:
    """One invocation of a function, with its clock and the behaviour of its calls.

    ``skew`` is how far its clock is ahead, ``deadline`` the true time at which Lambda ends it.
    """

    behaviour: Behaviour = undisturbed
    skew: float = 0.0
    deadline: float = float("inf")
    dead: bool = False
    succeeded: bool = False
    calls: list[str] = field(default_factory=list)
    effects: list[tuple[str, int]] = field(default_factory=list)


class FaultInjector:
    """Numbers the calls of each worker and asks its behaviour for their answers."""

    def __init__(self, pass_time: Callable[[float], None], now: Callable[[], float]) -> None:
        self._pass_time = pass_time
        self._now = now
        self._worker: ContextVar[Worker | None] = ContextVar("worker", default=None)
        self.mistake: Exception | None = None

    @property
    def worker(self) -> Worker | None:
        """The worker that runs in this thread, or that has started it with its context."""
        return self._worker.get()

    @worker.setter
    def worker(self, worker: Worker | None) -> None:
        self._worker.set(worker)

    def attach(self, session: boto3.Session) -> boto3.Session:
        """Route all clients that the session will create through this injector."""
        session.events.unregister("before-send", botocore_stubber)
        session.events.register("before-send", self._before_send)
        return session

    def _before_send(self, event_name: str, request: AWSPreparedRequest, **_: Any) -> AWSResponse:
        worker = self.worker
        if worker is None:
            return botocore_stubber(event_name, request)
        self.check_alive(worker)
        self._pass_time(SECONDS_A_CALL)
        operation = event_name.removeprefix("before-send.")
        attempt = int(dict(p.split("=") for p in _text(request.headers["amz-sdk-request"]).split("; "))["attempt"])
        if attempt == 1:
            worker.calls.append(operation)
        call = Call(worker, len(worker.calls), attempt, operation, request)
        try:
            response = worker.behaviour(call)
        except (BotoCoreError, ProcessDied):
            raise
        except Exception as error:
            self.mistake = error  # an error of the test itself: the service must not catch it
            raise
        self.check_alive(worker)
        return response

    def check_alive(self, worker: Worker) -> None:
        """Raise ``ProcessDied`` if the worker is dead or was ended by Lambda at its deadline."""
        if worker.dead or self._now() >= worker.deadline:
            worker.dead = True
            raise ProcessDied


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
