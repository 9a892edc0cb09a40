"""Accounts that are devices: a verifier of the operator says of which device an attestation is (experimental).

The device attests the binding of its request (:func:`kanon.credentials.contexts.attested`), as the client data hash of
App Attest or the request hash of Play Integrity, and sends both as ``Authorization: Bearer TIME.ATTESTATION``: the
seconds of Unix in the binding, and base64url. It is refused if its time is more than ``MOST_APART`` seconds off. The
verifier gets ``{"attestation": ..., "binding": ...}``, both in base64url. It answers ``{"account": "..."}``, always the
same text for one device; or ``{"account": null}``, if the attestation is not of an allowed app on a genuine device, or
not of this binding. Without such an answer nobody enrols. Of all this only an HMAC of the account is stored.
"""

import base64
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from kanon import clock
from kanon.credentials.contexts import attested
from kanon.errors import Error
from kanon.http.answers import NOT_NOW
from kanon.http.bodies import RequestError
from kanon.strict_json import parse

MOST_ATTESTATION_BYTES = 6000
"""In base64url they fit into a header, also of a request through a relay."""
MOST_ACCOUNT = 256
MOST_ANSWER_BYTES = 4096
MOST_APART = 300
"""Seconds between the clock of a device and that of the service, with the way of a request."""
_ATTESTATION = re.compile(f"([0-9]{{1,12}})\\.([A-Za-z0-9_-]{{2,{-(-MOST_ATTESTATION_BYTES * 4 // 3)}}})")

Ask = Callable[[bytes], bytes]
"""Sends JSON to a verifier, and returns at most ``MOST_ANSWER_BYTES`` of its answer. It raises NoVerdictError."""


class NoVerdictError(Error):
    """The verifier gave no answer in time, or none of the form that is expected."""


@dataclass(frozen=True)
class DeviceAccounts:
    """Finds the account of an event, whose attestation a verifier accepts.

    Attributes:
        deployment: the name of the deployment, as the issuer's key shows it.
        ask: the verifier.
    """

    deployment: str
    ask: Ask

    def __call__(self, event: Mapping[str, Any]) -> str | None:
        """The account; None if there is no attestation, or it is not accepted.

        Raises:
            RequestError: 503, there is no verdict.
        """
        scheme, _, sent = event["headers"].get("authorization", "").partition(" ")
        found = _ATTESTATION.fullmatch(sent.strip())
        if scheme.lower() != "bearer" or found is None or len(found[2]) % 4 == 1:
            return None
        at, attestation = int(found[1]), found[2]
        if abs(clock.now() - at) > MOST_APART:
            return None
        method, body = event["requestContext"]["http"]["method"], event.get("body") or ""
        content = base64.b64decode(body) if event.get("isBase64Encoded") else body.encode()
        bound = attested(self.deployment, at, method, content)
        asked = {"attestation": attestation, "binding": base64.urlsafe_b64encode(bound).rstrip(b"=").decode()}
        try:
            return _account(self.ask(json.dumps(asked).encode()))
        except NoVerdictError:
            raise RequestError(NOT_NOW) from None


def _account(answer: bytes) -> str | None:
    """The account of a verifier's answer.

    Raises:
        NoVerdictError: it has another form.
    """
    try:
        found = parse(answer.decode()) if len(answer) <= MOST_ANSWER_BYTES else None
    except (ValueError, RecursionError):
        found = None
    match found:
        case {"account": None, **rest} if not rest:
            return None
        case {"account": str(account), **rest} if not rest and 0 < len(account) <= MOST_ACCOUNT:
            return account
    raise NoVerdictError
