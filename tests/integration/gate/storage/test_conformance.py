"""The contract of the storage layer, on every engine available here."""

import itertools
import random
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from kanon import clock
from kanon.dynamo.batches import ATTEMPTS
from kanon.dynamo.limits import check_item
from kanon.errors import (
    ConfigurationError,
    FingerprintMismatchError,
    LeaseLostError,
    ThrottledError,
    UndecodableMembersError,
)
from kanon.gate.parts import Part
from kanon.gate.publishing import Horizon, moved_horizon
from kanon.gate.slots import Layout, Layouts
from kanon.gate.storage.aws import statuses
from kanon.gate.storage.aws.control import Commit, Control, Place, Progress, SlotRow
from kanon.gate.storage.aws.parts import PartList
from kanon.gate.storage.aws.statuses import Statuses
from kanon.gate.storage.aws.step_joins import StepJoins
from kanon.gate.storage.aws.step_log import Row, StepLog
from kanon.gate.storage.aws.true_objects import run_of, step_of
from tests.integration.gate.tables import (
    NUMBERS,
    Running,
    Tables,
    cross,
    fresh,
    leave_unprocessed,
    move_horizon,
    refused_by_aws,
    running,
    watch,
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


def _join(name: bytes, token: int, step: int = STEP, expires: int = 2_000_000_000) -> Row:
    return Row(step, name, token, "fledge", expires)


def _joined(tables: Tables, step: int = STEP, slot: int = 0) -> dict[bytes, list[int]]:
    return tables.joined(step, slot)


# StepLog


def test_a_join_repeated_is_one_row(tables: Tables) -> None:
    for _ in range(2):
        tables.log.put(_join(SETS[0], 7))
    assert tables.log.put_all([_join(SETS[0], 7)] * 2) == []
    assert len(tables.items("StepLog")) == 1
    assert _joined(tables) == {SETS[0]: [7]}


def test_the_sets_of_a_step_come_in_the_order_of_their_keys_with_their_distinct_tokens(tables: Tables) -> None:
    rows = [_join(name, token) for name in SETS[:40] for token in (3, 1, 2**32 - 1, 0)]
    random.Random(1).shuffle(rows)
    assert tables.log.put_all([*rows, *rows[:30]]) == []
    assert list(_joined(tables).items()) == [(name, [0, 1, 3, 2**32 - 1]) for name in SETS[:40]]


def test_a_step_and_slot_holds_only_its_own_rows(tables: Tables) -> None:
    tables.layouts = Layouts((Layout(256, -1),))
    in_slots = {slot: next(key for n in range(9999) if (key := set_key(n))[0] == slot) for slot in (0, 1, 255)}
    places = [(step, slot) for step in (-1, 0, 1, STEP, STEP + 1, STEP + 256) for slot in in_slots]
    tables.log.put_all(_join(in_slots[slot], n, step) for n, (step, slot) in enumerate(places))
    for n, (step, slot) in enumerate(places):
        assert _joined(tables, step, slot) == {in_slots[slot]: [n]}
    assert _joined(tables, STEP + 2) == {}


def test_a_step_of_more_than_a_megabyte_is_read_page_by_page_without_loss(tables: Tables) -> None:
    names, tokens, type_name = SETS[:30], range(20), "t" * 4000  # long, so that few rows fill a page
    NUMBERS[type_name] = 9
    rows = [Row(STEP, name, token, type_name, 2_000_000_000) for name in names for token in tokens]
    assert tables.log.put_all(rows) == []
    tables.client = tables.running.engine.session().client("dynamodb")  # with the pages of the engine
    watch(tables)
    assert _joined(tables) == {name: list(tokens) for name in names}
    pages = [call for call in tables.calls if call.operation == "Query"]
    assert len(pages) > 1
    assert all(page.asked["ConsistentRead"] for page in pages)


def test_rows_that_stay_unprocessed_are_named_and_the_others_are_stored(tables: Tables, slept: list[float]) -> None:
    leave_unprocessed(tables, "BatchWriteItem", lambda n, size: 1)
    rows = [_join(name, 1) for name in SETS[:25]]
    assert tables.log.put_all(rows) == [tables.log.item(rows[-1])]
    assert len(_joined(tables)) == 24
    assert len(slept) == ATTEMPTS - 1


def test_joins_get_other_tokens_in_rows_and_packed_items_and_nothing_else_changes(tables: Tables) -> None:
    tables.layouts = Layouts((Layout(1, 0), Layout(1, STEP - 1, 4)), late=2)
    entry = {token: SETS[0] + token.to_bytes(4, "big") for token in (7, 70_000, 9)}
    tables.log.put_all(
        [_join(SETS[0], 7, expires=3), _join(SETS[0], 8), _join(SETS[1], 7), _join(SETS[0], 7, STEP + 1)]
    )
    old = _join(SETS[0], 9, expires=4)
    late = StepLog(tables.client, tables.names["StepLog"], Layouts((Layout(1, 0),)))  # of an older version
    late.put(old)
    assert tables.log.put_groups([[_join(SETS[0], 70_000), _join(SETS[1], 5)], [_join(SETS[2], 7), _join(SETS[2], 8)]])
    before = tables.items("StepLog")
    changed = {entry[7]: 6, entry[70_000]: 3, entry[9]: 90_000}
    assert tables.log.replace(STEP, 0, changed) == set(changed)
    assert _joined(tables) == {SETS[0]: [3, 6, 8, 90_000], SETS[1]: [5, 7], SETS[2]: [7, 8]}
    assert _joined(tables, STEP + 1) == {SETS[0]: [7]}
    after = tables.items("StepLog")
    assert len(after) == len(before)
    assert [item for item in after if item["ttl"]["N"] == "3"] == [tables.log.item(_join(SETS[0], 6, expires=3))]
    assert [item for item in after if item["ttl"]["N"] == "4"] == [tables.log.item(replace(old, token=90_000))]
    assert len([item for item in after if item in before]) == len(before) - 3
    assert tables.log.replace(STEP, 0, changed) == set()
    assert tables.items("StepLog") == after


def test_replaced_joins_keep_the_sealed_values_of_their_sets(tables: Tables) -> None:
    tables.layouts = Layouts((Layout(1, 0, 2),))
    rows = [replace(_join(name, 7), sealed=b"of %d" % n) for n, name in enumerate(SETS[:3])]
    tables.log.put(rows[0])
    assert tables.log.put_groups([rows[1:]]) == [True]
    changed = {name + (7).to_bytes(4, "big"): 70_001 for name in SETS[:2]}
    assert tables.log.replace(STEP, 0, changed) == set(changed)
    assert _joined(tables) == {SETS[0]: [70_001], SETS[1]: [70_001], SETS[2]: [7]}
    with StepJoins(tables.log, 0, NUMBERS) as joins:
        assert joins.sealed(STEP, SETS[0], None) == {row.set_key: row.sealed for row in rows}
        assert joins.sealed(STEP, SETS[1], SETS[2]) == {SETS[1]: b"of 1"}


def test_a_record_is_erased_alone(tables: Tables) -> None:
    tables.control.check("evaluate", {"a": "1", "forgetting": "2"})
    tables.control.erase("evaluate", "forgetting")
    tables.control.erase("evaluate", "forgetting")
    assert tables.control.recorded("evaluate") == {"a": "1"}


# Parts


PLACE = Place(0, 3)


def _part(*keys: bytes) -> Part:
    empty = Part.empty().with_sets(np.array(sorted(keys), "S32"), np.full(len(keys), 4, np.uint8))
    return replace(empty, ends=np.full(len(keys), STEP + 9))


def test_a_part_is_read_as_it_was_put_and_no_name_is_used_twice(tables: Tables) -> None:
    parts = tables.parts(PLACE)
    pieces = [parts.put(_part(*SETS[:n]), STEP, 7, "00") for n in (3, 3, 4)]
    assert len({piece.name for piece in pieces}) == 3
    assert [len(parts.read(piece)) for piece in pieces] == [3, 3, 4]
    assert [piece.earliest for piece in pieces] == [STEP + 10] * 3
    assert {(step_of(piece.name), run_of(piece.name)) for piece in pieces} == {(STEP, 7)}
    sizes = {each["Size"] for each in tables.s3.list_objects_v2(Bucket=tables.bucket)["Contents"]}
    assert sizes <= {1 << 16, 1 << 17}


def test_a_list_is_read_as_it_was_put_and_its_size_tells_little(tables: Tables) -> None:
    parts = tables.parts(PLACE)
    pieces = tuple(parts.put(_part(SETS[n]), STEP, 7, f"{n:064x}") for n in range(3))
    for listed in (PartList(STEP, pieces), PartList(STEP, pieces, "ab" * 32, 2), PartList(STEP, ())):
        name = parts.put_list(listed, 7)
        assert parts.list_of(name) == tables.parts(Place(0, 4)).list_of(name) == listed
        assert tables.s3.head_object(Bucket=tables.bucket, Key=name)["ContentLength"] == 1 << 16


def test_objects_that_are_missing_or_were_changed_are_refused(tables: Tables) -> None:
    parts = tables.parts(PLACE)
    piece, name = parts.put(_part(SETS[0]), STEP, 7, "00"), parts.put_list(PartList(STEP, ()), 7)
    for key, read in ((piece.name, lambda: parts.read(piece)), (name, lambda: parts.list_of(name))):
        read()
        tables.s3.put_object(Bucket=tables.bucket, Key=key, Body=b"{}")
        with pytest.raises(UndecodableMembersError, match="of the bucket of states is not as it was written"):
            read()
        tables.s3.delete_object(Bucket=tables.bucket, Key=key)
        with pytest.raises(UndecodableMembersError, match="of the bucket of states is missing"):
            read()


def test_a_sweep_deletes_unnamed_objects_of_earlier_runs_of_its_slot(tables: Tables) -> None:
    parts, other = tables.parts(PLACE), tables.parts(Place(0, 30))
    put = {run: [parts.put(_part(SETS[0]), STEP, run, "00").name for _ in range(2)] for run in (6, 7, 8)}
    beside = other.put(_part(SETS[0]), STEP, 6, "00").name
    parts.sweep({put[6][0]}, 8)
    assert tables.objects() == sorted([put[6][0], *put[8], beside])


# Statuses


@pytest.mark.parametrize(("first", "second", "kept"), [(5, 6, 6), (5, 5, 5), (6, 5, 6)])
def test_a_status_is_only_replaced_by_a_later_crossing(tables: Tables, first: int, second: int, kept: int) -> None:
    cross(tables.statuses, SETS[0], (1, first), 100 + first)
    cross(tables.statuses, SETS[0], (2, second), 200 + second)
    (item,) = tables.items("Statuses")
    written = (1, first) if kept == first else (2, second)
    assert tables.statuses.read(SETS[:1], ()) == ({SETS[0]: written}, {})
    assert item["ttl"] == {"N": str(100 + first if kept == first else 200 + second)}


def test_the_crossing_of_a_set_that_was_forgotten_leaves_the_one_before_to_readers(tables: Tables) -> None:
    for crossing, kept in ((5, (5,)), (5, (5,)), (11, (5, 11)), (17, (11, 17))):
        cross(tables.statuses, SETS[0], (crossing,), 99)
        assert tables.statuses.crossings(SETS[:1]) == {SETS[0]: kept}
    cross(tables.statuses, SETS[0], (17, 23), 99)
    assert tables.statuses.crossings(SETS[:1]) == {SETS[0]: (17, 23)}


def test_a_set_that_crosses_and_is_forgotten_for_years_keeps_a_small_item(tables: Tables) -> None:
    fence = tables.control.fence(PLACE, _leased(tables), 1)
    for number in range(1, 300):
        assert tables.statuses.write(fence, [(name, (6 * number,), number) for name in SETS[: 1 + number % 3]])
        kept = tuple(6 * n for n in range(1, number + 1))[-2:]
        assert tables.statuses.crossings(SETS[:1]) == {SETS[0]: kept}
    stored = {item["set_key"]["B"]: item for item in tables.items("Statuses")}
    assert [int(stored[name]["ttl"]["N"]) for name in SETS[:3]] == [299, 299, 299]
    assert all(len(stored[name]["crossings"]["L"]) <= statuses.MOST_CROSSINGS for name in SETS[:3])


def test_an_item_with_more_crossings_than_it_may_have_is_cut_with_the_next_one(
    tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(statuses, "MOST_CROSSINGS", 99)
        for step in range(20):
            cross(tables.statuses, SETS[0], (step,), 99)
    cross(tables.statuses, SETS[0], (19,), 100)  # again
    (item,) = tables.items("Statuses")
    assert (len(item["crossings"]["L"]), item["ttl"]) == (20, {"N": "99"})
    cross(tables.statuses, SETS[0], (20,), 100)
    (item,) = tables.items("Statuses")
    assert item["crossings"] == {"L": [{"N": "19"}, {"N": "20"}]}


@pytest.mark.parametrize("known", [True, False])
def test_a_suppression_survives_crossings_and_hides_them_from_the_next_read_on(tables: Tables, known: bool) -> None:
    reader = Statuses(tables.client, tables.names["Statuses"])
    if known:
        cross(tables.statuses, SETS[0], (2,), 99)
    tables.statuses.suppress(SETS[0])
    tables.statuses.suppress(SETS[0])
    cross(tables.statuses, SETS[0], (5,), 99)
    cross(tables.statuses, SETS[0], (5, 11), 99)
    cross(tables.statuses, SETS[0], (5, 10), 99)  # an older one, late
    assert reader.read(SETS[:1], ())[0] == {SETS[0]: ()}
    assert reader.suppressed == {SETS[0]}
    assert reader.crossings(SETS[:2]) == {SETS[0]: (5, 11)}
    assert tables.statuses.show(SETS[0])
    assert reader.read(SETS[:1], ())[0] == {SETS[0]: (5, 11)}
    assert reader.suppressed == frozenset()


def test_only_a_suppressed_set_can_be_shown_again(tables: Tables) -> None:
    assert not tables.statuses.show(SETS[0])
    assert tables.items("Statuses") == []


def test_two_operators_who_suppress_sets_at_the_same_time_lose_neither(tables: Tables) -> None:
    other = Statuses(tables.other_client(), tables.names["Statuses"])
    attempts = itertools.count()

    def change(**_: Any) -> None:
        if next(attempts) == 0:
            other.suppress(SETS[1])

    tables.client.meta.events.register("before-call.dynamodb.TransactWriteItems", change)
    tables.statuses.suppress(SETS[0])
    assert [tables.statuses.is_suppressed(name) for name in SETS[:3]] == [True, True, False]
    assert next(attempts) == 2


def test_more_suppressed_sets_than_one_item_holds_are_refused(tables: Tables, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statuses, "MOST_SUPPRESSED", 2)
    for name in SETS[:2]:
        tables.statuses.suppress(name)
    with pytest.raises(ConfigurationError, match=r"^2 sets are suppressed, and that is the most: unsuppress one"):
        tables.statuses.suppress(SETS[2])
    assert tables.statuses.show(SETS[0])
    tables.statuses.suppress(SETS[2])


def test_the_most_suppressed_sets_fit_into_an_item() -> None:
    keys = [bytes([1, *at.to_bytes(2, "big")]) + bytes(29) for at in range(statuses.MOST_SUPPRESSED)]
    list_, stamp = {"B": b"".join(keys)}, {"S": "f" * 32}
    check_item({"set_key": {"B": b"su"}, "keys_of_sets": list_, "stamp": stamp}, ["set_key"])


def test_sets_and_horizons_are_read_together_and_are_not_confused(tables: Tables) -> None:
    cross(tables.statuses, SETS[0], (5,), 99)
    move_horizon(tables.statuses, 3, STEP, 1_699_203_800)
    crossings, horizons = tables.statuses.read([*SETS[:2], SETS[0]], [3, 4, 3])
    assert crossings == {SETS[0]: (5,)}
    assert horizons == {3: Horizon(STEP, 1_699_203_800, None)}


@pytest.mark.parametrize("all_of_them", [True, False])
def test_a_status_or_horizon_never_answered_is_never_read_as_false(tables: Tables, all_of_them: bool) -> None:
    cross(tables.statuses, SETS[0], (5,), 99)
    leave_unprocessed(tables, "BatchGetItem", lambda n, size: size if all_of_them else 1)
    with pytest.raises(ThrottledError, match=r"^a table did not answer for every key; try again$"):
        tables.statuses.read(SETS[:2], [0])


# Horizons (rule 3)


@pytest.mark.parametrize("now", [250, 299.9, 300, 399])
def test_a_step_completed_near_a_tick_hides_nothing_from_readers_before_or_after_it(tables: Tables, now: float) -> None:
    move_horizon(tables.statuses, 0, 7, visible_from=200)
    move_horizon(tables.statuses, 0, 8, visible_from=300)
    before = tables.statuses.read((), [0])[1][0]
    move_horizon(tables.statuses, 0, 9, visible_from=400)  # its worker's clock said 299, or 301
    after = tables.statuses.read((), [0])[1][0]
    assert after.at(now) == before.at(now) == (7 if now < 300 else 8)
    assert after.at(400) == 9


def test_horizons_follow_rule_3_in_any_history(tables: Tables) -> None:
    random_ = random.Random(3)
    for slot in range(8):
        stored: Horizon | None = None
        step, now = 0, 0.0
        for _ in range(10):
            step += random_.choice((-1, 0, 1, 1, 1))
            now += random_.choice((-110, 0, 10, 100.5))  # the clock of another worker may be behind
            visible_from = (int(now) // 100 + 1) * 100
            move_horizon(tables.statuses, slot, step, visible_from)
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
        move_horizon(tables.statuses, 0, step, (now + 20) // 100 * 100 + 100)
        horizon = tables.statuses.read((), [0])[1][0]
        seen += [(at, horizon.at(at)) for at in (now, now + 36)]
    for (before, shown), (after, then) in pairwise(seen):
        assert (then if then is not None else -1) >= (shown if shown is not None else -1)
        if before // 100 == after // 100:
            assert then == shown


def test_crossings_of_many_sets_are_recorded_at_once_except_those_that_are_older(tables: Tables) -> None:
    cross(tables.statuses, SETS[1], (5, 9), 99)
    tables.statuses.suppress(SETS[2])
    run = _leased(tables)
    fence = tables.control.fence(PLACE, run, 3)
    assert tables.statuses.write(fence, [(name, (7,), 199) for name in SETS[:4]])
    assert tables.statuses.crossings(SETS[:5]) == {
        SETS[0]: (7,),
        SETS[1]: (5, 9),
        SETS[2]: (7,),
        SETS[3]: (7,),
    }
    lives = {item["set_key"]["B"]: item.get("ttl") for item in tables.items("Statuses")}
    assert [lives[name] for name in SETS[:4]] == [{"N": "199"}, {"N": "99"}, {"N": "199"}, {"N": "199"}]


def test_a_late_worker_records_no_crossing(tables: Tables) -> None:
    fence = tables.control.fence(PLACE, _leased(tables), 1)
    assert tables.statuses.write(fence, [(SETS[0], (7,), 199)])
    _leased(tables)
    assert not tables.statuses.write(fence, [(SETS[0], (8,), 199), (SETS[1], (8,), 199)])
    assert tables.statuses.crossings(SETS[:2]) == {SETS[0]: (7,)}


# Control: leases, runs, commits


def _leased(tables: Tables, holder: str = "a", now: float = NOW, place: Place = PLACE) -> int:
    """Take a lease that is free or over. The number of its run."""
    later = now + 1000 * len([call for call in tables.calls if "Key" in call.asked])
    row = tables.control.lease(place, holder, later, later + 150)
    assert row is not None
    return row.run


def test_a_lease_is_held_by_one_worker_until_it_is_released_or_expires_and_each_has_another_run(
    tables: Tables,
) -> None:
    def run(holder: str, now: float, place: Place = PLACE) -> int | None:
        row = tables.control.lease(place, holder, NOW + now, NOW + now + 150)
        return None if row is None else row.run

    assert run("a", 0) == 1
    assert run("b", 149.5) is None
    assert run("b", 0, Place(0, 4)) == run("b", 0, Place(9, 3)) == 1  # other slots are free
    tables.control.release(PLACE, 1)
    assert run("b", 1) == 2
    assert run("c", 151) is None
    assert run("c", 151.25) == 3
    assert run("c", 152) == 4  # its own: an answer may have been lost
    tables.control.release(PLACE, 3)
    assert run("d", 153) is None
    tables.control.release(PLACE, 4)
    assert run("d", 154) == 5


def _commit(
    tables: Tables, run: int, before: SlotRow, step: int, manifest: str | None, *, leaving: bool = False
) -> None:
    horizon = moved_horizon(before.horizon, step, 100 * step)
    kept = () if manifest is None else (manifest,)
    known = None if before.horizon is None else before.horizon.through
    moves = tables.statuses.horizon_moves(PLACE.slot, step, 100 * step, known)
    tables.control.commit(PLACE, run, before, Commit(step, manifest, kept, horizon), moves, leaving=leaving)


def test_a_commit_moves_mark_manifest_and_horizon_at_once_and_clears_the_progress(tables: Tables) -> None:
    run = _leased(tables)
    tables.control.record_decided(PLACE, run, STEP, Progress("", "draft", 0))
    before = tables.control.row(PLACE)
    assert (before.progress, before.begun, before.evaluated_through) == (Progress("", "draft", 0), STEP, None)
    for step, manifest in ((STEP, None), (STEP + 1, "first"), (STEP + 2, "first"), (STEP + 3, "second")):
        _commit(tables, run, before, step, manifest)
        before = tables.control.row(PLACE)
        assert (before.evaluated_through, before.manifest, before.progress) == (step, manifest, None)
        assert before.horizon == tables.statuses.read((), [PLACE.slot])[1][PLACE.slot]
    assert before.kept == ("second",)
    assert before.lease_until is not None
    _commit(tables, run, before, STEP + 4, "third", leaving=True)
    assert tables.control.row(PLACE).lease_until is None


@pytest.mark.parametrize("late", ["run", "mark", "manifest"])
def test_a_late_commit_changes_nothing(tables: Tables, late: str) -> None:
    run = _leased(tables)
    start = tables.control.row(PLACE)
    _commit(tables, run, start, STEP, "first")
    row = tables.control.row(PLACE)
    stored = tables.items("Statuses")
    if late == "run":
        _leased(tables)
    elif late == "mark":
        row = replace(row, evaluated_through=STEP - 1)
    else:
        row = replace(row, manifest="another")
    for before in (row, start):
        with pytest.raises(
            LeaseLostError, match=r"^another worker took slot 3 or moved its mark, and continues there$"
        ):
            _commit(tables, run, before, STEP + 1, "second")
    assert (tables.control.row(PLACE).manifest, tables.items("Statuses")) == ("first", stored)


@pytest.mark.parametrize("restored", [True, False], ids=["restored", "emptied"])
def test_a_commit_is_refused_if_statuses_is_older_than_the_row(tables: Tables, restored: bool) -> None:
    run = _leased(tables)
    _commit(tables, run, tables.control.row(PLACE), STEP, "first")
    older = tables.items("Statuses")
    _commit(tables, run, tables.control.row(PLACE), STEP + 1, "second")
    newest, name, row = tables.items("Statuses"), tables.names["Statuses"], tables.control.row(PLACE)
    tables.client.delete_item(TableName=name, Key={"set_key": newest[0]["set_key"]})
    if restored:
        tables.client.put_item(TableName=name, Item=older[0])
    for tick in (STEP, STEP + 9):  # the horizon would become visible at the same tick, or at a later one
        moves = tables.statuses.horizon_moves(PLACE.slot, STEP + 2, 100 * tick, STEP + 1)
        commit = Commit(STEP + 2, "third", ("third",), moved_horizon(row.horizon, STEP + 2, 100 * tick))
        with pytest.raises(ConfigurationError, match=r"^the table Statuses is older than the states of slot 3, "):
            tables.control.commit(PLACE, run, row, commit, moves, leaving=False)
    assert tables.control.row(PLACE) == row
    assert tables.items("Statuses") == (older if restored else [])
    assert row.horizon is not None
    tables.control.put_horizon(PLACE, run, row.horizon, tables.statuses.horizon(PLACE.slot, row.horizon))
    assert tables.statuses.read((), [PLACE.slot])[1] == {PLACE.slot: row.horizon}
    _commit(tables, run, tables.control.row(PLACE), STEP + 2, "third")
    assert tables.control.row(PLACE).evaluated_through == STEP + 2


def test_a_command_does_not_put_an_older_horizon_and_a_late_one_puts_none(tables: Tables) -> None:
    run = _leased(tables)
    _commit(tables, run, tables.control.row(PLACE), STEP, "first")
    row, horizon = tables.control.row(PLACE), Horizon(STEP, 7, STEP - 1, 3, None)
    stored = tables.items("Statuses")
    for number, older in ((run, replace(horizon, through=STEP - 1)), (run - 1, horizon)):
        with pytest.raises(LeaseLostError):
            tables.control.put_horizon(PLACE, number, older, tables.statuses.horizon(PLACE.slot, older))
        assert (tables.control.row(PLACE), tables.items("Statuses")) == (row, stored)
    tables.control.put_horizon(PLACE, run, horizon, tables.statuses.horizon(PLACE.slot, horizon))
    assert tables.control.row(PLACE).horizon == tables.statuses.read((), [PLACE.slot])[1][PLACE.slot] == horizon


def test_a_commit_without_a_way_to_move_the_horizon_moves_the_mark_alone(tables: Tables) -> None:
    run = _leased(tables)
    commit = Commit(STEP, "first", ("first",), Horizon(STEP, 7))
    tables.control.commit(PLACE, run, tables.control.row(PLACE), commit, (), leaving=False)
    assert (tables.control.row(PLACE).evaluated_through, tables.items("Statuses")) == (STEP, [])


def test_a_commit_after_a_recovery_leaves_the_horizon_where_readers_have_seen_it(tables: Tables) -> None:
    move_horizon(tables.statuses, PLACE.slot, STEP + 5, 100)
    run = _leased(tables)
    _commit(tables, run, tables.control.row(PLACE), STEP, "first")
    assert tables.control.row(PLACE).evaluated_through == STEP
    assert tables.statuses.read((), [PLACE.slot])[1][PLACE.slot] == Horizon(STEP + 5, 100)


def test_only_the_current_run_records_parts_as_decided_and_begun_never_goes_back(tables: Tables) -> None:
    first = _leased(tables)
    tables.control.record_decided(PLACE, first, STEP + 5, Progress("base", "draft", 0))
    second = _leased(tables)
    tables.control.record_decided(PLACE, second, STEP + 2, Progress("base", "again", 0))
    row = tables.control.row(PLACE)
    assert (row.progress, row.begun) == (Progress("base", "again", 0), STEP + 5)
    with pytest.raises(LeaseLostError):
        tables.control.record_decided(PLACE, first, STEP + 9, Progress("base", "late", 0))
    assert tables.control.row(PLACE) == row


def test_a_slot_is_retired_unless_another_command_has_begun(tables: Tables) -> None:
    run = _leased(tables)
    _commit(tables, run, tables.control.row(PLACE), STEP, "first")
    command = tables.control.begin_command()
    later = tables.control.begin_command()
    assert not tables.control.retire(PLACE, command)
    assert tables.control.retire(PLACE, later)
    assert not tables.control.retire(PLACE, later)
    row = tables.control.row(PLACE)
    assert (row.run, row.manifest, row.kept, row.evaluated_through, row.retired) == (run + 1, None, (), STEP, True)


def test_an_operator_sees_the_row_of_every_slot_and_nothing_else(tables: Tables) -> None:
    tables.control.check("join", PRINTS)
    tables.control.type_numbers(["a"])
    tables.control.begin_command()
    for place in (Place(0, 0), Place(0, 255), Place(480_000, 3)):
        tables.control.lease(place, "a", NOW, NOW + 150)
    assert sorted(place for place, _ in tables.control.rows()) == [(0, 0), (0, 255), (480_000, 3)]
    assert {row for _, row in tables.control.rows()} == {SlotRow(run=1, lease_until=NOW + 150)}


def test_the_mark_of_a_slot_is_the_last_one_of_its_layouts(tables: Tables) -> None:
    layouts = Layouts((Layout(4, 0), Layout(2, 100), Layout(4, 200)))
    assert tables.control.mark_of(3, layouts) is None
    tables.mark(3, 99)
    tables.mark(1, 99)
    tables.mark(1, 150, layout=100)
    assert [tables.control.mark_of(slot, layouts) for slot in (1, 3)] == [150, 99]


def test_a_type_keeps_its_number_and_no_number_is_used_again(tables: Tables) -> None:
    first = tables.control.type_numbers(["b", "a"])
    assert sorted(first.values()) == [1, 2]
    assert tables.control.type_numbers(["c", "a"]) == {**first, "c": 3}
    assert tables.control.type_numbers([]) == {**first, "c": 3}
    with pytest.raises(ConfigurationError, match=r"^a deployment has at most 255 types in its life"):
        tables.control.type_numbers(f"type {n}" for n in range(253))
    assert len(tables.control.type_numbers(f"type {n}" for n in range(252))) == 255


def test_two_workers_that_number_types_at_once_agree(tables: Tables) -> None:
    other, calls = Control(tables.other_client(), tables.names["Control"]), itertools.count()

    def before(**_: Any) -> None:
        if next(calls) < 2:
            other.type_numbers([f"other {next(calls)}"])

    tables.client.meta.events.register("before-call.dynamodb.UpdateItem", before)
    numbers = tables.control.type_numbers(["mine"])
    assert numbers == other.type_numbers([])
    assert sorted(numbers.values()) == [1, 2]


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
    cross(tables.statuses, SETS[0], (5,), 999)
    move_horizon(tables.statuses, 0, 7, 200)
    assert tables.expire(1000) == 2
    assert list(_joined(tables)) == SETS[1:3]
    assert tables.statuses.read(SETS[:1], [0]) == ({}, {0: Horizon(7, 200)})  # a horizon has no time to live


# The checks of calls


@pytest.mark.parametrize(
    ("operation", "asked", "problem"),
    [
        (
            "BatchWriteItem",
            {
                "RequestItems": {
                    "x-Statuses": [{"PutRequest": {"Item": {"set_key": {"B": bytes([n])}}}} for n in range(26)]
                }
            },
            "26 writes",
        ),
        (
            "BatchWriteItem",
            {"RequestItems": {"x-Statuses": [{"PutRequest": {"Item": {"set_key": {"B": b"k"}}}}] * 2}},
            "two writes of one key",
        ),
        (
            "BatchWriteItem",
            {"RequestItems": {"x-Statuses": [{"PutRequest": {"Item": {"set_key": {"B": b""}}}}]}},
            "an empty key",
        ),
        (
            "BatchGetItem",
            {"RequestItems": {"x-Statuses": {"Keys": [{"set_key": {"B": bytes([n])}} for n in range(101)]}}},
            "101 keys",
        ),
        (
            "BatchGetItem",
            {"RequestItems": {"x-Statuses": {"Keys": [{"set_key": {"B": b"k"}}] * 2}}},
            "a key twice",
        ),
        (
            "TransactWriteItems",
            {"TransactItems": [{"Update": {"TableName": "t", "Key": n}} for n in range(101)]},
            "101 w",
        ),
        ("TransactWriteItems", {"TransactItems": [{"Update": {"TableName": "t", "Key": 1}}] * 2}, "two writes of one"),
        (
            "TransactWriteItems",
            {"TransactItems": [{"Update": {"TableName": "t", "Key": 1, "UpdateExpression": "SET ttl = :t"}}]},
            "reserved words",
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
