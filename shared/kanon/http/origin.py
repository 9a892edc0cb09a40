"""Admits only requests that came through the edge: they carry a secret in a header (infra/edge.yaml)."""

import hmac
from collections.abc import Callable, Mapping
from typing import Any

from kanon import clock
from kanon.http.answers import error_answer
from kanon.http.bodies import RequestError
from kanon.keys import fetch_edge_values
from kanon.starting import Once

HEADER = "x-kanon-edge"
SECONDS_KEPT = 300.0
NOT_THROUGH_THE_EDGE = error_answer(403, "this address is not public: use the service's own domain name")


class Origin:
    """Checks the header of each request.

    Args:
        read: reads the values that the header may have. They are kept for five minutes. A new value must be known
            everywhere before the edge sends it. An error in the secret's form is kept for a minute.
    """

    def __init__(self, read: Callable[[], tuple[str, ...]]) -> None:
        self._read = read
        self._values = Once(read)
        self._read_again_at = 0.0

    def check(self, event: Mapping[str, Any]) -> None:
        """Compare the header with every value, in a time that does not depend on them.

        Raises:
            RequestError: 403, the header is absent or wrong.
            ConfigurationError: the secret is not of the expected form.
        """
        now = clock.now()
        if now >= self._read_again_at:
            self._values, self._read_again_at = Once(self._read), now + SECONDS_KEPT
        given = str((event.get("headers") or {}).get(HEADER, "")).encode()
        if not sum(hmac.compare_digest(given, value.encode()) for value in self._values()):
            raise RequestError(NOT_THROUGH_THE_EDGE)


def edge_of(secret: str) -> Origin | None:
    """The check of a function behind an edge. ``secret`` is the ARN of the values; it is empty without an edge."""
    return Origin(lambda: _values_of(secret)) if secret else None


def _values_of(secret: str) -> tuple[str, ...]:
    from kanon import aws  # a service without AWS has no edge

    return fetch_edge_values(aws.secrets_manager(), secret)
