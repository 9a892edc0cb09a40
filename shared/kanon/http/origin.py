"""Admits only requests that came through the edge: they carry a secret in a header (infra/edge.yaml)."""

import hmac
from collections.abc import Callable, Mapping
from typing import Any

from kanon import clock
from kanon.http.answers import error_answer
from kanon.http.bodies import RequestError

HEADER = "x-kanon-edge"
SECONDS_KEPT = 300.0
NOT_THROUGH_THE_EDGE = error_answer(403, "this address is not public: use the service's own domain name")


class Origin:
    """Checks the header of each request.

    Args:
        read: reads the values that the header may have. They are kept for five minutes. A new value must be known
            everywhere before the edge sends it.
    """

    def __init__(self, read: Callable[[], tuple[str, ...]]) -> None:
        self._read = read
        self._values: tuple[bytes, ...] = ()
        self._read_again_at = 0.0

    def check(self, event: Mapping[str, Any]) -> None:
        """Compare the header with every value, in a time that does not depend on them.

        Raises:
            RequestError: 403, the header is absent or wrong.
        """
        now = clock.now()
        if now >= self._read_again_at:
            self._values = tuple(value.encode() for value in self._read())
            self._read_again_at = now + SECONDS_KEPT
        given = str((event.get("headers") or {}).get(HEADER, "")).encode()
        if not sum(hmac.compare_digest(given, value) for value in self._values):
            raise RequestError(NOT_THROUGH_THE_EDGE)
