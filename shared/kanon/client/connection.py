"""One persistent HTTP connection to the service."""

from __future__ import annotations

import base64
import http.client
import os
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol
from urllib.parse import SplitResult, unquote, urlsplit
from urllib.request import getproxies, proxy_bypass

from kanon.client.auth import Auth, Headers
from kanon.client.errors import NoAnswerError

TIMEOUT = 30.0
"""Seconds for one request; a cold start takes a few."""
PIECE = 1 << 16
"""Bytes of an answer that are read at once."""


class Reply(Protocol):
    """An HTTP answer of any transport."""

    @property
    def status(self) -> int:
        """For example 200."""

    @property
    def headers(self) -> Iterable[tuple[str, str]]:
        """Names and values; a name may occur twice."""

    @property
    def body(self) -> bytes:
        """The whole body."""


Transport = Callable[[str, str, bytes, Headers], Reply]
"""Sends method, path, body and headers and returns the answer: a Connection, or ``kanon.local.Stack.request``."""


@dataclass(frozen=True)
class HttpAnswer:
    """An HTTP answer."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes


def address(url: str) -> SplitResult:
    """The parts of the address of a service.

    Raises:
        ValueError: ``url`` is not such an address.
    """
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query:
        raise ValueError(f"{shown(url)!r} is not an address of the service: give http://host:port or https://host")
    return parts


def shown(url: str) -> str:
    """An address without user name and password, for messages."""
    scheme, slashes, rest = url.rpartition("://")
    return f"{scheme}{slashes}{rest.rpartition('@')[2]}"


def no_answer(url: str, error: Exception) -> NoAnswerError:
    """The error of a request that nobody answered."""
    return NoAnswerError(
        f"no answer from {shown(url)} ({str(error) or type(error).__name__}): "
        "check the address, and that the service runs and can be reached"
    )


class Connection:
    """A connection to ``url``. The first request opens it; it stays open until closed.

    Threads take turns; a process that forks opens its own. Proxies are those of the environment (``HTTPS_PROXY``,
    ``NO_PROXY``), but this machine is called directly.

    Args:
        url: ``http://host:port`` or ``https://host``, with a path if the API has one.
        timeout: seconds to wait for an answer.
        auth: adds a token or a signature to every request.

    Raises:
        ValueError: ``url`` is not such an address.
    """

    def __init__(self, url: str, *, timeout: float = TIMEOUT, auth: Auth | None = None) -> None:
        parts = address(url)
        self._url = url.rstrip("/")
        self._auth, self._timeout = auth, timeout
        self._connection, self._prefix, self._headers = _opening(parts)
        self._process, self._lock = os.getpid(), threading.Lock()

    def __call__(
        self,
        method: str,
        path: str,
        body: bytes = b"",
        headers: Headers = {},  # noqa: B006
        within: float | None = None,
    ) -> HttpAnswer:
        """Send a request. If the connection was closed meanwhile, send it again over a new one.

        Args:
            method: for example ``POST``.
            path: behind the address, with the query.
            body: the bytes to send.
            headers: names and values.
            within: seconds for this request, if they are fewer than the timeout.

        Raises:
            NoAnswerError: nobody answered in time.
        """
        if self._auth is not None:
            headers = self._auth(method, self._url + path, body, headers)
        seconds = self._timeout if within is None else min(within, self._timeout)
        self._after_a_fork()
        with self._lock:
            kept = self._connection.sock is not None
            try:
                try:
                    return self._send(method, path, body, headers, seconds)
                except (http.client.RemoteDisconnected, BrokenPipeError, ConnectionResetError):
                    if not kept:
                        raise
                    self._connection.close()
                    return self._send(method, path, body, headers, seconds)
            except (OSError, http.client.HTTPException) as error:
                self._connection.close()
                raise no_answer(self._url, error) from error

    def _after_a_fork(self) -> None:
        """Leave the socket and the lock of the parent process alone."""
        if self._process != os.getpid():
            self._process, self._lock = os.getpid(), threading.Lock()
            self._connection.close()

    def _send(self, method: str, path: str, body: bytes, headers: Headers, seconds: float) -> HttpAnswer:
        end = time.monotonic() + seconds
        self._connection.timeout = seconds
        if self._connection.sock is not None:
            self._connection.sock.settimeout(seconds)
        self._connection.request(method, self._prefix + path, body or None, {**self._headers, **headers})
        answer = self._connection.getresponse()
        pieces = []
        while piece := answer.read1(PIECE):
            pieces.append(piece)
            if time.monotonic() > end:
                raise TimeoutError("timed out: the answer comes too slowly")
        if answer.length:
            raise http.client.IncompleteRead(b"", answer.length)
        answer.read()  # nothing, but the connection is free again
        return HttpAnswer(answer.status, answer.getheaders(), b"".join(pieces))

    def close(self) -> None:
        """Close the connection; the next request opens it again."""
        self._after_a_fork()
        with self._lock:
            self._connection.close()


def _opening(parts: SplitResult) -> tuple[http.client.HTTPConnection, str, Headers]:
    """A connection, direct or through a proxy; the prefix of its paths; headers for the proxy."""
    host, port, prefix = parts.hostname or "", parts.port, parts.path.rstrip("/")
    secure = parts.scheme == "https"
    kind = http.client.HTTPSConnection if secure else http.client.HTTPConnection
    place = None if host in ("127.0.0.1", "::1", "localhost") or proxy_bypass(host) else getproxies().get(parts.scheme)
    if not place:
        return kind(host, port, timeout=TIMEOUT), prefix, {}
    proxy = urlsplit(place if "://" in place else f"http://{place}")
    headers = {}
    if proxy.username:
        credentials = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}"
        headers["Proxy-Authorization"] = "Basic " + base64.b64encode(credentials.encode()).decode()
    connection = kind(proxy.hostname or "", proxy.port, timeout=TIMEOUT)
    if not secure:
        return connection, f"http://{parts.netloc.rpartition('@')[2]}{prefix}", headers
    connection.set_tunnel(host, port or 443, headers)
    return connection, prefix, {}
