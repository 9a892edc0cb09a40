"""Asks a verifier of attestations over HTTP (:mod:`kanon.gate.attesting`). Nothing of it is logged."""

import http.client
import threading
from ipaddress import ip_address
from urllib.parse import urlsplit

from kanon.errors import ConfigurationError
from kanon.gate.attesting import MOST_ANSWER_BYTES, NoVerdictError

SECONDS = 5.0
"""From the first byte to the last."""
MOST_AT_ONCE = 4
"""Strangers may ask: a slow verifier must leave the service its other threads."""


class AttestationVerifier:
    """Sends each question as POST to one address. It follows no redirection, and asks once.

    Args:
        url: the address: ``https://``, or ``http://`` of this machine.
        seconds: the longest time that one question may take.

    Raises:
        ConfigurationError: it is another address.
    """

    def __init__(self, url: str, seconds: float = SECONDS) -> None:
        try:
            parts = urlsplit(url)
            host, port = parts.hostname or "", parts.port
        except ValueError:
            raise ConfigurationError(_ADDRESS) from None
        safe = parts.scheme == "https" or (parts.scheme == "http" and _is_loopback(host))
        if not safe or not host or parts.username is not None or parts.fragment or not url.isascii() or " " in url:
            raise ConfigurationError(_ADDRESS)
        self._made = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        self._address, self._seconds = (host, port), seconds
        self._path = f"{parts.path or '/'}{f'?{parts.query}' if parts.query else ''}"
        self._free = threading.BoundedSemaphore(MOST_AT_ONCE)

    def __call__(self, asked: bytes) -> bytes:
        """The answer.

        Raises:
            NoVerdictError: there is none: it is late, too large, or not 200; or too many questions are open.
        """
        if not self._free.acquire(blocking=False):
            raise NoVerdictError
        try:
            return self._ask(asked)
        except (OSError, http.client.HTTPException):
            raise NoVerdictError from None
        finally:
            self._free.release()

    def _ask(self, asked: bytes) -> bytes:
        host, port = self._address
        connection = self._made(host, port, timeout=self._seconds)
        late = threading.Timer(self._seconds, lambda: _cut(connection))  # a timeout alone is one of each byte
        try:
            late.start()
            connection.connect()
            if not late.is_alive():  # it found no connection that it could cut
                raise NoVerdictError
            connection.request("POST", self._path, asked, {"Content-Type": "application/json"})
            with connection.getresponse() as response:
                answer = response.read(MOST_ANSWER_BYTES + 1)
                whole = response.length in (None, 0) and len(answer) <= MOST_ANSWER_BYTES
                if response.status != 200 or not whole or not late.is_alive():
                    raise NoVerdictError
                return answer
        finally:
            late.cancel()
            connection.close()


_ADDRESS = "the address of a verifier is https://..., or http://127.0.0.1:PORT/... of this machine"


def _cut(connection: http.client.HTTPConnection) -> None:
    """End a connection that another thread reads."""
    found = connection.sock
    if found is not None:
        try:
            found.shutdown(2)
        except OSError:
            return


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
