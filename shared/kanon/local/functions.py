"""Lambda functions run in this process: cold starts, context, captured output.

Each cold start imports the function's module from its file under a new name, with exactly the
environment variables of the template. So a test can have two workers, or restart one, as Lambda does.
"""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import json
import os
import sys
import threading
import time
import traceback
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO, cast

import boto3

from kanon import aws
from kanon.errors import Error
from kanon.local.template import ACCOUNT, REGION

_OWN_PREFIXES = ("AWS_", "KANON_", "POWERTOOLS_")  # never leak from the developer's shell
_numbers = itertools.count()
# Powertools stores the current request in a class. Here two functions share a process, unlike on Lambda, and
# without this lock they would read each other's request.
_answering = threading.RLock()
_cold_start = threading.RLock()  # os.environ belongs to the whole process


def function_arn(name: str) -> str:
    """The ARN of a function, as Lambda's context and API Gateway name it."""
    return f"arn:aws:lambda:{REGION}:{ACCOUNT}:function:{name}"


class FunctionError(Error):
    """A handler raised. As on Lambda, the caller sees only the type and the message."""

    def __init__(self, error: Exception) -> None:
        super().__init__(f"{type(error).__name__}: {error}")
        self.payload = {"errorType": type(error).__name__, "errorMessage": str(error)}


@dataclass
class HandlerContext:
    """Lambda's second argument of a handler. ``left`` returns the seconds until the timeout."""

    function_name: str
    memory_limit_in_mb: str
    left: Callable[[], float]
    aws_request_id: str = field(default_factory=lambda: str(uuid.uuid4()))

    @property
    def invoked_function_arn(self) -> str:
        """The function's ARN."""
        return function_arn(self.function_name)

    def get_remaining_time_in_millis(self) -> int:
        """Milliseconds until the timeout, never negative."""
        return max(0, int(self.left() * 1000))


@dataclass(frozen=True)
class Function:
    """A function as the template defines it. ``timeout`` in s, ``memory`` in MB."""

    name: str
    directory: Path
    handler: str
    environment: Mapping[str, str]
    timeout: float
    memory: int
    session: Callable[[str], boto3.Session]
    logs: TextIO
    alias: str = ""  # ARN of the alias that callers use
    on_failure: str | None = None  # ARN of the destination of failed asynchronous invocations

    @property
    def arn(self) -> str:
        """The function's ARN."""
        return function_arn(self.name)

    def cold_start(self) -> Environment:
        """Import a new copy of the handler with the function's environment variables.

        Raises:
            FunctionError: the import failed.
        """
        module_name, function_name = self.handler.rsplit(".", 1)
        path = self.directory / f"{module_name}.py"
        name = f"{self.directory.name}_{module_name}_{next(_numbers)}"
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        process = _Process(self.session(self.directory.name), self.logs)
        with process, self._variables():
            try:
                spec.loader.exec_module(module)
            except Exception as error:
                traceback.print_exc(file=self.logs)
                raise FunctionError(error) from error
        return Environment(self, getattr(module, function_name), process)

    @contextlib.contextmanager
    def _variables(self) -> Iterator[None]:
        """The environment variables of a fresh Lambda process."""
        runtime = {
            "AWS_LAMBDA_FUNCTION_NAME": self.name,
            "AWS_LAMBDA_FUNCTION_MEMORY_SIZE": str(self.memory),
            "AWS_REGION": REGION,
            "AWS_DEFAULT_REGION": REGION,
            "_HANDLER": self.handler,
            "TZ": ":UTC",
        }
        with _cold_start:
            outside = dict(os.environ)
            inherited = {k: v for k, v in outside.items() if not k.startswith(_OWN_PREFIXES)}
            os.environ.clear()
            os.environ.update({**inherited, **runtime, **self.environment})
            try:
                yield
            finally:
                os.environ.clear()
                os.environ.update(outside)


class Environment:
    """One warm copy of a function. As on Lambda, it handles one event at a time."""

    def __init__(self, function: Function, handler: Callable[[Any, HandlerContext], Any], process: _Process) -> None:
        self._function = function
        self._handler = handler
        self._process = process
        self._busy = threading.Lock()

    def invoke(self, event: Any, timeout: float | None = None) -> Any:
        """The handler's answer to a JSON event; ``FunctionError`` if it raises.

        ``timeout`` (s) replaces the template's, to test a worker near its limit.
        """
        function = self._function
        deadline = time.monotonic() + (function.timeout if timeout is None else timeout)
        context = HandlerContext(function.name, str(function.memory), lambda: deadline - time.monotonic())
        answering = _answering if "requestContext" in event else contextlib.nullcontext()
        with self._busy, answering, self._process:
            try:
                result = self._handler(json.loads(json.dumps(event)), context)
                return json.loads(json.dumps(result))
            except Exception as error:
                traceback.print_exc(file=function.logs)
                raise FunctionError(error) from error


class _Process:
    """The state of a Lambda process. Here it belongs to the thread that runs the function.

    Every event runs inside it: output goes to the function's log, and its AWS clients come from the function's session.
    For this, ``sys.stdout``, ``sys.stderr`` and ``aws.session`` are objects that look up the current thread.
    """

    def __init__(self, session: boto3.Session, logs: TextIO) -> None:
        self.session = session
        self.logs = logs

    def __enter__(self) -> None:
        if not isinstance(sys.stdout, _Output):
            sys.stdout = cast(TextIO, _Output(sys.stdout))
        if not isinstance(sys.stderr, _Output):
            sys.stderr = cast(TextIO, _Output(sys.stderr))
        if not isinstance(aws.session, _Session):
            aws.session = cast(Any, _Session(aws.session))
        self._outer = _thread.process
        _thread.process = self

    def __exit__(self, *_: object) -> None:
        _thread.process = self._outer


class _Thread(threading.local):
    """The process whose function runs in this thread, if any."""

    process: _Process | None = None


_thread = _Thread()


class _Output:
    """A stdout or stderr that writes to the log of the function running in this thread, if any.

    It is not an ``io`` class: those close and flush when they are collected, and the stream behind it may already
    be closed by then.
    """

    def __init__(self, outside: TextIO) -> None:
        self.outside = outside

    def __getattr__(self, name: str) -> Any:
        return getattr(_thread.process.logs if _thread.process else self.outside, name)


class _Session:
    """``aws.session``: it makes the clients of the function running in this thread, if any."""

    def __init__(self, outside: Callable[[], Any]) -> None:
        self.outside = outside

    def __call__(self) -> Any:
        return self if _thread.process else self.outside()

    def create_client(self, service: str, **options: Any) -> Any:
        """A client of the function's own session."""
        assert _thread.process is not None
        return _thread.process.session.client(service, **options)  # type: ignore[call-overload]


def release_process() -> None:
    """Restore the process's own output and session."""
    if isinstance(sys.stdout, _Output):
        sys.stdout = sys.stdout.outside
    if isinstance(sys.stderr, _Output):
        sys.stderr = sys.stderr.outside
    maker: object = aws.session
    if isinstance(maker, _Session):
        aws.session = cast(Any, maker.outside)
