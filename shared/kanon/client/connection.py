"""One persistent HTTP connection to the service."""

from __future__ import annotations

import http.client
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol
from urllib.parse import urlsplit

from kanon.client.errors import NoAnswerError

Headers = Mapping[str, str]
Sign = Callable[[str, str, bytes, Headers], Headers]
"""Takes method, URL, body and headers; returns the headers to send, the signature among them."""

TIMEOUT = 30.0
"""Seconds for one request; a cold start takes a few."""


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


class Connection:
    """A connection to ``url``. The first request opens it; it stays open until closed. It is not thread-safe.

    Args:
        url: ``http://host:port`` or ``https://host``, with a path if the API has one.
        timeout: seconds to wait for an answer.
        sign: signs every request, for example with AWS Signature Version 4.

    Raises:
        ValueError: ``url`` is not such an address.
    """

    def __init__(self, url: str, *, timeout: float = TIMEOUT, sign: Sign | None = None) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query:
            raise ValueError(f"{url!r} is not an address of the service: give http://host:port or https://host")
        self._url = url.rstrip("/")
        self._prefix = parts.path.rstrip("/")
        self._sign = sign
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        self._connection = kind(parts.hostname, parts.port, timeout=timeout)

    def __call__(self, method: str, path: str, body: bytes = b"", headers: Headers = {}) -> HttpAnswer:  # noqa: B006
        """Send a request. If the connection was closed meanwhile, send it again over a new one.

        Raises:
            NoAnswerError: nobody answered.
        """
        if self._sign is not None:
            headers = self._sign(method, self._url + path, body, headers)
        kept = self._connection.sock is not None
        try:
            try:
                return self._send(method, path, body, headers)
            except (http.client.RemoteDisconnected, BrokenPipeError, ConnectionResetError):
                if not kept:
                    raise
                self.close()
                return self._send(method, path, body, headers)
        except (OSError, http.client.HTTPException) as error:
            self.close()
            raise NoAnswerError(
                f"no answer from {self._url} ({str(error) or type(error).__name__}): "
                "check the address, and that the service runs and can be reached"
            ) from error

    def _send(self, method: str, path: str, body: bytes, headers: Headers) -> HttpAnswer:
        self._connection.request(method, self._prefix + path, body or None, headers)
        answer = self._connection.getresponse()
        return HttpAnswer(answer.status, answer.getheaders(), answer.read())

    def close(self) -> None:
        """Close the connection; the next request opens it again."""
        self._connection.close()
