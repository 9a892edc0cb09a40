"""Enrolment: an account gets credentials for one m1, and for another one only when no window has both.

The commitment to m1 is recorded with the account before its credential leaves, and what leaves is for the commitment
that was read back. A row holds the last week for which a credential was made. Once that is over, and the longest window
after it, the row is *free*: as good as none.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple, Protocol

from kanon.clock import AFTER, LATE, in_time, valid_weeks, week_of
from kanon.credentials.arc import IssuerKey, Verifier, commitment, issue
from kanon.credentials.contexts import credential_context, session, tag_context
from kanon.credentials.p256 import CredentialError
from kanon.errors import Error
from kanon.keys import Secret

MOST_RECOVERY_BYTES = 512


class NotNowError(Error):
    """The request is for another step or week, or comes too early. The text says what to change."""


class AccountTakenError(Error):
    """The account has another m1, on another device or a lost one; or it was deleted."""

    def __init__(self) -> None:
        super().__init__(
            "the account has other secrets: take over those of your other device with the recovery code. Or it was"
            " deleted: enrol again when its joins count no more"
        )


class AccountRow(NamedTuple):
    """What is known of an account.

    Attributes:
        commitment: to the m1 that it has.
        last_week: the last one for which a credential was made.
        deleted: whether it gets none any more until the row is free.
        recovery: the secrets, as its devices encrypted them; empty if they did not.
    """

    commitment: bytes
    last_week: int
    deleted: bool
    recovery: bytes


class Accounts(Protocol):
    """The rows of accounts. No write of an earlier time may come back: not from a backup, nor from a replica."""

    def record(self, account: bytes, row: AccountRow, free_through: int) -> None:
        """Put a row if there is none, or one whose ``last_week`` is at most ``free_through``.

        A row that is not deleted and has the same commitment gets a later ``last_week``, and ``recovery`` unless this
        is empty. Any other row stays.
        """

    def read(self, account: bytes) -> AccountRow | None:
        """The row as the last write left it."""

    def delete(self, account: bytes) -> None:
        """Mark a row as deleted, and forget ``recovery``."""


@dataclass(frozen=True)
class Issuer:
    """The keys of an issuer: one for each week, derived from one secret, so every instance has the same."""

    secret: Secret
    deployment: str

    def key(self, week: int) -> IssuerKey:
        """The key of a week."""
        return _derived(self.secret, week)

    def verifier(self, week: int) -> Verifier:
        """What checks the credentials of a week."""
        return _verifier(self.secret, self.deployment, week)


@lru_cache(maxsize=4)
def _derived(secret: Secret, week: int) -> IssuerKey:
    return IssuerKey.derive(secret.mac(b"issuer", week.to_bytes(8, "big")))


@lru_cache(maxsize=4)
def _verifier(secret: Secret, deployment: str, week: int) -> Verifier:
    return _derived(secret, week).verifier(credential_context(deployment, week))


@dataclass(frozen=True)
class Admission:
    """Checks presentations. The caller has checked their length."""

    issuer: Issuer
    period: int

    def tag(self, type_name: str, set_id: bytes, epoch: int, step: int, proof: bytes, now: float) -> bytes:
        """The tag of a person in a set.

        Raises:
            NotNowError: step or epoch are not taken now.
            CredentialError: the proof is not one of this service for this join.
        """
        if not in_time(step, now, self.period):
            raise NotNowError("name the current step, and check the clock")
        if epoch not in valid_weeks(now):
            raise NotNowError("the credential is of another week: enrol again")
        deployment = self.issuer.deployment
        public = _public(self.issuer.secret, epoch)
        bound = session(deployment, public, epoch, "POST", type_name, set_id, step)
        return self.issuer.verifier(epoch).verify(tag_context(deployment, type_name, set_id), bound, proof)


@lru_cache(maxsize=4)
def _public(secret: Secret, week: int) -> bytes:
    return _derived(secret, week).public.encode()


@dataclass(frozen=True)
class Enrolling:
    """Makes credentials for accounts.

    Attributes:
        issuer, accounts: its keys and rows.
        longest: seconds for which a join counts, at most: the longest window of a type that needs credentials.
        closed_until: Unix time before which nobody enrols: rows may be missing.
    """

    issuer: Issuer
    accounts: Accounts
    longest: int
    closed_until: Callable[[], float]

    def enrol(self, account: bytes, message: bytes, week: int, recovery: bytes, now: float) -> bytes:
        """The response to a request for a credential of the current week.

        Raises:
            NotNowError: it is for another week, or enrolment is closed.
            CredentialError: the request is malformed, or not one for this service.
            AccountTakenError: the account has another m1, or was deleted, too short a time ago.
        """
        if now < self.closed_until():
            raise NotNowError("the rows of accounts were lost: enrolment opens when no join counts any more")
        if week != week_of(now):
            raise NotNowError("the request is for another week: get the key again, and check the clock")
        context = credential_context(self.issuer.deployment, week)
        response = issue(self.issuer.key(week), message, context)  # it stays here unless its commitment is recorded
        asked = AccountRow(commitment(message), week, deleted=False, recovery=recovery)
        self.accounts.record(account, asked, free_through(now, self.longest))
        if not covers(self.accounts.read(account), asked):
            raise AccountTakenError
        return response


def covers(row: AccountRow | None, asked: AccountRow) -> bool:
    """Whether a row that was read lets the credential for ``asked`` leave."""
    return (
        row is not None and not row.deleted and row.commitment == asked.commitment and row.last_week >= asked.last_week
    )


def free_through(now: float, longest: int) -> int:
    """The last week of which no credential can have a join that counts, now or later."""
    return week_of(now - AFTER - longest - LATE) - 1


__all__ = [
    "AccountRow",
    "AccountTakenError",
    "Accounts",
    "Admission",
    "CredentialError",
    "Enrolling",
    "Issuer",
    "NotNowError",
]
