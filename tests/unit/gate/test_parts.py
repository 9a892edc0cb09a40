"""A part says which sets are due, also when the step of a wake-up has passed."""

from dataclasses import replace
from hashlib import sha256
from itertools import pairwise
from unittest import mock

import numpy as np
import pytest

from kanon.gate import parts
from kanon.gate.mechanism.columns import NEVER, States, Tokens
from kanon.gate.parts import OLDEST_AGE, Part, decode, encode


def part(wake_ups: list[int], ends: list[int]) -> Part:
    none, count = np.zeros(0, np.int64), len(wake_ups)
    keys = np.array([bytes([n + 1]) * 32 for n in range(count)], "S32")
    never = np.full((count, 2), NEVER)
    sizes = np.zeros(count, np.int64)
    return Part.of(5, keys, np.ones(count, np.uint8), sizes, none, none, never, np.array(wake_ups), np.array(ends))


def test_a_set_is_due_from_its_wake_up_on() -> None:
    some = part([NEVER, 6, 7, 8], [9, 9, 9, 9])
    assert some.due(7).tolist() == [False, True, True, False]


def test_something_happens_to_a_part_at_its_first_wake_up_or_after_its_first_end() -> None:
    assert part([NEVER, 6], [4, 9]).earliest == 5
    assert part([NEVER, 3], [4, 9]).earliest == 3
    assert part([NEVER], [4]).earliest == 5
    assert part([], []).earliest is None


def test_the_bytes_of_a_part_never_change() -> None:
    """Kept manifests name digests of files: what is evaluated again, by a later version too, has the same."""
    some = replace(
        part([NEVER, 6, 7], [4, 9, 8]),
        sizes=np.array([2, 0, 1]),
        tokens=np.array([1, 65_535, 2], np.uint32),
        ages=np.array([0, 2, 1], np.uint16),
        crossings=np.array([[NEVER, NEVER], [2, 5], [NEVER, 4]]),
    )
    wide = replace(some, tokens=some.tokens + np.uint32(1))
    values = replace(some, sealed=np.array([b"one", b"", b"three"], object))
    for each, digest in ((some, "74d789599fb0d041"), (wide, "18564d0e82059c4a"), (values, "251c4a8a081009d1")):
        content, whole = encode(each, 5)
        assert whole.startswith(digest)
        assert sha256(content).hexdigest() == whole
        assert encode(decode(content), 5) == (content, whole)


@pytest.mark.parametrize("passed", [0, 1, 1000, OLDEST_AGE, 10 * OLDEST_AGE])
def test_a_member_grows_older_until_it_has_left_every_window(passed: int) -> None:
    """Those of the oldest age stay there: none becomes a recent one."""
    ages = [0, 1, OLDEST_AGE - 1001, OLDEST_AGE - 1000, OLDEST_AGE - 1, OLDEST_AGE]
    young = replace(part([NEVER], [9]), sizes=np.array([len(ages)]), ages=np.array(ages, np.uint16))
    young = replace(young, tokens=np.arange(len(ages), dtype=np.uint16))
    old = young.at(5 + passed)
    assert old.ages.tolist() == [min(age + passed, OLDEST_AGE) for age in ages]
    assert (old.lasts == old.step - old.ages.astype(int)).all()
    assert encode(young, 5 + passed) == encode(old, 5 + passed)
    with pytest.raises(OverflowError):
        young.at(4)


def _mixed(chance: np.random.Generator, sets: int, bits: int) -> Part:
    sizes = chance.integers(0, 4, sets)
    members = int(sizes.sum())
    keys = np.array([b"%032d" % n for n in range(sets)], "S32")
    tokens, lasts = chance.integers(0, 1 << bits, members), 100 - chance.integers(0, 50, members)
    steps = chance.integers(0, 200, (4, sets))
    return Part.of(100, keys, np.ones(sets, np.uint8), sizes, tokens, lasts, steps[:2].T, steps[2], steps[3])


def _members(part: Part) -> list[list[tuple[int, int]]]:
    pairs = list(zip(part.tokens.tolist(), part.lasts.tolist(), strict=True))
    return [pairs[start:end] for start, end in pairwise([0, *np.cumsum(part.sizes).tolist()])]


@pytest.mark.parametrize("many", [False, True])
@pytest.mark.parametrize("seed", range(30))
def test_runs_of_rows_are_copied_as_members_one_by_one(seed: int, many: bool) -> None:
    """Both ways of choosing and replacing rows give what lists give: any rows, sets without members, wide tokens."""
    chance = np.random.default_rng(seed)
    old = _mixed(chance, 12, 16)
    rows = chance.random(12) < (0.1, 0.5, 0.9)[seed % 3]
    rows[seed % 12] = True
    new = _mixed(chance, int(rows.sum()), (16, 32)[seed % 2])
    states = States([], Tokens(new.sizes, new.tokens), new.lasts, new.crossings, new.ends, new.wake_ups)
    with mock.patch.object(parts, "_many", return_value=many):
        chosen, changed = old.rows(rows), old.with_states(rows, states, new.ends)
        assert _members(old.rows(np.zeros(12, bool))) == []
    before, after = _members(old), iter(_members(new))
    assert _members(chosen) == [own for own, there in zip(before, rows, strict=True) if there]
    assert _members(changed) == [next(after) if there else own for own, there in zip(before, rows, strict=True)]
    assert changed.ends.tolist() == np.where(rows, np.insert(new.ends, 0, 0)[np.cumsum(rows)], old.ends).tolist()
    content, _ = encode(changed, 100)
    assert _members(decode(content)) == _members(changed)
