"""Admits only requests that carry a secret in a header: of the edge (infra/edge.yaml), or of a relay to the gateway."""

import hmac
from collections.abc import Callable, Mapping
from typing import Any

from kanon import clock
from kanon.http.answers import ErrorAnswer, error_answer
from kanon.http.bodies import RequestError
from kanon.keys import fetch_header_values
from kanon.starting import Once

HEADER, RELAY_HEADER = "x-kanon-edge", "x-kanon-relay"
RELAYED = "relayed"
"""What the gateway sets in the ``requestContext`` of a request that it decrypted. Callers over HTTP cannot."""
SECONDS_KEPT = 300.0
NOT_THROUGH_THE_EDGE = error_answer(403, "this address is not public: use the service's own domain name")
NOT_A_RELAY = error_answer(403, f"the relay is unknown: it sends the secret of relays as {RELAY_HEADER}")


class Origin:
    """Checks the header of each request.

    Args:
        read: reads the values that the header may have. They are kept for five minutes. A new value must be known
            everywhere before the edge sends it. An error in the secret's form is kept for a minute.
        header: its name.
        refusal: the answer without it.
    """

    def __init__(
        self,
        read: Callable[[], tuple[str, ...]],
        header: str = HEADER,
        refusal: ErrorAnswer = NOT_THROUGH_THE_EDGE,
    ) -> None:
        self._read, self._header, self._refusal = read, header, refusal
        self._values = Once(read)
        self._read_again_at = 0.0

    def check(self, event: Mapping[str, Any]) -> None:
        """Compare the header with every value, in a time that does not depend on them.

        A request that the gateway decrypted has no header; the gateway has checked the outer request.

        Raises:
            RequestError: 403, the header is absent or wrong.
            ConfigurationError: the secret is not of the expected form.
        """
        if event.get("requestContext", {}).get(RELAYED) is True:
            return
        now = clock.now()
        if now >= self._read_again_at:
            self._values, self._read_again_at = Once(self._read), now + SECONDS_KEPT
        given = str((event.get("headers") or {}).get(self._header, "")).encode()
        if not sum(hmac.compare_digest(given, value.encode()) for value in self._values()):
            raise RequestError(self._refusal)


def edge_of(secret: str) -> Origin | None:
    """The check of a function behind an edge. ``secret`` is the ARN of the values; it is empty without an edge."""
    return Origin(lambda: _values_of(secret, "edge secret")) if secret else None


def relays_of(secret: str) -> Origin | None:
    """The check of the gateway. ``secret`` is the ARN of the values; it is empty if anybody may be a relay."""
    return Origin(lambda: _values_of(secret, "relay secret"), RELAY_HEADER, NOT_A_RELAY) if secret else None


def _values_of(secret: str, what: str) -> tuple[str, ...]:
    from kanon import aws  # a service without AWS has neither

    return fetch_header_values(aws.secrets_manager(), secret, what)
