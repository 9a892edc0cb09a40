"""Every call of an enrolment fails in every way: what leaves is for one m1, and the account can enrol again.

FAULTS tries every failure and order; the default a part.
"""

import os
from collections.abc import Iterator
from functools import cache
from types import SimpleNamespace

import botocore.endpoint
import pytest
from botocore.exceptions import BotoCoreError, ClientError

from kanon.aws import CONFIG
from kanon.clock import week_of
from kanon.credentials import arc, enrolling
from kanon.credentials.contexts import credential_context
from kanon.credentials.enrolling import AccountRow, AccountTakenError, Enrolling, Issuer
from kanon.errors import KanonError
from kanon.gate.storage.aws.accounts import Accounts
from kanon.gate.storage.aws.opening import Opening
from kanon.keys import Secret
from tests.faults.failures import FAILURES, Failure
from tests.faults.fault_injector import FaultInjector, ProcessDied, Worker
from tests.integration.credentials.test_accounts import KEYS, create
from tests.moto_engine import Moto

NOW, LONGEST = 1_700_000_000.0, 90_000
WEEK = week_of(NOW)
ISSUER = Issuer(Secret.derived("issuer-key", "of a test"), "test")
ACCOUNT = b"\x01" * 32
ORDERS = ((1, 2), (2, 1))
"""Who asks after the failure."""
ONE_IN = 1 if os.environ.get("FAULTS") else 4


@cache
def message(person: int) -> bytes:
    """The request of one of two people, whom one account must not be."""
    context = credential_context(ISSUER.deployment, WEEK)
    return arc.request(arc.Secrets(person, person), context, context).message


class Attempts:
    """Requests for one account, and the commitments for which a credential has left."""

    def __init__(self, engine: Moto, injector: FaultInjector) -> None:
        self.injector, self.left = injector, set[bytes]()
        self.client = injector.attach(engine.session()).client("dynamodb", config=CONFIG)
        self.opening = Opening(self.client, "control")

    def begin(self, before: AccountRow | None) -> None:
        """Begin with a row."""
        for table, (name, _) in KEYS.items():
            for item in self.client.scan(TableName=table)["Items"]:
                self.client.delete_item(TableName=table, Key={name: item[name]})
        if before is not None:
            Accounts(self.client, "accounts").record(ACCOUNT, before, -1)
        self.left.clear()

    def enrol(self, person: int, worker: Worker | None = None) -> bool:
        """Whether a credential leaves."""
        self.injector.worker = worker
        accounts = Accounts(self.client, "accounts")
        use = Enrolling(ISSUER, accounts, LONGEST, lambda: self.opening.closed_until("accounts"))
        try:
            use.enrol(ACCOUNT, message(person), WEEK, b"", NOW)
        except (BotoCoreError, ClientError, KanonError, ProcessDied, AccountTakenError):
            return False
        finally:
            self.injector.worker = None
        self.left.add(arc.commitment(message(person)))
        return True


@pytest.fixture(scope="module")
def attempts() -> Iterator[Attempts]:
    engine, time = Moto(), SimpleNamespace(now=0.0)

    def passes(seconds: float) -> None:
        time.now += seconds

    engine.start()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(botocore.endpoint, "time", SimpleNamespace(sleep=passes))
        patch.setattr(enrolling, "issue", lambda *_: b"a response")  # it computes, and calls nothing
        made = Attempts(engine, FaultInjector(passes, lambda: time.now))
        for table in KEYS:
            create(made.client, table)
        yield made
    engine.stop()


STATES = {
    "a new account": None,
    "a renewal": AccountRow(arc.commitment(message(1)), WEEK - 1, deleted=False, recovery=b""),
    "a free row": AccountRow(arc.commitment(message(3)), WEEK - 9, deleted=False, recovery=b""),
}


@pytest.mark.parametrize("failure", FAILURES[::ONE_IN], ids=str)
@pytest.mark.parametrize("before", STATES.values(), ids=STATES)
def test_one_m1_leaves_whichever_call_fails(attempts: Attempts, before: AccountRow | None, failure: Failure) -> None:
    met, plain = 0, Worker()
    attempts.begin(before)
    attempts.enrol(1, plain)
    for number, operation in enumerate(plain.calls, 1):
        for first, second in ORDERS if ONE_IN == 1 else ORDERS[number % 2 :][:1]:
            if not failure.applies_to(operation):
                continue
            met += 1
            attempts.begin(before)
            attempts.enrol(1, Worker(failure.at(number, operation, attempts.injector._pass_time)))
            again = [attempts.enrol(first), attempts.enrol(second)]
            assert len(attempts.left) == 1
            assert sum(again) == 1  # also after a failure the account can enrol, as one of both
            if before is STATES["a renewal"]:
                assert attempts.left == {arc.commitment(message(1))}
    assert met > 0 or failure.only


def test_a_credential_that_leaves_without_the_row_that_was_read_is_found(
    attempts: Attempts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(enrolling, "covers", lambda *_: True)
    attempts.begin(None)
    assert [attempts.enrol(1), attempts.enrol(2)] == [True, True]
    assert len(attempts.left) == 2
