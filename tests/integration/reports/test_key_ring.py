"""The key ring in Control: the state of keys at a moment, and changes by several workers."""

import itertools
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest

from kanon.reports.storage.key_ring import DAY, Key, KeyRing, StoredRing
from tests.integration.gate.tables import Running
from tests.integration.reports.tables import create_control

NOW = 1_767_225_600
FIRST, SECOND = Key.made("first", "AAAA", NOW), Key.made("second", "BBBB", NOW + 7 * DAY)
BOTH = StoredRing("an epoch", "a table", (FIRST, SECOND))
_numbers = itertools.count()


@pytest.fixture(scope="module")
def client(engine: Running) -> Any:
    return engine.client()


@pytest.fixture
def ring(client: Any) -> KeyRing:
    name = f"ring-{next(_numbers)}-Control"
    create_control(client, name)
    return KeyRing(client, name)


@pytest.mark.parametrize(
    ("day", "published", "opening", "ended"),
    [
        (7, ["first", "second"], ["first", "second"], []),
        (13.99, ["first", "second"], ["first", "second"], []),
        (14, ["second"], ["first", "second"], []),
        (21, [], ["first", "second"], []),
        (119.99, [], ["first", "second"], []),
        (120, [], ["second"], []),
        (120.99, [], ["second"], []),
        (121, [], ["second"], ["first"]),
        (128, [], [], ["first", "second"]),
    ],
)
def test_a_key_is_published_for_14_days_opens_for_120_and_is_destroyed_a_day_later(
    day: float, published: list[str], opening: list[str], ended: list[str]
) -> None:
    now = NOW + day * DAY
    assert [key.id for key in BOTH.published(now)] == published
    assert [key.id for key in BOTH.opening(now)] == opening
    assert [key.id for key in BOTH.ended(now)] == ended


def test_a_new_key_is_due_when_the_newest_is_seven_days_old() -> None:
    assert replace(BOTH, keys=()).is_new_key_due(NOW)
    assert not BOTH.is_new_key_due(NOW + 14 * DAY - 1)
    assert BOTH.is_new_key_due(NOW + 14 * DAY)


def test_withdrawn_keys_are_not_published_and_still_open_reports() -> None:
    withdrawn = replace(BOTH, withdrawn=True)
    assert withdrawn.published(NOW) == ()
    assert len(withdrawn.opening(NOW)) == 2


def test_a_ring_is_read_as_it_was_written(client: Any, ring: KeyRing) -> None:
    assert ring.read() is None
    client.transact_write_items(TransactItems=[ring.changing(None, BOTH)])
    assert ring.read() == replace(BOTH, revision=1)


def test_the_second_of_two_changes_of_one_revision_is_refused(client: Any, ring: KeyRing) -> None:
    client.transact_write_items(TransactItems=[ring.changing(None, BOTH)])
    seen = ring.read()
    assert seen is not None
    assert ring.change(seen, replace(seen, pending="third"))
    assert not ring.change(seen, replace(seen, pending="fourth"))
    again = ring.read()
    assert again is not None
    assert again.pending == "third"
    assert ring.change(again, seen)  # back to what it was: yet another revision
    assert not ring.change(again, seen)


def test_a_ring_begins_once(client: Any, ring: KeyRing) -> None:
    client.transact_write_items(TransactItems=[ring.changing(None, BOTH)])
    with pytest.raises(client.exceptions.TransactionCanceledException):
        client.transact_write_items(TransactItems=[ring.changing(None, replace(BOTH, keys=()))])


def test_the_ring_needs_neither_numpy_nor_cryptography() -> None:
    program = "import kanon.reports.storage.key_ring, sys; assert not {'numpy', 'cryptography'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True)
