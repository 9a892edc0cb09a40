"""Packed members: a format that never changes, and items that are read exactly or refused."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kanon.dynamo.batches import Item
from kanon.dynamo.limits import MOST_ITEM_BYTES
from kanon.dynamo.units import WRITE_UNIT, item_size, write_units
from kanon.errors import UndecodableMembersError
from kanon.gate.mechanism.above_threshold import SetState
from kanon.gate.mechanism.columns import NEVER, States
from kanon.gate.mechanism.members import Member
from kanon.gate.mechanism.parameters import MOST_MEMBER_BYTES, InvalidParametersError, Parameters, profile
from kanon.gate.storage import members as module
from kanon.gate.storage.members import Members, Update, from_item, from_items, to_item, to_items
from kanon.noise.laws import two_sided
from tests.unit.examples import ONE_SIDED, PUBLISHED, SMALL, pack, set_key, unpack

STEPS = st.integers(-(2**40), 2**40)


@st.composite
def states(draw: st.DrawFn, token_bytes: int) -> SetState:
    evaluated = draw(STEPS)
    member = st.builds(
        lambda token, age: Member(token, evaluated - age), st.integers(0, 256**token_bytes - 1), st.integers(0, 65_535)
    )
    crossings = draw(st.lists(STEPS, max_size=2))
    return SetState(tuple(draw(st.lists(member, max_size=9))), tuple(crossings), evaluated, draw(st.none() | STEPS))


@given(st.data(), st.integers(1, 4))
def test_a_state_is_read_as_it_was_written(data: st.DataObject, token_bytes: int) -> None:
    state = data.draw(states(token_bytes))
    assert from_item(to_item(set_key(1), "a", state, 8 * token_bytes, 9)) == state
    assert unpack(pack(state, token_bytes)) == (state.evaluated, state.members)


@given(st.data(), st.lists(st.integers(1, 4), max_size=6))
def test_many_items_are_read_like_single_items(data: st.DataObject, token_bytes: list[int]) -> None:
    drawn = [data.draw(st.none() | states(width)) for width in token_bytes]
    items = [
        None if state is None else to_item(set_key(n), "a", state, 8 * width, 9)
        for n, (state, width) in enumerate(zip(drawn, token_bytes, strict=True))
    ]
    found = from_items([set_key(n) for n in range(len(items))], items).states()
    assert found == [SetState() if item is None else from_item(item) for item in items]


@given(st.data(), STEPS, st.integers(1, 4))
def test_many_states_are_written_like_single_states(data: st.DataObject, step: int, token_bytes: int) -> None:
    drawn = [replace(state, evaluated=step) for state in data.draw(st.lists(states(token_bytes), max_size=5))]
    drawn = [replace(s, members=tuple(Member(m.token, step - n) for n, m in enumerate(s.members))) for s in drawn]
    columns = States.of([(set_key(n), state) for n, state in enumerate(drawn)])
    expires = [1_700_000_000 + n for n in range(len(drawn))]
    assert to_items("fledge", columns, step, 8 * token_bytes, expires) == [
        to_item(set_key(n), "fledge", state, 8 * token_bytes, expiry)
        for n, (state, expiry) in enumerate(zip(drawn, expires, strict=True))
    ]


def test_the_bytes_of_format_1_never_change() -> None:
    state = SetState((Member(0x0102, 472_000), Member(0xFFFE, 471_281)), (), 472_000, None)
    packed = bytes.fromhex("01 02 00000000000733c0 0102 0000 fffe 02cf")
    assert pack(state, 2) == packed
    assert unpack(packed) == (472_000, state.members)


def test_an_item_holds_what_its_state_has_and_nothing_else() -> None:
    bare = SetState((), (), 7, None)
    item = to_item(set_key(1), "fledge", bare, 16, 99)
    assert not item.pop("p")["B"].strip(b"\x00")
    assert item == {
        "set_key": {"B": set_key(1)},
        "type": {"S": "fledge"},
        "members": {"B": pack(bare, 2)},
        "evaluated": {"N": "7"},
        "ttl": {"N": "99"},
    }
    full = to_item(set_key(1), "fledge", SetState((), (3, 6), 7, 9), 16, 99)
    assert full["crossings"] == {"L": [{"N": "3"}, {"N": "6"}]}
    assert full["wake_up"] == {"N": "9"}


TYPES = {
    "published": (PUBLISHED, "fledge"),
    "small": (SMALL, "t"),
    "one-sided": (ONE_SIDED, "search-term"),
    "three bytes a token": (Parameters(2_000, 720, 3600, *profile("balanced-2", 720), client_bits=20), "t" * 64),
    "four bytes a token": (Parameters(1_000, 168, 3600, *profile("sharp-2", 168), client_bits=32), "crowded"),
}
STEP = 472_000


def unpadded(item: Item) -> Item:
    """The item as versions before padding wrote it."""
    return {name: value for name, value in item.items() if name != "p"}


@pytest.mark.parametrize(("parameters", "name"), TYPES.values(), ids=TYPES)
@pytest.mark.parametrize(
    ("crossings", "wake_up"), [((), None), ((STEP - 700,), STEP + 5), ((STEP - 1400, STEP), STEP + 5)]
)
def test_zeros_do_not_change_the_write_units_of_an_item(
    parameters: Parameters, name: str, crossings: tuple[int, ...], wake_up: int | None
) -> None:
    members = tuple(Member(token, STEP) for token in range(parameters.members_kept))
    # A member takes at least 3 bytes, so 400 counts in a row meet every remainder of a write unit.
    counts = {*range(min(400, len(members))), len(members) - 1, len(members)}
    for count in counts:
        state = SetState(members[:count], crossings, STEP, wake_up)
        item = to_item(set_key(1), name, state, parameters.client_bits, 1_700_000_001)
        units = write_units(item_size(unpadded(item)))
        assert item_size(item) == WRITE_UNIT * units
        assert from_item(item) == from_item(unpadded(item)) == state


@pytest.mark.parametrize("bits", [17, 24, 32])
def test_the_largest_members_a_type_may_have_fit_into_an_item_and_one_more_client_is_refused(bits: int) -> None:
    laws = two_sided(Fraction(1), 2), two_sided(Fraction(1), 2)
    k = min(1 << bits - 3, MOST_MEMBER_BYTES // (-(-bits // 8) + 2)) - 4  # the tokens, or the item, set the limit
    largest = Parameters(k, 720, 3600, *laws, client_bits=bits)
    members = tuple(Member(2**bits - 1 - n, STEP) for n in range(largest.members_kept))
    item = to_item(set_key(1), "t" * 64, SetState(members, (STEP, STEP), STEP, STEP), bits, 1_700_000_001)
    assert item_size(item) % WRITE_UNIT == 0
    assert item_size(item) <= MOST_ITEM_BYTES
    with pytest.raises(InvalidParametersError, match=r"^a set would keep|^client_bits must lie"):
        replace(largest, k=k + 1)


@pytest.mark.parametrize("gap", [0, 1, 2, 3])
def test_a_gap_of_any_size_is_filled(gap: int) -> None:
    bare = to_item(set_key(1), "", SetState((), (), 7, None), 16, 99)
    letters = WRITE_UNIT - gap - item_size(unpadded(bare))
    item = to_item(set_key(1), "t" * letters, SetState((), (), 7, None), 16, 99)
    assert item_size(item) == WRITE_UNIT
    assert ("p" in item) == (gap > 0)


def test_a_state_that_was_never_evaluated_cannot_be_packed() -> None:
    with pytest.raises(ValueError, match=r"^only an evaluated state can be packed$"):
        pack(SetState(), 2)


@pytest.mark.parametrize(
    ("packed", "message"),
    [
        ("", "packed members of unknown format empty"),
        ("01 02", "packed members of unknown format 01"),
        ("02 02 0000000000000007", "packed members of unknown format 02"),
        ("00 02 0000000000000007", "packed members of unknown format 00"),
        ("01 02 0000000000000007 0102 00", "packed members of format 1 end inside a member"),
        ("01 00 0000000000000007 0102", "packed members of format 1 end inside a member"),
        ("01 05 0000000000000007", "packed members of format 1 end inside a member"),
    ],
)
def test_bytes_of_no_known_format_are_refused(packed: str, message: str) -> None:
    with pytest.raises(UndecodableMembersError, match=rf"^{message}$"):
        unpack(bytes.fromhex(packed))


ITEM = to_item(set_key(1), "fledge", SetState((Member(1, 5),), (3,), 7, 9), 16, 99)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"members": None}, "a Members item lacks an attribute or has one of the wrong type"),
        ({"evaluated": None}, "a Members item lacks an attribute or has one of the wrong type"),
        ({"members": {"S": "01"}}, "a Members item lacks an attribute or has one of the wrong type"),
        ({"crossings": {"N": "3"}}, "a Members item lacks an attribute or has one of the wrong type"),
        ({"crossings": {"L": [{"S": "x"}]}}, "a Members item lacks an attribute or has one of the wrong type"),
        ({"wake_up": {"NULL": True}}, "a Members item lacks an attribute or has one of the wrong type"),
        ({"evaluated": {"N": "8"}}, "packed members and their item name different steps"),
    ],
)
def test_an_item_that_cannot_be_read_is_refused(change: dict[str, Any], message: str) -> None:
    item = {name: value for name, value in {**ITEM, **change}.items() if value is not None}
    with pytest.raises(UndecodableMembersError, match=rf"^{message}$"):
        from_item(item)


def test_no_message_holds_a_set_or_a_member() -> None:
    with pytest.raises(UndecodableMembersError) as error:
        from_item({**ITEM, "members": {"B": b"\x07" * 40}})
    assert str(error.value) == "packed members of unknown format 07"


class Written:
    """DynamoDB that stores every item. ``calls`` has the keys of each call and the bytes of its members."""

    def __init__(self) -> None:
        self.calls: list[tuple[list[bytes], list[int]]] = []

    def batch_execute_statement(self, Statements: Any) -> Any:  # noqa: N803, as in boto3
        items = [one["Parameters"] for one in Statements]
        self.calls.append(([key["B"] for key, *_ in items], [len(packed["B"]) for _, _, packed, *_ in items]))
        return {"Responses": [{} for _ in Statements]}


def test_a_call_of_large_items_ends_before_it_takes_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BYTES_A_CALL", 2_000)
    sizes = [1, 200, 300, 5, 5, 900, 1, 1, 100, 40, 90, 3]
    keys = [set_key(n) for n in range(len(sizes))]
    states = [SetState(tuple(Member(token, 7) for token in range(size)), (), 7) for size in sizes]
    columns = States.of(list(zip(keys, states, strict=True)))
    update = Update("a", 16, columns, np.full(len(sizes), NEVER), [9] * len(sizes))
    client: Any = Written()
    with ThreadPoolExecutor(1) as writers:
        Members(client, "members").write(7, [update], writers)
    assert [key for written, _ in client.calls for key in written] == keys
    assert len(client.calls) > 2
    assert all(sum(packed[:-1]) < 2_000 for _, packed in client.calls), "the next item ended the call"
    assert all(sum(packed) >= 2_000 for _, packed in client.calls[:-1]), "no call ends early"
