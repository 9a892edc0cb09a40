"""The AWS emulator on which the local stack runs: ministack, a child process. The tests bring another one.

Rows expire by the stack's clock only, see ``expire``, so the clock of an engine must never expire them.
"""

from __future__ import annotations

import contextlib
import http.client
import importlib.util
import os
import socket
import subprocess
import sys
import tempfile
import time
import weakref
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import boto3
import botocore.loaders
import botocore.session
from botocore.config import Config

from kanon.dynamo.batches import WRITES_A_CALL, chunks
from kanon.errors import Error
from kanon.local.source import ROOT
from kanon.local.template import ACCOUNT, REGION

MINISTACK_PYTHON = ROOT / ".venv-ministack" / "bin" / "python"
"""ministack's environment in a checkout with the newest boto3, which ministack does not support."""
_START_SECONDS = 60.0


class EngineError(Error, RuntimeError):
    """The emulator cannot be started; the message says what to do."""


_LOADER = botocore.loaders.create_loader()  # reads each service's description once, not per session


class _Core(botocore.session.Session):
    """A botocore session that keeps a list of its clients."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.clients: weakref.WeakSet[Any] = weakref.WeakSet()

    def create_client(self, *args: Any, **options: Any) -> Any:
        client = super().create_client(*args, **options)
        self.clients.add(client)
        return client


class Emulator(ABC):
    """An emulator of DynamoDB, SQS, S3 and Secrets Manager."""

    endpoint: str | None = None

    def __init__(self) -> None:
        self._sessions: list[_Core] = []

    @abstractmethod
    def start(self) -> None:
        """Start, or raise ``EngineError``."""

    @abstractmethod
    def stop(self) -> None:
        """Stop and discard all data. Stopping twice is harmless."""

    def close_clients(self) -> None:
        """Close the connections of every client made from ``session``."""
        for core in self._sessions:
            for client in core.clients:
                client.close()
        self._sessions.clear()

    @abstractmethod
    def expire(self, table: str, attribute: str, now: float) -> int:
        """Delete the rows whose time to live passed before ``now``; return how many."""

    def session(self) -> boto3.Session:
        """A session whose clients reach only this engine, independent of the shell's AWS configuration."""
        alone = {
            "profile": (None, None, None, None),
            "config_file": (None, None, os.devnull, None),
            "credentials_file": (None, None, os.devnull, None),
        }
        core = _Core(session_vars=alone)
        core.register_component("data_loader", _LOADER)
        # A fixed user agent: botocore would build its own for each call, a seventh of the call's time. The engine is
        # on this machine, so a proxy of the shell (HTTP_PROXY) could not reach it.
        core.set_default_client_config(Config(user_agent="kanon-local", proxies={}))
        self._sessions.append(core)
        config = core.get_component("config_store")
        config.set_config_variable("ignore_configured_endpoint_urls", self.endpoint is None)
        if self.endpoint is not None:
            config.set_config_variable("endpoint_url", self.endpoint)
        return boto3.Session(
            aws_access_key_id="local",
            aws_secret_access_key="local",  # noqa: S106, checked by nobody
            region_name=REGION,
            botocore_session=core,
        )

    def environment(self) -> dict[str, str]:
        """The variables with which a function's process reaches the engine. Lambda also passes credentials this way."""
        variables = {"AWS_ACCESS_KEY_ID": "local", "AWS_SECRET_ACCESS_KEY": "local"}
        if self.endpoint is not None:
            variables["AWS_ENDPOINT_URL"] = self.endpoint
        return variables


def _ministack_python() -> str:
    """The interpreter that has ministack: this one, or that of the checkout's environment for it."""
    if importlib.util.find_spec("ministack") is not None:
        return sys.executable
    if MINISTACK_PYTHON.exists():
        return str(MINISTACK_PYTHON)
    raise ModuleNotFoundError("No module named 'ministack'", name="ministack")


@contextlib.contextmanager
def _held_port() -> Iterator[int]:
    """A free loopback port that no other process is given meanwhile.

    Linux gives nobody a port that is bound, and lets the child bind it too: both sockets reuse addresses, and this one
    does not listen. Other systems refuse the second socket, so there the port is only free at this moment.
    """
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", 0))
        port = held.getsockname()[1]
        if sys.platform != "linux":
            held.close()
        yield port


class Ministack(Emulator):
    """ministack as a child process on a free loopback port; it ends when this process does.

    ``settings`` are additional environment variables for it, for example ``AUTH="true"``.
    """

    def __init__(self, **settings: str) -> None:
        super().__init__()
        self._settings = settings
        self._child: subprocess.Popen[bytes] | None = None
        self._client: Any = None

    def start(self) -> None:
        """Start the child on a free port; ``EngineError`` if it is missing or does not run."""
        python = _ministack_python()
        with _held_port() as port:
            self._start_on(port, python)

    def _start_on(self, port: int, python: str) -> None:
        environment = {k: v for k, v in os.environ.items() if not k.startswith("AWS_")} | {
            "BIND_HOST": "127.0.0.1",
            "GATEWAY_PORT": str(port),
            "IOT_MTLS_ENABLED": "0",
            "SFTP_ENABLED": "0",
            "SERVICES": "dynamodb,sqs,secretsmanager,s3",
            "LOG_LEVEL": "ERROR",
            "MINISTACK_ACCOUNT_ID": ACCOUNT,
            **self._settings,
        }
        messages = tempfile.TemporaryFile()  # noqa: SIM115, the child writes to it
        self._child = subprocess.Popen(
            [python, str(Path(__file__).with_name("ministack_child.py"))],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=messages,
            start_new_session=True,  # Ctrl-C is for the parent, which then closes the pipe
        )
        self._await(port, messages)
        messages.close()
        self.endpoint = f"http://127.0.0.1:{port}"
        self._client = self.session().client("dynamodb")

    def _await(self, port: int, messages: IO[bytes]) -> None:
        assert self._child is not None
        deadline = time.monotonic() + _START_SECONDS
        while time.monotonic() < deadline:
            if self._child.poll() is not None:
                messages.seek(0)
                raise EngineError(f"ministack ended: {messages.read().decode()[-2000:]}")
            with contextlib.suppress(OSError):
                connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
                with contextlib.closing(connection):
                    connection.request("GET", "/_ministack/health")
                    if connection.getresponse().status == 200:
                        return
            time.sleep(0.05)
        self.stop()
        raise EngineError(f"ministack did not answer within {_START_SECONDS:.0f} s: start it again")

    @property
    def pid(self) -> int:
        """The child's process id."""
        assert self._child is not None
        return self._child.pid

    def stop(self) -> None:
        """End the child and wait for it."""
        self.close_clients()
        if self._child is not None:
            assert self._child.stdin is not None
            self._child.stdin.close()  # the child ends when its pipe closes, also if this process crashes
            try:
                self._child.wait(10)
            except subprocess.TimeoutExpired:
                self._child.kill()
                self._child.wait()
            self._child = None

    def expire(self, table: str, attribute: str, now: float) -> int:
        """Scan for the expired rows and delete them in batches."""
        client = self._client
        keys = [key["AttributeName"] for key in client.describe_table(TableName=table)["Table"]["KeySchema"]]
        names = {f"#k{i}": name for i, name in enumerate(keys)}
        pages = client.get_paginator("scan").paginate(
            TableName=table,
            FilterExpression="#ttl < :now",
            ProjectionExpression=", ".join(names),
            ExpressionAttributeNames={**names, "#ttl": attribute},
            ExpressionAttributeValues={":now": {"N": str(int(now))}},
        )
        expired = [{"DeleteRequest": {"Key": item}} for page in pages for item in page["Items"]]
        for some in chunks(expired, WRITES_A_CALL):
            client.batch_write_item(RequestItems={table: some})
        return len(expired)
