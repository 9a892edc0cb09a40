"""The object of listed sets: what was put is read, beside the true sets that it belongs to and nowhere else."""

from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kanon.errors import UndecodableMembersError
from kanon.gate import listed_sets
from kanon.gate.listed_sets import ListedSet, after, decode, encode, name_beside
from kanon.gate.storage.aws.true_objects import run_of, step_of
from kanon.gate.true_sets import PADDING
from tests.unit.examples import set_key

SHOWS, OTHER = (f"true/1234/5/480000-17-3-{digit * 32}" for digit in "ab")
STEPS = st.integers(0, 2**32 - 2)
SETS = st.dictionaries(
    st.sampled_from([set_key(n) for n in range(6)]),
    st.tuples(
        st.integers(1, 255),
        st.lists(STEPS, min_size=1, max_size=2).map(tuple),
        STEPS,
        st.binary(min_size=1, max_size=592),
    ),
).map(lambda found: [ListedSet(key, *found[key]) for key in sorted(found)])


def test_its_name_follows_from_that_of_the_true_sets() -> None:
    name = name_beside(SHOWS)
    assert name == f"1234/5/480000-17-3-{'a' * 32}.listed"
    assert (step_of(name), run_of(name)) == (480_000, 17)


@given(SETS)
def test_what_was_put_is_read(sets: list[ListedSet]) -> None:
    content = encode(SHOWS, iter(sets))
    assert len(content) % PADDING == 0
    found = decode(SHOWS, content)
    assert found is not None
    assert list(found) == sets
    assert encode(SHOWS, iter(sets)) == content


def test_sets_that_are_not_all_known_or_too_many_are_not_given_as_none() -> None:
    sets = [ListedSet(set_key(n), 1, (7,), 9, b"v" * 592) for n in range(3)]
    assert decode(SHOWS, encode(SHOWS, None)) is None
    with mock.patch.object(listed_sets, "MOST_BYTES", 3 * 639 - 1):
        assert decode(SHOWS, encode(SHOWS, sets)) is None
    with mock.patch.object(listed_sets, "MOST_BYTES", 3 * 639):
        assert list(decode(SHOWS, encode(SHOWS, sets)) or ()) == sets
    assert list(decode(SHOWS, encode(SHOWS, ())) or ()) == []
    assert decode(SHOWS, encode(SHOWS, ())) is not None


@pytest.mark.slow
@given(SETS, st.data())
def test_what_is_damaged_or_belongs_to_other_true_sets_is_refused(sets: list[ListedSet], data: st.DataObject) -> None:
    content = encode(SHOWS, sets)
    with pytest.raises(UndecodableMembersError, match="belongs to other true sets"):
        decode(OTHER, content)
    used = 32 + sum(47 + len(each.sealed) for each in sets) + 32
    place = data.draw(st.integers(0, used - 1))
    with pytest.raises(UndecodableMembersError):
        decode(SHOWS, content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
    with pytest.raises(UndecodableMembersError):
        decode(SHOWS, content[:place])


def test_a_set_goes_after_its_last_true_step_and_a_newer_crossing_takes_the_place_of_an_older_one() -> None:
    a, b, c, d = (ListedSet(bytes([n]) * 32, 1, (5,), 9, b"old") for n in range(1, 5))
    newer, new = b._replace(crossings=(5, 9), last=12), ListedSet(bytes(32), 1, (9,), 11, b"new")
    assert list(after([a, b, c._replace(last=8), d], [newer, new], 9)) == [new, a, newer, d]
