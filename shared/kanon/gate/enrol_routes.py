"""The HTTP routes of credentials (experimental): the issuer's key, and the credentials of accounts.

Nothing here is logged. An account is kept as an HMAC, until its row is free; of a join only the token of its tag is.
"""

import base64
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Annotated, Any

from aws_lambda_powertools.event_handler import APIGatewayHttpResolver, Response
from pydantic import BeforeValidator, Field, StrictInt

from kanon import clock
from kanon.credentials.arc import REQUEST_BYTES
from kanon.credentials.enrolling import MOST_RECOVERY_BYTES, AccountTakenError, CredentialError, Enrolling, NotNowError
from kanon.gate.models import CREDENTIALS, ISSUER_KEYS
from kanon.http.answers import UNKNOWN_CALLER, Body, error_answer, wrong_field
from kanon.http.bodies import RequestError
from kanon.keys import Secret

NOT_ENROLLED = error_answer(404, "this account has no credential: enrol it with POST")

Identify = Callable[[Mapping[str, Any]], str | None]
"""The account of an event in format 2.0 of API Gateway; None if it names none."""


def _decoding(least: int, most: int) -> Callable[[Any], bytes]:
    """Decodes base64url of so many bytes."""
    sizes = f"{least}" if least == most else f"{least} to {most}"
    fewest, longest = -(-least * 4 // 3), -(-most * 4 // 3)
    form = re.compile(f"[A-Za-z0-9_-]{{{fewest},{longest}}}")

    def decode(text: Any) -> bytes:
        if not isinstance(text, str) or not form.fullmatch(text) or len(text) % 4 == 1:
            raise ValueError(f"must be base64url of {sizes} bytes without padding")
        return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))

    return decode


class EnrolBody(Body):
    """A request for a credential; and the secrets, encrypted by the client for its other devices."""

    epoch: Annotated[StrictInt, Field(ge=0, lt=1 << 32)]
    request: Annotated[bytes, BeforeValidator(_decoding(REQUEST_BYTES, REQUEST_BYTES))]
    recovery: Annotated[bytes, BeforeValidator(_decoding(1, MOST_RECOVERY_BYTES))] = b""


@dataclass(frozen=True)
class EnrolRoutes:
    """The routes of credentials. All but the keys need an account.

    Attributes:
        enrolling: the use case.
        account_key: names accounts.
        identify: the account that an event is of.
    """

    enrolling: Enrolling
    account_key: Secret
    identify: Identify

    def add_to(self, app: APIGatewayHttpResolver) -> None:
        """Let a resolver answer these routes."""

        def account() -> bytes:
            return self._account(app.current_event.raw_event)

        def enrol(body: EnrolBody) -> Response[str]:
            return self.enrol(account(), body)

        app.get(ISSUER_KEYS, include_in_schema=False)(self.keys)
        app.post(CREDENTIALS, include_in_schema=False)(enrol)
        app.get(CREDENTIALS, include_in_schema=False)(lambda: self.recovery(account()))
        app.delete(CREDENTIALS, include_in_schema=False)(lambda: self.delete(account()))

    def keys(self) -> Response[str]:
        """The key of the week: the same for everybody, so clients compare what two ways bring."""
        now, issuer = clock.now(), self.enrolling.issuer
        week = clock.week_of(now)
        key = issuer.key(week).public.encode()
        body = {"deployment": issuer.deployment, "epoch": week, "key": _text(key), "sha256": sha256(key).hexdigest()}
        return _answer(body, f"public, max-age={clock.cacheable(now)}")

    def enrol(self, account: bytes, body: EnrolBody) -> Response[str]:
        """Make a credential."""
        try:
            response = self.enrolling.enrol(account, body.request, body.epoch, body.recovery, clock.now())
        except NotNowError as error:
            raise RequestError(wrong_field("epoch", str(error))) from None
        except CredentialError as error:
            raise RequestError(wrong_field("request", str(error))) from None
        except AccountTakenError as error:
            raise RequestError(error_answer(409, str(error))) from None
        return _answer({"response": _text(response)})

    def recovery(self, account: bytes) -> Response[str]:
        """What another device of the account has encrypted; an empty text if it did not."""
        row = self.enrolling.accounts.read(account)
        if row is None or row.deleted:
            raise RequestError(NOT_ENROLLED)
        return _answer({"recovery": _text(row.recovery)})

    def delete(self, account: bytes) -> Response[str]:
        """Make no credential for an account any more, until its row is free. It is the same without a row."""
        self.enrolling.accounts.delete(account)
        return _answer({})

    def _account(self, event: Mapping[str, Any]) -> bytes:
        name = self.identify(event)
        if name is None:
            raise RequestError(UNKNOWN_CALLER)
        return account_id(self.account_key, name)


def account_id(account_key: Secret, name: str) -> bytes:
    """What is stored of an account in the place of its name."""
    return account_key.mac(b"account", name.encode())


def _text(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode()


def _answer(body: dict[str, Any], kept: str = "no-store") -> Response[str]:
    return Response(200, "application/json", json.dumps(body), {"Cache-Control": kept})
