"""The contract of the storage layer, on every engine available here."""

import itertools
import random
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from botocore.exceptions import ClientError

from kanon import clock
from kanon.dynamo.batches import ATTEMPTS
from kanon.dynamo.statements import execute_all, insert
from kanon.dynamo.statements import replace as replacement
from kanon.dynamo.units import WRITE_UNIT, item_size
from kanon.errors import (
    ConfigurationError,
    FingerprintMismatchError,
    LeaseLostError,
    ThrottledError,
    UndecodableMembersError,
)
from kanon.gate.mechanism.above_threshold import SetState
from kanon.gate.mechanism.members import Member
from kanon.gate.reading import Touched
from kanon.gate.slots import Layout, Layouts
from kanon.gate.storage.control import Mark, Progress
from kanon.gate.storage.members import is_newer, to_item
from kanon.gate.storage.statuses import Horizon, Statuses
from kanon.gate.storage.step_log import Row
from tests.integration.gate.tables import (
    Running,
    Tables,
    fresh,
    leave_unprocessed,
    refused_by_aws,
    running,
    states_of,
    throttle,
    watch,
    write,
    write_all,
)
from tests.moto_engine import ENGINES
from tests.unit.examples import set_key

STEP = 472_000
NOW = 1_699_200_200.25
SETS = sorted(set_key(n) for n in range(300))


@pytest.fixture(scope="module", params=sorted(ENGINES, reverse=True))
def engine(request: pytest.FixtureRequest) -> Iterator[Running]:
    with running(request.param) as engine:
        yield engine


@pytest.fixture
def tables(engine: Running) -> Tables:
    return fresh(engine)


@pytest.fixture(autouse=True)
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The length of every wait, which is skipped."""
    waits: list[float] = []
    monkeypatch.setattr(clock, "sleep", waits.append)
    return waits


def _join(name: bytes, token: int | None, step: int = STEP, expires: int = 2_000_000_000) -> Row:
    return Row(step, name, token, "fledge", expires)


def _touched(tables: Tables, step: int = STEP, slot: int = 0, after: bytes | None = None) -> list[Touched]:
    return tables.touched(step, slot, after=after)


# StepLog


def test_a_join_repeated_is_one_row(tables: Tables) -> None:
    for _ in range(2):
        tables.log.put(_join(SETS[0], 7))
    assert tables.log.put_all([_join(SETS[0], 7)] * 2) == []
    assert len(tables.items("StepLog")) == 1
    assert _touched(tables) == [Touched(SETS[0], "fledge", (7,))]


def test_the_sets_of_a_step_come_in_the_order_of_their_keys_with_their_distinct_tokens(tables: Tables) -> None:
    rows = [_join(name, token) for name in SETS[:40] for token in (3, 1, 2**32 - 1, 0)]
    random.Random(1).shuffle(rows)
    assert tables.log.put_all([*rows, *rows[:30]]) == []
    assert _touched(tables) == [Touched(name, "fledge", (0, 1, 3, 2**32 - 1)) for name in SETS[:40]]


def test_a_wake_up_touches_its_set_and_adds_no_client(tables: Tables) -> None:
    tables.log.put_wake_ups([_join(SETS[0], None), _join(SETS[1], None)])
    tables.log.put(_join(SETS[1], 5))
    assert _touched(tables) == [Touched(SETS[0], "fledge", ()), Touched(SETS[1], "fledge", (5,))]


def test_a_step_and_slot_holds_only_its_own_rows(tables: Tables) -> None:
    tables.layouts = Layouts((Layout(256, -1),))
    in_slots = {slot: next(key for n in range(9999) if (key := set_key(n))[0] == slot) for slot in (0, 1, 255)}
    places = [(step, slot) for step in (-1, 0, 1, STEP, STEP + 1, STEP + 256) for slot in in_slots]
    tables.log.put_all(_join(in_slots[slot], n, step) for n, (step, slot) in enumerate(places))
    for n, (step, slot) in enumerate(places):
        assert _touched(tables, step, slot) == [Touched(in_slots[slot], "fledge", (n,))]
    assert _touched(tables, STEP + 2) == []


def test_reading_after_a_set_gives_every_later_set_completely(tables: Tables) -> None:
    tables.log.put_all(_join(name, token) for name in SETS[:20] for token in (None, 0, 2**32 - 1))
    everything = _touched(tables)
    for n, name in enumerate(SETS[:20]):
        assert _touched(tables, after=name) == everything[n + 1 :]


def test_a_step_of_more_than_a_megabyte_is_read_page_by_page_without_loss(tables: Tables) -> None:
    names, tokens, type_name = SETS[:30], range(20), "t" * 4000  # long, so that few rows fill a page
    rows = [Row(STEP, name, token, type_name, 2_000_000_000) for name in names for token in tokens]
    assert tables.log.put_all(rows) == []
    tables.client = tables.running.engine.session().client("dynamodb")  # with the pages of the engine
    watch(tables)
    assert _touched(tables) == [Touched(name, type_name, tuple(tokens)) for name in names]
    pages = [call for call in tables.calls if call.operation == "Query"]
    assert len(pages) > 1
    assert all(page.asked["ConsistentRead"] for page in pages)


def test_unprocessed_rows_are_put_again(tables: Tables, slept: list[float]) -> None:
    leave_unprocessed(tables, "BatchWriteItem", lambda n, size: size // 2 if n <= 4 else 0)
    rows = [_join(name, 1) for name in SETS[:100]]
    assert tables.log.put_all(rows) == []
    assert len(_touched(tables)) == 100
    assert len(slept) >= 1


def test_rows_that_stay_unprocessed_are_named_and_the_others_are_stored(tables: Tables, slept: list[float]) -> None:
    leave_unprocessed(tables, "BatchWriteItem", lambda n, size: 1)
    rows = [_join(name, 1) for name in SETS[:25]]
    assert tables.log.put_all(rows) == [tables.log.item(rows[-1])]
    assert len(_touched(tables)) == 24
    assert len(slept) == ATTEMPTS - 1


def test_a_throttled_batch_is_put_again(tables: Tables) -> None:
    throttle(tables, "BatchWriteItem", often=1)
    assert tables.log.put_all([_join(name, 1) for name in SETS[:30]]) == []
    assert len(_touched(tables)) == 30


def test_wake_ups_that_stay_unprocessed_are_an_error(tables: Tables) -> None:
    leave_unprocessed(tables, "BatchWriteItem", lambda n, size: size)
    with pytest.raises(ThrottledError, match=r"^the log did not store every wake-up; evaluate the step again$"):
        tables.log.put_wake_ups([_join(SETS[0], None)])


def test_a_single_join_that_is_throttled_is_an_error(tables: Tables) -> None:
    throttle(tables, "PutItem", often=1)
    with pytest.raises(ClientError, match="ProvisionedThroughputExceeded"):
        tables.log.put(_join(SETS[0], 1))


# Members


def _state(step: int, *tokens: int) -> SetState:
    return SetState(tuple(Member(token, step) for token in tokens), (step - 9, step), step, step + 5)


def test_members_are_read_as_they_were_written_and_unknown_sets_are_left_out(tables: Tables) -> None:
    state = _state(STEP, 1, 2, 3)
    write(tables.members, SETS[0], "fledge", state, 16, 99)
    assert states_of(tables.members, SETS[:2]) == {SETS[0]: state}
    assert states_of(tables.members, []) == {}


@pytest.mark.parametrize(("first", "second", "kept"), [(5, 6, 6), (5, 5, 5), (6, 5, 6)])
def test_members_are_only_replaced_by_a_later_step(tables: Tables, first: int, second: int, kept: int) -> None:
    write(tables.members, SETS[0], "fledge", _state(first, 1), 16, 99)
    write(tables.members, SETS[0], "fledge", _state(second, 2), 16, 99)
    (state,) = states_of(tables.members, SETS[:1]).values()
    assert state == (_state(first, 1) if kept == first else _state(second, 2))


def test_a_removed_crossing_or_wake_up_leaves_no_attribute(tables: Tables) -> None:
    write(tables.members, SETS[0], "fledge", _state(5, 1), 16, 99)
    bare = SetState((), (), 6, None)
    write(tables.members, SETS[0], "fledge", bare, 16, 99)
    assert states_of(tables.members, SETS[:1]) == {SETS[0]: bare}


STORED = (None, 5, 6, 7)


@pytest.mark.parametrize("expected", [None, 4, 5])
def test_members_are_only_replaced_by_a_later_step_after_any_read(tables: Tables, expected: int | None) -> None:
    """The stored step is the read one, or it has changed since: another worker wrote, or the item expired."""
    for name, stored in zip(SETS, STORED, strict=False):
        if stored is not None:
            write(tables.members, name, "fledge", _state(stored, 1), 16, 99)
    write_all(tables.members, "fledge", dict.fromkeys(SETS[: len(STORED)], _state(6, 2)), 16, 99, expected)
    found = states_of(tables.members, SETS[: len(STORED)])
    assert [found[name].evaluated for name in SETS[: len(STORED)]] == [6, 6, 6, 7]
    assert [found[name].members[0].token for name in SETS[: len(STORED)]] == [2, 2, 1, 1]


@pytest.mark.parametrize("stored", [None, 5])
def test_an_item_is_stored_as_a_put_would_store_it(tables: Tables, stored: int | None) -> None:
    states = [_state(6, *range(count)) for count in range(24)]
    states += [SetState((), (), 6, None), SetState((), (3,), 6, None), SetState((), (), 6, 9)]
    full = SetState(tuple(Member(n, 5) for n in range(230)), (2, 4), 5, 8)
    for name, _ in zip(SETS, states, strict=False):
        if stored is not None:
            write(tables.members, name, "fledge", full, 16, 99)
    items = [to_item(name, "fledge", state, 16, 99) for name, state in zip(SETS, states, strict=False)]
    gap = 1024 - item_size({key: value for key, value in items[0].items() if key != "p"})
    items.append(to_item(SETS[30], "fledge" + "t" * gap, states[0], 16, 99))  # it needs no zeros
    assert "p" not in items[-1]
    if stored is not None:
        write(tables.members, SETS[30], "fledge", full, 16, 99)
    write_all(tables.members, "fledge", dict(zip(SETS, states, strict=False)), 16, 99, stored)
    write(tables.members, SETS[30], "fledge" + "t" * gap, states[0], 16, 99, stored)
    assert tables.items("Members") == items
    assert all(call.operation == "BatchExecuteStatement" for call in tables.calls)


def test_every_statement_of_a_call_succeeds_or_is_refused_alone(tables: Tables) -> None:
    table = tables.names["Members"]
    item = to_item(SETS[0], "fledge", _state(5, 1), 16, 99)
    write(tables.members, SETS[0], "fledge", _state(5, 1), 16, 99)
    new = [to_item(name, "fledge", SetState((), (3,), 6, None), 16, 99) for name in SETS[:5]]
    at = {step: {"evaluated": {"N": str(step)}} for step in (4, 5, 6)}
    statements = [
        insert(table, new[0]),  # there is one
        insert(table, new[1]),
        replacement(table, new[2], "set_key", ["wake_up"], at[5]),  # there is none, and none is created
        insert(table, new[3]),
        replacement(table, new[4], "set_key", ["wake_up"], {}),
    ]
    assert execute_all(tables.client, statements) == ([0, 2, 4], [])
    assert [found["set_key"]["B"] for found in tables.items("Members")] == [SETS[0], SETS[1], SETS[3]]
    wrong, right = (replacement(table, new[n], "set_key", ["wake_up"], at[4 + 2 * n]) for n in range(2))
    assert execute_all(tables.client, [wrong, right]) == ([0], [])
    assert tables.items("Members")[0] == item


def test_many_members_are_read_consistently_in_calls_of_a_hundred_without_duplicates(tables: Tables) -> None:
    for name in SETS[:130]:
        write(tables.members, name, "fledge", _state(STEP, 1), 16, 99)
    tables.calls.clear()
    assert set(states_of(tables.members, [*SETS, *SETS[:50]])) == set(SETS[:130])
    assert [call.items for call in tables.calls] == [100, 100, 100]
    assert all(next(iter(call.asked["RequestItems"].values()))["ConsistentRead"] for call in tables.calls)


def test_unprocessed_members_are_read_again(tables: Tables, slept: list[float]) -> None:
    for name in SETS[:40]:
        write(tables.members, name, "fledge", _state(STEP, 1), 16, 99)
    leave_unprocessed(tables, "BatchGetItem", lambda n, size: size // 2)
    assert set(states_of(tables.members, SETS[:50])) == set(SETS[:40])
    assert len(slept) >= 1


def test_members_without_an_answer_are_not_treated_as_missing(tables: Tables) -> None:
    write(tables.members, SETS[0], "fledge", _state(STEP, 1), 16, 99)
    leave_unprocessed(tables, "BatchGetItem", lambda n, size: 1)
    with pytest.raises(ThrottledError, match=r"^a table did not answer for every key; try again$"):
        states_of(tables.members, SETS[:2])


def test_members_that_cannot_be_read_are_an_error(tables: Tables) -> None:
    item = to_item(SETS[0], "fledge", _state(STEP, 1), 16, 99)
    tables.other_client().put_item(TableName=tables.names["Members"], Item={**item, "members": {"B": b"\x02rest"}})
    with pytest.raises(UndecodableMembersError):
        states_of(tables.members, SETS[:2])


def test_the_largest_members_a_type_may_have_fit_into_an_item(tables: Tables) -> None:
    from kanon.gate.mechanism.parameters import MOST_MEMBER_BYTES

    state = SetState(tuple(Member(2**32 - 1 - n, STEP) for n in range(MOST_MEMBER_BYTES // 6)), (), STEP, None)
    write(tables.members, SETS[0], "t" * 64, state, 32, 99)
    assert states_of(tables.members, SETS[:1]) == {SETS[0]: state}


@pytest.mark.parametrize("gap", [0, 1, 2])
def test_the_filler_of_an_item_does_not_change_its_state(gap: int, tables: Tables) -> None:
    state = SetState((), (), 7, None)
    bare = to_item(SETS[0], "", state, 16, 99)
    letters = WRITE_UNIT - gap - item_size({name: value for name, value in bare.items() if name != "p"})
    write(tables.members, SETS[0], "t" * letters, state, 16, 99)
    assert states_of(tables.members, SETS[:1]) == {SETS[0]: state}
    (item,) = tables.items("Members")
    assert item_size(item) == WRITE_UNIT
    (read,) = [call for call in tables.calls if call.operation == "BatchGetItem"]
    assert not [item for item in read.answered["Responses"][tables.names["Members"]] if "p" in item]


def test_an_item_of_a_version_without_zeros_is_read(tables: Tables) -> None:
    item = to_item(SETS[0], "fledge", _state(STEP, 1), 16, 99)
    del item["p"]
    tables.other_client().put_item(TableName=tables.names["Members"], Item=item)
    assert states_of(tables.members, SETS[:1]) == {SETS[0]: _state(STEP, 1)}


def test_the_sets_that_wake_before_a_step_are_found_among_others(tables: Tables) -> None:
    for n, wake_up in enumerate((None, STEP + 1, STEP + 4, STEP + 5)):
        write(tables.members, SETS[n], "fledge", SetState((), (), STEP, wake_up), 16, 99)
    assert sorted(tables.members.waking(STEP + 5)) == [(SETS[1], "fledge"), (SETS[2], "fledge")]


def test_the_stamp_of_a_slot_only_moves_forward_and_is_not_read_as_a_set(tables: Tables) -> None:
    assert tables.members.stamps([0, 3]) == {}
    for step in (STEP, STEP + 2, STEP + 1):
        tables.members.stamp(3, step)
    write(tables.members, SETS[0], "fledge", SetState((), (), STEP, None), 16, 99)
    assert tables.members.stamps([0, 3]) == {3: STEP + 2}
    assert [name for name, _, _ in tables.members.states()] == [SETS[0]]
    assert list(tables.members.undecodable()) == []
    assert list(tables.members.waking(STEP + 9)) == []


def test_stamps_of_statuses_are_checked_without_reading_or_changing_them(tables: Tables) -> None:
    assert not tables.statuses.is_stamped(3, 0)
    assert tables.items("Statuses") == []
    tables.statuses.move_horizon(3, STEP, 100)
    before = tables.items("Statuses")
    assert [tables.statuses.is_stamped(3, step) for step in (0, STEP, STEP + 1)] == [True, True, False]
    assert tables.items("Statuses") == before
    for step in (STEP + 5, STEP + 4):
        tables.statuses.stamp(3, step)
    tables.statuses.stamp(4, STEP)
    assert [tables.statuses.is_stamped(3, STEP + n) for n in (5, 6)] == [True, False]
    assert tables.statuses.read((), [3, 4])[1] == {3: Horizon(STEP, 100)}
    assert tables.statuses.released() == ({}, {3: Horizon(STEP, 100)})
    tables.statuses.move_horizon(3, STEP + 6, 200)
    assert tables.statuses.is_stamped(3, STEP + 6)
    tables.statuses.move_horizon(3, STEP + 7, 200)  # visible at the same tick
    assert tables.statuses.is_stamped(3, STEP + 7)


def test_a_mark_of_a_version_without_stamps_is_recognised_also_after_a_rollback(tables: Tables) -> None:
    tables.control.advance(0, None, STEP)
    assert tables.control.lease(0, "a", NOW, NOW + 150) == Mark(STEP, None, stamped=True)
    for update in ("SET evaluated_through = :next", "REMOVE stamped SET evaluated_through = :next"):
        tables.other_client().update_item(
            TableName=tables.names["Control"],
            Key={"name": {"S": "slot#0"}},
            UpdateExpression=update,
            ExpressionAttributeValues={":next": {"N": str(STEP + 1)}},
        )
        assert tables.control.lease(0, "a", NOW, NOW + 150) == Mark(STEP + 1, None, stamped=False)
        assert [progress.stamped for progress in tables.control.progress()] == [False]
    tables.control.advance(0, STEP + 1, STEP + 2)
    assert tables.control.lease(0, "a", NOW, NOW + 150) == Mark(STEP + 2, None, stamped=True)


def test_items_that_cannot_be_read_are_found_and_replaced_unless_that_was_done_meanwhile(tables: Tables) -> None:
    state = SetState((), (), STEP, None)
    good = to_item(SETS[0], "fledge", state, 16, 99)
    write(tables.members, SETS[0], "fledge", state, 16, 99)
    packed = (b"", b"\x01\x02", b"\x02" + bytes(9), good["members"]["B"])
    damaged = [{**good, "set_key": {"B": SETS[n]}, "members": {"B": value}} for n, value in enumerate(packed, 1)]
    del damaged[3]["evaluated"]
    damaged.append({"set_key": {"B": SETS[5]}, "evaluated": {"S": "?"}})
    for item in damaged:
        tables.other_client().put_item(TableName=tables.names["Members"], Item=item)
    found = sorted(tables.members.undecodable(), key=lambda item: item["set_key"]["B"])
    assert [item["set_key"]["B"] for item in found] == SETS[1:6]
    assert [is_newer(item) for item in found] == [False, False, True, False, False]

    write(tables.members, SETS[6], "fledge", state, 16, 99)
    for item in found:
        tables.members.replace(item, "fledge", state, 16, 99)
    changed = {**good, "set_key": {"B": SETS[1]}, "members": {"B": b"changed meanwhile"}}
    tables.other_client().put_item(TableName=tables.names["Members"], Item=changed)
    tables.members.replace(found[0], "fledge", state, 16, 99)
    assert [item["set_key"]["B"] for item in tables.members.undecodable()] == [SETS[1]]


# Statuses


@pytest.mark.parametrize(("first", "second", "kept"), [(5, 6, 6), (5, 5, 5), (6, 5, 6)])
def test_a_status_is_only_replaced_by_a_later_crossing(tables: Tables, first: int, second: int, kept: int) -> None:
    tables.statuses.write(SETS[0], (1, first), 100 + first)
    tables.statuses.write(SETS[0], (2, second), 200 + second)
    (item,) = tables.items("Statuses")
    written = (1, first) if kept == first else (2, second)
    assert tables.statuses.read(SETS[:1], ()) == ({SETS[0]: written}, {})
    assert item["ttl"] == {"N": str(100 + first if kept == first else 200 + second)}


@pytest.mark.parametrize("known", [True, False])
def test_a_suppression_survives_every_crossing_hides_them_and_never_expires(tables: Tables, known: bool) -> None:
    if known:
        tables.statuses.write(SETS[0], (2,), 99)
    tables.statuses.suppress(SETS[0])
    tables.statuses.suppress(SETS[0])
    tables.statuses.write(SETS[0], (5,), 99)
    tables.statuses.write(SETS[0], (5, 11), 99)
    tables.statuses.write(SETS[0], (5, 10), 99)  # an older one, late
    assert tables.statuses.read(SETS[:1], ())[0] == {SETS[0]: ()}
    assert tables.statuses.crossings(SETS[:2]) == {SETS[0]: (5, 11)}
    assert "ttl" not in tables.items("Statuses")[0]
    assert tables.statuses.show(SETS[0], 199)
    assert tables.statuses.read(SETS[:1], ())[0] == {SETS[0]: (5, 11)}
    assert tables.items("Statuses")[0]["ttl"] == {"N": "199"}


@pytest.mark.parametrize("changes", [1, 2, 3])
def test_a_crossing_is_recorded_though_an_operator_changes_the_suppression_between_the_attempts(
    tables: Tables, changes: int
) -> None:
    tables.statuses.write(SETS[0], (2,), 99)
    tables.statuses.suppress(SETS[0])
    operator = Statuses(tables.other_client(), tables.names["Statuses"])
    attempts = itertools.count()

    def change(**_: Any) -> None:
        """Change the suppression before the second attempt, the third, ..."""
        attempt = next(attempts)
        if 1 <= attempt <= changes:
            _ = operator.show(SETS[0], 99) if attempt % 2 else operator.suppress(SETS[0])

    tables.client.meta.events.register("before-call.dynamodb.UpdateItem", change)
    tables.statuses.write(SETS[0], (2, 7), 99)
    assert operator.crossings(SETS[:1]) == {SETS[0]: (2, 7)}
    assert next(attempts) == changes + 2


def test_only_a_suppressed_set_can_be_shown_again(tables: Tables) -> None:
    assert not tables.statuses.show(SETS[0], 99)
    assert tables.items("Statuses") == []


def test_sets_and_horizons_are_read_together_and_are_not_confused(tables: Tables) -> None:
    tables.statuses.write(SETS[0], (5,), 99)
    tables.statuses.move_horizon(3, STEP, 1_699_203_800)
    crossings, horizons = tables.statuses.read([*SETS[:2], SETS[0]], [3, 4, 3])
    assert crossings == {SETS[0]: (5,)}
    assert horizons == {3: Horizon(STEP, 1_699_203_800, None)}


def test_unprocessed_statuses_are_read_again(tables: Tables) -> None:
    for name in SETS[:60]:
        tables.statuses.write(name, (5,), 99)
    leave_unprocessed(tables, "BatchGetItem", lambda n, size: size // 2)
    assert tables.statuses.read(SETS[:60], ())[0] == dict.fromkeys(SETS[:60], (5,))


@pytest.mark.parametrize("all_of_them", [True, False])
def test_a_status_or_horizon_never_answered_is_never_read_as_false(tables: Tables, all_of_them: bool) -> None:
    tables.statuses.write(SETS[0], (5,), 99)
    leave_unprocessed(tables, "BatchGetItem", lambda n, size: size if all_of_them else 1)
    with pytest.raises(ThrottledError, match=r"^a table did not answer for every key; try again$"):
        tables.statuses.read(SETS[:2], [0])


def test_a_throttled_read_is_repeated_and_then_an_error(tables: Tables) -> None:
    tables.statuses.write(SETS[0], (5,), 99)
    throttle(tables, "BatchGetItem", often=1)
    assert tables.statuses.read(SETS[:1], ())[0] == {SETS[0]: (5,)}
    throttle(tables, "BatchGetItem", often=99)
    with pytest.raises(ThrottledError):
        tables.statuses.read(SETS[:1], ())


# Horizons (rule 3)


def test_the_first_step_of_a_slot_is_visible_from_its_tick_on(tables: Tables) -> None:
    tables.statuses.move_horizon(0, 7, visible_from=200)
    horizon = tables.statuses.read((), [0])[1][0]
    assert horizon == Horizon(through=7, visible_from=200)
    assert [horizon.at(now) for now in (100, 199.9, 200, 10**9)] == [None, None, 7, 7]


def test_a_visible_step_stays_visible_until_the_next_one_is(tables: Tables) -> None:
    tables.statuses.move_horizon(0, 7, visible_from=200)
    tables.statuses.move_horizon(0, 8, visible_from=300)
    horizon = tables.statuses.read((), [0])[1][0]
    assert horizon == Horizon(through=8, visible_from=300, earlier=7, earlier_from=200)
    assert [horizon.at(now) for now in (250, 300)] == [7, 8]


def test_steps_caught_up_before_a_tick_all_become_visible_at_it(tables: Tables) -> None:
    tables.statuses.move_horizon(0, 7, visible_from=200)
    for step in (8, 9, 10):
        tables.statuses.move_horizon(0, step, visible_from=400)
    horizon = tables.statuses.read((), [0])[1][0]
    assert horizon == Horizon(through=10, visible_from=400, earlier=7, earlier_from=200)


@pytest.mark.parametrize("step", [6, 7])
@pytest.mark.parametrize("visible_from", [100, 200, 999])
def test_a_step_completed_again_moves_nothing(tables: Tables, step: int, visible_from: int) -> None:
    tables.statuses.move_horizon(0, 7, visible_from=200)
    tables.statuses.move_horizon(0, step, visible_from)
    assert tables.statuses.read((), [0])[1][0] == Horizon(7, 200)


@pytest.mark.parametrize("now", [250, 299.9, 300, 399])
def test_a_step_completed_near_a_tick_hides_nothing_from_readers_before_or_after_it(tables: Tables, now: float) -> None:
    tables.statuses.move_horizon(0, 7, visible_from=200)
    tables.statuses.move_horizon(0, 8, visible_from=300)
    before = tables.statuses.read((), [0])[1][0]
    tables.statuses.move_horizon(0, 9, visible_from=400)  # its worker's clock said 299, or 301
    after = tables.statuses.read((), [0])[1][0]
    assert after.at(now) == before.at(now) == (7 if now < 300 else 8)
    assert after.at(400) == 9


def test_a_worker_whose_clock_is_behind_shows_nothing_sooner(tables: Tables) -> None:
    tables.statuses.move_horizon(0, 7, visible_from=300)
    tables.statuses.move_horizon(0, 8, visible_from=200)
    assert tables.statuses.read((), [0])[1][0] == Horizon(8, 300)


def test_horizons_follow_rule_3_in_any_history(tables: Tables) -> None:
    random_ = random.Random(3)
    for slot in range(8):
        stored: Horizon | None = None
        step, now = 0, 0.0
        for _ in range(10):
            step += random_.choice((-1, 0, 1, 1, 1))
            now += random_.choice((0, 10, 100.5))
            visible_from = (int(now) // 100 + 1) * 100
            tables.statuses.move_horizon(slot, step, visible_from)
            if stored is None:
                stored = Horizon(step, visible_from)
            elif stored.through < step and stored.visible_from < visible_from:
                stored = Horizon(step, visible_from, stored.through, stored.visible_from, stored.earlier)
            elif stored.through < step:
                stored = replace(stored, through=step)
            assert tables.statuses.read((), [slot])[1][slot] == stored


def test_the_visible_step_never_goes_back_and_changes_at_ticks_only(tables: Tables) -> None:
    seen: list[tuple[float, int | None]] = []
    for step, now in enumerate(range(10, 1000, 37)):
        tables.statuses.move_horizon(0, step, (now + 20) // 100 * 100 + 100)
        horizon = tables.statuses.read((), [0])[1][0]
        seen += [(at, horizon.at(at)) for at in (now, now + 36)]
    for (before, shown), (after, then) in pairwise(seen):
        assert (then if then is not None else -1) >= (shown if shown is not None else -1)
        if before // 100 == after // 100:
            assert then == shown


# Control: leases, marks, places to resume


def test_a_lease_is_held_by_one_worker_until_it_is_released_or_expires(tables: Tables) -> None:
    assert tables.control.lease(0, "a", NOW, NOW + 150) == Mark(None, None)
    assert tables.control.lease(0, "b", NOW + 149.5, NOW + 300) is None
    assert tables.control.lease(1, "b", NOW, NOW + 150) == Mark(None, None)  # another slot is free
    tables.control.release(0, "a")
    assert tables.control.lease(0, "b", NOW + 1, NOW + 151) == Mark(None, None)
    assert tables.control.lease(0, "c", NOW + 151, NOW + 301) is None
    assert tables.control.lease(0, "c", NOW + 151.25, NOW + 301) == Mark(None, None)


def test_the_holder_of_a_lease_may_take_it_again(tables: Tables) -> None:
    tables.control.lease(0, "a", NOW, NOW + 150)
    assert tables.control.lease(0, "a", NOW, NOW + 150) == Mark(None, None)


def test_only_the_holder_of_a_lease_can_release_it(tables: Tables) -> None:
    tables.control.lease(0, "a", NOW, NOW + 150)
    tables.control.release(0, "b", resume=(0, SETS[0]))
    assert tables.control.lease(0, "c", NOW + 1, NOW + 151) is None
    assert "resume_step" not in tables.items("Control")[0]


def test_a_mark_moves_only_from_the_step_that_its_worker_read(tables: Tables) -> None:
    tables.control.advance(0, None, STEP)
    tables.control.advance(0, STEP, STEP + 1)
    tables.control.advance(0, STEP + 1, STEP + 9)
    assert tables.control.lease(0, "a", NOW, NOW + 150) == Mark(STEP + 9, None)


@pytest.mark.parametrize("before", [None, STEP - 1, STEP + 1])
def test_a_worker_stops_if_another_one_moved_the_mark(tables: Tables, before: int | None) -> None:
    tables.control.advance(7, None, STEP)
    with pytest.raises(LeaseLostError, match=r"^another worker took slot 7 or moved its mark, and continues there$"):
        tables.control.advance(7, before, STEP + 2)
    assert tables.control.lease(7, "a", NOW, NOW + 150) == Mark(STEP, None)


def test_a_worker_that_leaves_moves_the_mark_and_gives_its_lease_back_in_one_write(tables: Tables) -> None:
    tables.control.lease(0, "a", NOW, NOW + 150)
    tables.control.advance(0, None, STEP, leaving="a")
    assert tables.control.lease(0, "b", NOW, NOW + 150) == Mark(STEP, None)
    tables.control.advance(0, STEP, STEP + 1, leaving="b")
    assert tables.control.lease(0, "c", NOW, NOW + 150) == Mark(STEP + 1, None)


def test_a_worker_that_leaves_after_its_lease_was_taken_moves_nothing(tables: Tables) -> None:
    tables.control.advance(0, None, STEP)
    tables.control.lease(0, "a", NOW, NOW + 150)
    tables.control.lease(0, "b", NOW + 151, NOW + 301)
    with pytest.raises(LeaseLostError):
        tables.control.advance(0, STEP, STEP + 1, leaving="a")
    assert tables.control.evaluated_through(0) == STEP
    assert tables.control.lease(0, "c", NOW + 152, NOW + 302) is None


def test_a_worker_that_expects_a_mark_never_creates_it(tables: Tables) -> None:
    with pytest.raises(LeaseLostError):
        tables.control.advance(7, STEP - 1, STEP)


def test_a_worker_that_runs_out_of_time_stores_where_to_resume(tables: Tables) -> None:
    tables.control.advance(0, None, STEP)
    tables.control.lease(0, "a", NOW, NOW + 150)
    tables.control.release(0, "a", resume=(STEP + 1, SETS[9]))
    assert tables.control.lease(0, "b", NOW, NOW + 150) == Mark(STEP, SETS[9])


def test_a_worker_stores_its_place_only_while_it_holds_the_lease(tables: Tables) -> None:
    tables.control.advance(0, None, STEP)
    tables.control.lease(0, "a", NOW, NOW + 150)
    tables.control.keep_place(0, "b", (STEP + 1, SETS[2]))
    tables.control.keep_place(0, "a", (STEP + 1, SETS[9]))
    assert tables.control.lease(0, "c", NOW, NOW + 150) is None
    assert tables.control.lease(0, "c", NOW + 151, NOW + 301) == Mark(STEP, SETS[9])
    tables.control.keep_place(0, "a", (STEP + 1, SETS[2]))
    tables.control.release(0, "c")
    assert tables.control.lease(0, "d", NOW, NOW + 150) == Mark(STEP, SETS[9])


def test_the_resume_point_of_a_completed_step_is_ignored(tables: Tables) -> None:
    tables.control.advance(0, None, STEP)
    tables.control.lease(0, "a", NOW, NOW + 150)
    tables.control.release(0, "a", resume=(STEP + 1, SETS[9]))
    tables.control.advance(0, STEP, STEP + 1)
    assert tables.control.lease(0, "b", NOW, NOW + 150) == Mark(STEP + 1, None)


def test_an_operator_sees_the_progress_of_every_slot_and_nothing_else(tables: Tables) -> None:
    tables.control.check("join", PRINTS)
    tables.control.advance(0, None, STEP)
    tables.control.advance(255, None, STEP + 1)
    tables.control.lease(255, "a", NOW, NOW + 150)
    tables.control.lease(3, "b", NOW, NOW + 150)
    assert sorted(tables.control.progress(), key=lambda progress: progress.slot) == [
        Progress(0, STEP, None),
        Progress(3, None, NOW + 150),
        Progress(255, STEP + 1, NOW + 150),
    ]


# Control: fingerprints

PRINTS = {"type a": "01", "key set-pepper": "02", "slots": "8"}


def test_fingerprints_are_recorded_once_and_then_compared(tables: Tables) -> None:
    tables.control.check("join", PRINTS)
    tables.control.check("join", PRINTS)
    assert tables.control.recorded("join") == PRINTS
    assert tables.control.recorded("query") == {}


def test_a_new_type_is_added_and_a_retired_one_is_remembered(tables: Tables) -> None:
    tables.control.check("join", PRINTS)
    tables.control.check("join", {"type b": "03", "slots": "8"})
    assert tables.control.recorded("join") == {**PRINTS, "type b": "03"}


@pytest.mark.parametrize("changed", sorted(PRINTS))
def test_a_changed_fingerprint_is_refused_and_nothing_is_recorded(tables: Tables, changed: str) -> None:
    tables.control.check("join", PRINTS)
    with pytest.raises(
        FingerprintMismatchError,
        match=r"^join: a type's parameters, a key, the outage allowance, the publish delay, MaxStale or the number",
    ):
        tables.control.check("join", {**PRINTS, changed: "99", "type new": "04"})
    assert tables.control.recorded("join") == PRINTS


def test_each_function_has_separate_fingerprints(tables: Tables) -> None:
    tables.control.check("join", PRINTS)
    tables.control.check("query", {"slots": "16"})
    assert tables.control.recorded("query") == {"slots": "16"}


def test_an_old_fingerprint_must_be_recorded_unless_the_function_has_never_started(tables: Tables) -> None:
    first, later = {"slots": "1", "deployment": "stack"}, {"slots 90": "16"}
    tables.control.check("query", {**first, **later}, old=["slots 90"])  # the first start
    tables.control.check("join", first)
    with pytest.raises(FingerprintMismatchError, match="let a new entry of Slots begin at least two steps ahead"):
        tables.control.check("join", {**first, **later}, old=["slots 90"])
    assert tables.control.recorded("join") == first
    tables.control.check("join", later)
    tables.control.check("join", {**first, **later}, old=["slots 90"])


def test_fingerprints_too_many_for_one_update_are_refused(tables: Tables) -> None:
    tables.control.check("join", {f"type {n}": "01" for n in range(70)})
    with pytest.raises(ConfigurationError, match=r"^100 types and keys are more than one deployment can hold"):
        tables.control.check("join", {f"type {n}": "01" for n in range(100)})


# Expiry


def test_only_rows_whose_time_has_passed_are_deleted(tables: Tables) -> None:
    tables.log.put_all([_join(SETS[0], 1, expires=999), _join(SETS[1], 1, expires=1000), _join(SETS[2], 1)])
    write(tables.members, SETS[0], "fledge", _state(5, 1), 16, 999)
    tables.statuses.write(SETS[0], (5,), 999)
    tables.statuses.move_horizon(0, 7, 200)
    assert tables.expire(1000) == 3
    assert [touched.set_key for touched in _touched(tables)] == SETS[1:3]
    assert states_of(tables.members, SETS[:1]) == {}
    assert tables.statuses.read(SETS[:1], [0]) == ({}, {0: Horizon(7, 200)})  # a horizon has no time to live


# The checks of calls


@pytest.mark.parametrize(
    ("operation", "asked", "problem"),
    [
        (
            "BatchWriteItem",
            {
                "RequestItems": {
                    "x-Members": [{"PutRequest": {"Item": {"set_key": {"B": bytes([n])}}}} for n in range(26)]
                }
            },
            "26 writes",
        ),
        (
            "BatchWriteItem",
            {"RequestItems": {"x-Members": [{"PutRequest": {"Item": {"set_key": {"B": b"k"}}}}] * 2}},
            "two writes of one key",
        ),
        (
            "BatchWriteItem",
            {"RequestItems": {"x-Members": [{"PutRequest": {"Item": {"set_key": {"B": b""}}}}]}},
            "an empty key",
        ),
        (
            "BatchGetItem",
            {"RequestItems": {"x-Members": {"Keys": [{"set_key": {"B": bytes([n])}} for n in range(101)]}}},
            "101 keys",
        ),
        (
            "BatchGetItem",
            {"RequestItems": {"x-Members": {"Keys": [{"set_key": {"B": b"k"}}] * 2}}},
            "a key twice",
        ),
        ("PutItem", {"Item": {"v": {"B": bytes(400 * 1024)}}}, "more than 400 KB"),
        ("UpdateItem", {"UpdateExpression": "SET ttl = :t"}, "reserved words"),
        ("UpdateItem", {"UpdateExpression": "SET a = :a", "ExpressionAttributeValues": {}}, "placeholders"),
        (
            "UpdateItem",
            {"UpdateExpression": "REMOVE a", "ExpressionAttributeValues": {":a": {"N": "1"}}},
            "placeholders",
        ),
        ("UpdateItem", {"UpdateExpression": "SET " + "a" * 4096}, "more than 4 KB"),
    ],
)
def test_the_checks_of_these_tests_find_calls_that_aws_refuses(
    operation: str, asked: dict[str, object], problem: str
) -> None:
    assert problem in str(refused_by_aws(operation, asked))
