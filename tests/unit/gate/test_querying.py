"""Answers come from statuses and horizons alone, do not change between two ticks, and are false for missing data."""

from collections.abc import Iterable
from itertools import product

import pytest

from kanon.errors import ThrottledError
from kanon.gate.mechanism.above_threshold import is_above
from kanon.gate.mechanism.searches import Searches
from kanon.gate.mechanism.steps import phase_of
from kanon.gate.names import set_key
from kanon.gate.publishing import Horizon, tick_of
from kanon.gate.querying import Answer, Querying
from kanon.gate.slots import Layout, Layouts
from kanon.gate.types import Type
from kanon.keys import Secret
from tests.unit.examples import SMALL

PEPPER = Secret.derived("set-pepper", "a")
PERIOD, DELAY, STEP = 3600, 1800, 472_000
HALVES = Layout(2, 0)
NOW = float(tick_of(STEP, PERIOD, DELAY))
"""From here on the clock step is ``STEP``."""


class Table:
    """Statuses as they stand, and what was asked of them."""

    def __init__(self) -> None:
        self.crossings: dict[bytes, tuple[int, ...]] = {}
        self.horizons: dict[int, Horizon] = {}
        self.asked: list[tuple[set[bytes], set[int]]] = []
        self.throttled = False

    def read(
        self, set_keys: Iterable[bytes], slots: Iterable[int]
    ) -> tuple[dict[bytes, tuple[int, ...]], dict[int, Horizon]]:
        keys, wanted = set(set_keys), set(slots)
        self.asked.append((keys, wanted))
        if self.throttled:
            raise ThrottledError("busy")
        crossings = {key: self.crossings[key] for key in keys if key in self.crossings}
        return crossings, {slot: self.horizons[slot] for slot in wanted if slot in self.horizons}


@pytest.fixture
def table() -> Table:
    table = Table()
    table.horizons = {slot: Horizon(STEP, int(NOW)) for slot in range(2)}
    return table


@pytest.fixture
def querying(table: Table) -> Querying:
    types = {"small": Type("small", SMALL, None)}
    return Querying(types, PEPPER, table, PERIOD, Layouts((Layout(2, 0),)), DELAY, 6)  # type: ignore[arg-type]


def _key(set_id: bytes) -> bytes:
    return set_key(PEPPER, "small", set_id)


def _first_of_instance(set_id: bytes) -> int:
    """The first step of the instance of the clock step."""
    return STEP - (STEP - phase_of(_key(set_id), SMALL.window, SMALL.phase)) % SMALL.window


def _in_slot(slot: int) -> bytes:
    return next(str(n).encode() for n in range(99) if HALVES.slot_of(_key(str(n).encode())) == slot)


def test_a_set_that_crossed_in_the_instance_of_the_clock_step_is_true(table: Table, querying: Querying) -> None:
    table.crossings[_key(b"a")] = (_first_of_instance(b"a"),)
    table.crossings[_key(b"b")] = (_first_of_instance(b"b") - 1,)
    answer = querying.query([("small", b"a"), ("small", b"b"), ("small", b"a")], NOW)
    assert answer == Answer((True, False, True), STEP, int(NOW) + PERIOD)


def test_unknown_sets_read_false(querying: Querying) -> None:
    assert querying.query([("small", b"a"), ("small", b"b")], NOW).above == (False, False)


def test_a_query_of_no_set_reads_nothing(table: Table, querying: Querying) -> None:
    assert querying.query([], NOW) == Answer((), None, int(NOW) + PERIOD)
    assert table.asked == []


def test_a_crossing_beyond_the_horizon_is_not_seen(table: Table, querying: Querying) -> None:
    table.crossings[_key(b"a")] = (_first_of_instance(b"a"),)
    through = _first_of_instance(b"a") - 1
    table.horizons = dict.fromkeys(range(2), Horizon(through, int(NOW) - PERIOD))
    answer = querying.query([("small", b"a")], NOW)
    assert (answer.above, answer.step) == ((False,), through)


def test_a_horizon_ahead_of_the_clock_shows_nothing_before_its_tick(table: Table, querying: Querying) -> None:
    table.crossings[_key(b"a")] = (STEP + 1,)
    table.horizons = dict.fromkeys(range(2), Horizon(STEP + 1, int(NOW) + PERIOD, STEP, int(NOW)))
    before = querying.query([("small", b"a")], NOW + PERIOD - 0.001)
    assert (before.above, before.step) == ((False,), STEP)
    after = querying.query([("small", b"a")], NOW + PERIOD)
    assert (after.above, after.step) == ((True,), STEP + 1)


def test_a_slot_never_evaluated_reads_false_and_has_no_step(table: Table, querying: Querying) -> None:
    del table.horizons[1]
    known, unknown = _in_slot(0), _in_slot(1)
    for set_id in (known, unknown):
        table.crossings[_key(set_id)] = (_first_of_instance(set_id),)
    assert querying.query([("small", known)], NOW).step == STEP
    answer = querying.query([("small", known), ("small", unknown)], NOW)
    assert (answer.above, answer.step) == ((True, False), None)


def test_the_step_of_an_answer_is_the_least_of_the_slots_asked(table: Table, querying: Querying) -> None:
    table.horizons[1] = Horizon(STEP - 3, int(NOW) - 99)
    assert querying.query([("small", _in_slot(0))], NOW).step == STEP
    assert querying.query([("small", _in_slot(1))], NOW).step == STEP - 3
    assert querying.query([("small", _in_slot(0)), ("small", _in_slot(1))], NOW).step == STEP - 3


def test_a_late_new_slot_shows_nothing(table: Table, querying: Querying) -> None:
    """The old slot and the first new one have the same number, so the same horizon."""
    querying.layouts = Layouts((Layout(1, 0), Layout(2, STEP)))
    late = _in_slot(1)
    table.crossings[_key(late)] = (STEP,)
    table.horizons = {0: Horizon(STEP, int(NOW))}
    answer = querying.query([("small", late)], NOW)
    assert (answer.above, answer.step) == ((False,), STEP - 1)


@pytest.mark.parametrize("numbers", [(1, 2), (2, 1), (2, 2), (1, 2, 1), (2, 1, 2)])
def test_while_slots_change_a_set_shows_the_last_step_that_the_slot_in_charge_of_it_has_evaluated(
    table: Table, querying: Querying, numbers: tuple[int, ...]
) -> None:
    layouts = Layouts(tuple(Layout(slots, STEP - 4 + 2 * n) for n, slots in enumerate(numbers)))
    for through, own in product(product(range(STEP - 5, STEP + 1), repeat=2), range(2)):
        table.horizons = {slot: Horizon(step, int(NOW) - 99) for slot, step in enumerate(through)}
        set_id = _in_slot(own)
        evaluated = [s for s in range(STEP - 4, STEP + 1) if through[layouts.at(s).slot_of(_key(set_id))] >= s]
        asked = Querying(querying.types, PEPPER, table, PERIOD, layouts, DELAY, 6)  # type: ignore[arg-type]
        assert asked.query([("small", set_id)], NOW).step == max(evaluated, default=None), (through, own)


def test_every_set_is_read_at_every_query_and_every_horizon_once_until_the_next_tick(
    table: Table, querying: Querying
) -> None:
    for _ in range(2):
        querying.query([("small", b"a"), ("small", b"a"), ("small", b"nobody")], NOW)
    querying.query([("small", b"a")], NOW + PERIOD - 1)
    both, slots = {_key(b"a"), _key(b"nobody")}, {0, 1}
    assert table.asked == [(both, slots), (both, set()), ({_key(b"a")}, set())]
    querying.query([("small", b"a")], NOW + PERIOD)
    assert table.asked[-1] == ({_key(b"a")}, slots)


def test_a_repeated_query_sees_the_horizon_of_the_next_tick(table: Table, querying: Querying) -> None:
    table.crossings[_key(b"a")] = (STEP + 1,)
    assert querying.query([("small", b"a")], NOW).above == (False,)
    table.horizons = dict.fromkeys(range(2), Horizon(STEP + 1, int(NOW) + PERIOD, STEP, int(NOW)))
    assert querying.query([("small", b"a")], NOW + PERIOD - 1).step == STEP
    answer = querying.query([("small", b"a")], NOW + PERIOD)
    assert (answer.above, answer.step) == ((True,), STEP + 1)


def test_no_set_is_cached(querying: Querying) -> None:
    querying.query([("small", b"a")], NOW)
    kept = {name: value for name, value in vars(querying).items() if name.startswith("_")}
    assert kept.keys() == {"_tick", "_horizons"}


def test_a_table_that_does_not_answer_is_an_error_and_nothing_is_cached(table: Table, querying: Querying) -> None:
    table.crossings[_key(b"a")] = (_first_of_instance(b"a"),)
    table.throttled = True
    with pytest.raises(ThrottledError):
        querying.query([("small", b"a")], NOW)
    table.throttled = False
    assert querying.query([("small", b"a")], NOW).above == (True,)


@pytest.mark.parametrize("true", [(), (b"a",), (b"b",), (b"a", b"b", b"c")])
def test_the_decision_of_a_set_does_not_depend_on_other_sets(
    true: tuple[bytes, ...], table: Table, querying: Querying, monkeypatch: pytest.MonkeyPatch
) -> None:
    decided: list[tuple[tuple[int, ...], bool]] = []

    def counted(searches: Searches, crossings: tuple[int, ...], *when: int) -> bool:
        decided.append((crossings, is_above(searches, crossings, *when)))
        return decided[-1][1]

    monkeypatch.setattr("kanon.gate.querying.is_above", counted)
    table.crossings = {_key(set_id): (_first_of_instance(set_id),) for set_id in true}
    asked = [b"a", b"b", b"a", b"c", b"nobody"]
    answer = querying.query([("small", set_id) for set_id in asked], NOW)
    assert decided == [(table.crossings.get(_key(set_id), ()), set_id in true) for set_id in asked]
    assert answer.above == tuple(set_id in true for set_id in asked)
