"""Objects of true sets: what is in them, what memory keeps of them, and when it gets them."""

import os
import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from kanon.errors import UndecodableMembersError
from kanon.gate import memory
from kanon.gate.memory import SPREAD, Memory
from kanon.gate.publishing import Horizon, moved_horizon
from kanon.gate.showing import ENTRY, after
from kanon.gate.true_sets import ENTRY_BYTES, HEADER_BYTES, KEY_BYTES, PADDING, TrueSets, name_of
from tests.unit.examples import set_key


def entries(*sets: tuple[bytes, int, int]) -> Any:
    """Key, crossing and last step of each set."""
    found = np.zeros(len(sets), ENTRY)
    for at, (key, crossing, last) in enumerate(sets):
        found[at] = (key[:KEY_BYTES], crossing, last)
    return found


def made(content: bytes | None) -> TrueSets:
    assert content is not None
    return TrueSets.of(name_of("0/0/5-1-0", content), content)


@pytest.mark.parametrize("count", [0, 1, 2, 3, 7, 8, 100])
def test_every_set_is_found_and_no_other(count: int) -> None:
    keys = [set_key(n) for n in range(count)]
    sets = made(after(None, [entries(*((key, at, 99) for at, key in enumerate(keys)))], 5))
    assert [sets.crossings(key) for key in keys] == [(at,) for at in range(count)]
    for key in (bytes(32), b"\xff" * 32, *(set_key(n) for n in range(1000, 1100))):
        assert sets.crossings(key) == ()


def test_a_key_that_ends_with_zeros_is_found_and_one_that_begins_like_another_is_not() -> None:
    zeros, like = b"\x05" + bytes(31), b"\x05" + bytes(14) + b"\x01" + bytes(16)
    sets = made(after(None, [entries((zeros, 3, 9))], 5))
    assert (sets.crossings(zeros), sets.crossings(like)) == ((3,), ())


class CountedReads(bytes):
    """Bytes that count how often a part of them is read."""

    reads = 0

    def __getitem__(self, at: Any) -> Any:
        self.reads += 1
        return super().__getitem__(at)


@pytest.mark.parametrize("count", [1, 5, 64, 1000])
def test_as_many_entries_are_read_for_every_key(count: int) -> None:
    keys = [os.urandom(32) for _ in range(count)]
    sets = made(after(None, [entries(*((key, 1, 9) for key in keys))], 5))
    seen = set()
    for key in [*keys, bytes(32), b"\xff" * 32, os.urandom(32)]:
        content = CountedReads(sets.content)
        TrueSets(content, sets.count).crossings(key)
        seen.add(content.reads)
    assert len(seen) == 1
    assert seen != {0}


def test_a_set_is_in_the_objects_of_its_true_steps_and_crossings_replace_older_ones() -> None:
    a, b, c = (set_key(n) for n in range(3))
    first = made(after(None, [entries((a, 4, 6), (b, 5, 9))], 5))
    second = made(after(first, [entries((c, 6, 8))], 6))
    assert [second.crossings(key) for key in (a, b, c)] == [(4,), (5,), (6,)]
    third = made(after(second, [entries((b, 7, 12))], 7))
    assert [third.crossings(key) for key in (a, b, c)] == [(), (7,), (6,)]


def test_random_steps_equal_a_dictionary() -> None:
    chance, sets, known = random.Random(3), None, dict[bytes, tuple[int, int]]()
    for step in range(60):
        crossed = {
            set_key(chance.randrange(40)): (step, step + chance.randrange(9)) for _ in range(chance.randrange(6))
        }
        known = {key: at for key, at in {**known, **crossed}.items() if at[1] >= step}
        sets = made(after(sets, [entries(*((key, *at) for key, at in crossed.items()))], step))
        assert sets.count == len(known)
        for n in range(40):
            assert sets.crossings(set_key(n)) == tuple([known[set_key(n)][0]] if set_key(n) in known else [])


def test_the_size_of_an_object_tells_its_sets_in_steps_of_64_kib() -> None:
    sizes = set()
    for count in range(0, 6000, 500):
        content = after(None, [entries(*((os.urandom(32), 1, 9) for _ in range(count)))], 5)
        assert content is not None
        assert len(content) % PADDING == 0
        sizes.add(len(content))
    assert sizes == {PADDING, 2 * PADDING, 3 * PADDING}
    assert (PADDING - HEADER_BYTES) // ENTRY_BYTES == 2730


def test_too_many_true_sets_have_no_object(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kanon.gate.showing.MOST_TRUE", 3)
    four = entries(*((set_key(n), 1, 9) for n in range(4)))
    assert after(None, [four], 5) is None
    assert made(after(None, [four[:3]], 5)).count == 3


@pytest.mark.parametrize("damage", [lambda c: c[:-1], lambda c: c[:40] + b"x" + c[41:], lambda _: b"", lambda c: c * 2])
def test_a_damaged_or_torn_object_is_refused(damage: Any) -> None:
    content = after(None, [entries((set_key(1), 1, 9))], 5)
    assert content is not None
    with pytest.raises(UndecodableMembersError, match=r"^an object of true sets is not as it was written$"):
        TrueSets.of(name_of("0/0/5-1-0", content), damage(content))


@pytest.mark.parametrize("content", [b"", b"kanontru", b"kanontru\0\0\0\2" + bytes(80), b"kanontru\0\0\0\1\0\0\0\7"])
def test_an_object_of_another_format_is_refused(content: bytes) -> None:
    with pytest.raises(UndecodableMembersError, match=r"^an object of true sets of unknown format$"):
        TrueSets.of(name_of("0/0/5-1-0", content), content)


# Horizons


def test_a_horizon_names_the_object_of_each_of_its_steps() -> None:
    horizon = None
    for step in range(1, 5):
        horizon = moved_horizon(horizon, step, 100 * step, f"object {step}")
    assert horizon is not None
    for now in range(0, 600, 10):
        step = horizon.at(now)
        assert horizon.shown_at(now) == (None if step is None else f"object {step}")
    assert horizon.named == {f"object {step}" for step in (2, 3, 4)}
    same = moved_horizon(horizon, 5, 400, "object 5")
    assert same == Horizon(5, 400, 3, 300, 2, "object 5", "object 3", "object 2")


# Memory


class Bucket:
    """Objects that are counted; ``missing`` ones cannot be got."""

    def __init__(self, missing: Sequence[str] = ()) -> None:
        self.asked: list[str] = []
        self.missing = missing

    def fetch(self, name: str) -> TrueSets | None:
        self.asked.append(name)
        return None if name in self.missing else made(after(None, [entries((set_key(1), 1, 9))], 5))


NAMES = ["a", "b", "c"]


def test_each_request_gets_one_object_after_the_wait() -> None:
    bucket = Bucket()
    held = Memory(None, bucket.fetch, lambda: 30.0)  # type: ignore[arg-type]
    for now in (0.0, 10.0, 29.9):
        held.load(NAMES, now)
    assert bucket.asked == []
    for number in range(1, 6):
        held.load(NAMES, 30.0)
        assert len(bucket.asked) == min(number, 3)
    held.load(["a", "b", "d"], 100.0)
    assert set(held._held) == {"a", "b"}
    held.load(["a", "b", "d"], 130.0)
    assert bucket.asked[3:] == ["d"]


def test_an_object_that_cannot_be_got_is_asked_for_once() -> None:
    bucket = Bucket(missing=["b"])
    held = Memory(None, bucket.fetch, lambda: 0.0)  # type: ignore[arg-type]
    for now in range(9):
        held.load(NAMES, float(now))
    assert sorted(bucket.asked) == NAMES
    assert set(held._held) == {"a", "c"}


def test_no_more_is_held_than_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "MOST_BYTES", 2 * PADDING)
    held = Memory(None, Bucket().fetch, lambda: 0.0)  # type: ignore[arg-type]
    for now in range(9):
        held.load(NAMES, float(now))
    assert len(held._held) == 2


def test_instances_wait_for_different_times() -> None:
    waits = [Memory(None, Bucket().fetch).jitter() for _ in range(50)]  # type: ignore[arg-type]
    assert all(0 <= wait <= SPREAD for wait in waits)
    assert max(waits) - min(waits) > SPREAD / 2  # a false alarm once in 2^43
