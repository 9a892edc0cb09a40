"""Credentials of a directory: its accounts, its issuer's secret, and the routes to enrol (experimental).

Nothing here is logged. An account is kept as an HMAC, until its row is free; of a join only the token of its tag is.
"""

import base64
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any

from aws_lambda_powertools.event_handler import APIGatewayHttpResolver, Response
from pydantic import BeforeValidator, Field, StrictInt

from kanon import clock
from kanon.credentials.arc import REQUEST_BYTES
from kanon.credentials.enrolling import (
    MOST_RECOVERY_BYTES,
    Admission,
    CredentialError,
    Enrolling,
    Issuer,
    NotNowError,
    Row,
    TakenError,
)
from kanon.disk import Database, transaction
from kanon.errors import ConfigurationError
from kanon.gate.models import Presentation
from kanon.http.answers import Body, ErrorAnswer, Problem, error_answer
from kanon.http.bodies import RequestError
from kanon.keys import Secret
from kanon.serving.access import CREDENTIALS, UNKNOWN_CALLER
from kanon.serving.directory import (
    ACCOUNT_KEY,
    ACCOUNTS,
    CLOSED_UNTIL,
    ISSUER_KEY,
    OWNER,
    Directory,
    accounts_place,
    at_random,
    write_secret,
)

KEYS = f"{CREDENTIALS}/keys"
NOT_HELD = error_answer(
    400,
    "presentation: the proof does not hold for this join: enrol again, and make a new presentation for each join",
    Problem(field="presentation", reason="does not hold"),
)
NOT_ENROLLED = error_answer(404, "this account has no credential: enrol it with POST")
SCHEMA = """
PRAGMA secure_delete = ON;
CREATE TABLE IF NOT EXISTS accounts (
    account BLOB PRIMARY KEY, commitment BLOB NOT NULL, last_week INTEGER NOT NULL, deleted INTEGER NOT NULL,
    recovery BLOB NOT NULL) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS by_week ON accounts (last_week);
"""


class AccountsFile(Database):
    """The accounts of a directory; see :class:`kanon.credentials.enrolling.Accounts`. A free row is deleted."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, SCHEMA)

    def record(self, account: bytes, row: Row, free_through: int) -> None:
        """Put a row, unless the account has another commitment, was deleted, or has a later row."""
        with transaction(self.database):
            self.database.execute("DELETE FROM accounts WHERE last_week <= ?", (free_through,))
            self.database.execute(
                "INSERT INTO accounts VALUES (?, ?, ?, 0, ?) ON CONFLICT (account) DO UPDATE"
                " SET last_week = excluded.last_week,"
                " recovery = CASE excluded.recovery WHEN x'' THEN recovery ELSE excluded.recovery END"
                " WHERE commitment = excluded.commitment AND NOT deleted AND last_week <= excluded.last_week",
                (account, row.commitment, row.last_week, row.recovery),
            )

    def read(self, account: bytes) -> Row | None:
        """The row of an account."""
        found = self.database.execute(
            "SELECT commitment, last_week, deleted, recovery FROM accounts WHERE account = ?", (account,)
        ).fetchone()
        return None if found is None else Row(found[0], found[1], bool(found[2]), found[3])

    def delete(self, account: bytes) -> None:
        """Mark the row of an account as deleted."""
        self.database.execute("UPDATE accounts SET deleted = 1, recovery = x'' WHERE account = ?", (account,))


Identify = Callable[[str], str | None]
"""The account of the text behind ``Bearer``; None if it names none."""


@dataclass(frozen=True)
class Credentials:
    """What a directory with a type that needs credentials has.

    Attributes:
        enrolling, admission: the use cases.
        account_key: names accounts.
    """

    enrolling: Enrolling
    admission: Admission
    account_key: Secret

    def admit(self, type_name: str, set_id: bytes, given: Presentation, now: float) -> bytes:
        """The tag of a presentation.

        Raises:
            RequestError: it does not hold, or not now.
        """
        try:
            return self.admission.tag(type_name, set_id, given.epoch, given.step, given.proof, now)
        except NotNowError as error:
            raise RequestError(_refusal(400, "presentation", error)) from None
        except CredentialError:
            raise RequestError(NOT_HELD) from None


def open_credentials(directory: Directory) -> Credentials:
    """The credentials of an open directory with a type that needs them. The secrets are made when needed first.

    Raises:
        ConfigurationError: the file of accounts was put back or is missing, or its key is.
    """
    windows = [each.parameters.window for each in directory.types.values() if each.credential]
    folder, control, file = directory.path / "secrets", directory.control, directory.path / ACCOUNTS
    known = control.text(ACCOUNTS)  # empty: nobody has enrolled since the rows were lost
    if known and known != accounts_place(directory.path):
        raise ConfigurationError(
            f"{file} is missing or was put back: one person could enrol twice. Run `kanon operate new-generation --data"
            f" {directory.path}`: then nobody can enrol until no earlier join counts"
        )
    account_key = _secret(folder / ACCOUNT_KEY, made=known is None)  # before the text that says that there is one
    control.check(OWNER, {ACCOUNT_KEY: account_key.fingerprint})
    accounts = AccountsFile(file)
    directory.closes(accounts)
    accounts.database  # noqa: B018, it makes the file
    control.put_text(ACCOUNTS, accounts_place(directory.path))
    issuer = Issuer(_secret(folder / ISSUER_KEY, made=True), directory.settings.deployment)
    period = directory.settings.period
    enrolling = Enrolling(issuer, accounts, (max(windows) + 1) * period, lambda: float(control.text(CLOSED_UNTIL) or 0))
    return Credentials(enrolling, Admission(issuer, period), account_key)


def _secret(file: Path, *, made: bool) -> Secret:
    if not file.exists():
        if not made:
            raise ConfigurationError(f"{file} is missing: put it back from a backup")
        write_secret(file, at_random(file.name))
    return Secret.derived(file.name, file.read_text().strip())


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
        credentials: what they use.
        identify: the account of a key or token.
    """

    credentials: Credentials
    identify: Identify

    def add_to(self, app: APIGatewayHttpResolver) -> None:
        """Let a resolver answer these routes."""

        def account() -> bytes:
            return self._account(app.current_event.headers.get("authorization", ""))

        def enrol(body: EnrolBody) -> Response[str]:
            return self.enrol(account(), body)

        app.get(KEYS, include_in_schema=False)(self.keys)
        app.post(CREDENTIALS, include_in_schema=False)(enrol)
        app.get(CREDENTIALS, include_in_schema=False)(lambda: self.recovery(account()))
        app.delete(CREDENTIALS, include_in_schema=False)(lambda: self.delete(account()))

    def keys(self) -> Response[str]:
        """The key of the week: the same for everybody, so clients compare what two ways bring."""
        now, issuer = clock.now(), self.credentials.enrolling.issuer
        week = clock.week_of(now)
        key = issuer.key(week).public.encode()
        body = {"deployment": issuer.deployment, "epoch": week, "key": _text(key), "sha256": sha256(key).hexdigest()}
        return _answer(body, f"public, max-age={issuer.max_age(now)}")

    def enrol(self, account: bytes, body: EnrolBody) -> Response[str]:
        """Make a credential."""
        try:
            response = self.credentials.enrolling.enrol(account, body.request, body.epoch, body.recovery, clock.now())
        except NotNowError as error:
            raise RequestError(_refusal(400, "epoch", error)) from None
        except CredentialError as error:
            raise RequestError(_refusal(400, "request", error)) from None
        except TakenError as error:
            raise RequestError(error_answer(409, str(error))) from None
        return _answer({"response": _text(response)})

    def recovery(self, account: bytes) -> Response[str]:
        """What another device of the account has encrypted; an empty text if it did not."""
        row = self.credentials.enrolling.accounts.read(account)
        if row is None or row.deleted:
            raise RequestError(NOT_ENROLLED)
        return _answer({"recovery": _text(row.recovery)})

    def delete(self, account: bytes) -> Response[str]:
        """Make no credential for an account any more, until its row is free. It is the same without a row."""
        self.credentials.enrolling.accounts.delete(account)
        return _answer({})

    def _account(self, authorization: str) -> bytes:
        name = self.identify(authorization.partition(" ")[2].strip())
        if name is None:
            raise RequestError(UNKNOWN_CALLER)
        return self.credentials.account_key.mac(b"account", name.encode())


def _text(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode()


def _answer(body: dict[str, Any], kept: str = "no-store") -> Response[str]:
    return Response(200, "application/json", json.dumps(body), {"Cache-Control": kept})


def _refusal(code: int, field: str, error: Exception) -> ErrorAnswer:
    return error_answer(code, f"{field}: {error}", Problem(field=field, reason=str(error)))
