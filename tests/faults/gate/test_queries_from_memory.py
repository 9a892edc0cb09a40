"""Queries from memory get the answers of the table at every moment.

A month is simulated on real tables and objects: bursts and silence, suppressions, changes of slots, workers that die or
are late at every one of their calls, outages, sweeps, expiries, and readers that restart. Planted mistakes are found.
"""

import os
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import pytest
from moto.backends import get_backend
from moto.core import DEFAULT_ACCOUNT_ID

from kanon.errors import KanonError, StaleError, UndecodableMembersError
from kanon.gate import evaluation, showing
from kanon.gate.deciding import Shown
from kanon.gate.evaluation import Evaluation
from kanon.gate.memory import SPREAD, Memory
from kanon.gate.names import set_key
from kanon.gate.publishing import Horizon, tick_of
from kanon.gate.querying import Querying, Visible
from kanon.gate.slots import Layout, Layouts
from kanon.gate.storage.aws import statuses
from kanon.gate.storage.aws.statuses import Statuses
from kanon.gate.storage.aws.true_objects import read_true
from kanon.gate.true_sets import TrueSets
from kanon.keys import Secret
from tests.faults.fault_injector import ProcessDied
from tests.integration.gate.tables import Running, Tables, fresh
from tests.integration.gate.test_evaluation import PERIOD, SCHEDULE, START, TYPES, Scenario, closing, disturbed
from tests.unit.examples import CROSSING

PEPPER = Secret.derived("set-pepper", "a")
SETS = tuple((name, bytes([n])) for n in range(6) for name in TYPES)
KEYS = {place: set_key(PEPPER, *place) for place in SETS}
STEPS = (30 if os.environ.get("FAULTS") else 14) * 24
"""A month has one more change of slots, to four. The planted mistakes are looked for in three weeks."""
MAX_STALE = CROSSING.window
DELAY = SCHEDULE.publish_delay


class Rows:
    """The table Statuses as moto has it, for readers: a call over HTTP would take most of the month."""

    def __init__(self, tables: Tables) -> None:
        self._name = tables.names["Statuses"]
        self._items: dict[bytes, Any] = {}

    def refresh(self) -> None:
        """Read every row."""
        regions = get_backend("dynamodb")[DEFAULT_ACCOUNT_ID].values()
        (table,) = (region.tables[self._name] for region in regions if self._name in region.tables)
        items = (item.to_json()["Attributes"] for item in table.all_items())
        self._items = {item["set_key"]["B"]: item for item in items}

    def batch_get_item(self, RequestItems: Any) -> Any:  # noqa: N803, the client's name
        ((name, asked),) = RequestItems.items()
        found = (self._items.get(key["set_key"]["B"]) for key in asked["Keys"])
        return {"Responses": {name: [item for item in found if item is not None]}}


@dataclass
class Reader:
    """An instance of ``query``, whose objects are counted."""

    tables: Tables
    rows: Rows
    waits: float
    answered: int = 0
    loaded: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        s3, bucket = self.tables.running.objects(), self.tables.bucket

        def fetch(name: str) -> TrueSets | None:
            self.loaded.append(name)
            try:
                return read_true(s3, bucket, name)
            except UndecodableMembersError:
                return None

        table = Statuses(self.rows, self.tables.names["Statuses"])  # type: ignore[arg-type]
        self.memory = Memory(table, fetch, lambda: self.waits)
        self.querying = querying(self.tables, self.memory, self.memory.load)

    def ask(self, now: float) -> Any:
        self.answered += len(self.memory._held)
        return asked(self.querying, now)


def querying(tables: Tables, statuses: Any, load: Any = None) -> Querying:
    return Querying(TYPES, PEPPER, statuses, PERIOD, tables.layouts, DELAY, MAX_STALE, load)


def asked(querying: Querying, now: float) -> Any:
    """The answer for every set, or that it is refused."""
    try:
        return querying.query(SETS, now)
    except StaleError:
        return "stale"


@dataclass
class Month(Scenario):
    """The service, its readers, and an hour after the other."""

    seed: int = 7

    def __post_init__(self) -> None:
        super().__post_init__()
        self.chance = random.Random(self.seed)
        self.deaths = count(1)
        slots = (Layout(1, 0, 1), Layout(2, START + 90, 1), Layout(1, START + 200, 1), Layout(4, START + 430, 1))
        self.tables.layouts = Layouts(slots, late=7 * 24)
        self.rows = Rows(self.tables)
        self.readers = [Reader(self.tables, self.rows, waits) for waits in (0.0, SPREAD, 0.0)]
        self.compared = self.true = self.from_memory = self.died = 0
        self.start()

    def hour(self, step: int) -> None:
        """Joins, an evaluation that may fail, and readers around the tick."""
        self.join_step(step)
        if not 300 <= step - START < 300 + MAX_STALE + 3:  # an outage
            self.evaluate(step)
        if step % 24 == 0:
            self.tables.expire(closing(step))
            self.sweep(closing(step))
        tick = tick_of(step, PERIOD, DELAY)
        if self.chance.random() < 0.2:
            self.change_suppression()
        for moment in (tick - 3, tick - 2, tick - 1, tick, tick + 1, tick + SPREAD + 1):
            self.compare(moment)
        if self.chance.random() < 0.1:
            number = self.chance.randrange(len(self.readers))
            self.from_memory += self.readers[number].answered
            self.readers[number] = Reader(self.tables, self.rows, self.chance.choice((0.0, SPREAD)))

    def join_step(self, step: int) -> None:
        if step // 30 % 3 == 2:
            return  # silence, in which sets expire
        for type_name, set_id in SETS:
            if self.chance.random() < 0.25:
                clients = [self.chance.randrange(14) for _ in range(self.chance.choice((1, 3, 5, 9)))]
                self.join(KEYS[type_name, set_id], sorted(set(clients)), step, type_name)

    def change_suppression(self) -> None:
        key = KEYS[self.chance.choice(SETS)]
        if not self.tables.statuses.show(key):
            self.tables.statuses.suppress(key)

    def evaluate(self, step: int) -> None:
        """Every slot, by a worker that may die at any call, or be overtaken there; then perhaps by another one.

        In the first hour of a layout only its first slot has one: readers see steps of both layouts.
        """
        now, layouts = closing(step), self.tables.layouts
        waiting = [0] if layouts.at(step).from_step == step else list(layouts.evaluated(step - 24, step))
        while waiting:
            slot = waiting.pop(0)
            how = self.chance.random()
            if how < 0.12:
                self.disturbed_run(slot, now, overtaken=how < 0.06)
                if self.chance.random() < 0.3:
                    continue  # the next hour finds what is left
            waiting += [each for each in self.run(now + SCHEDULE.lease + 1, slot).following if each not in waiting]

    def disturbed_run(self, slot: int, now: float, *, overtaken: bool) -> None:
        number, calls = next(self.deaths) % 24, count()

        def disturb() -> None:
            if next(calls) != number:
                return
            if not overtaken:
                raise ProcessDied
            later = now + SCHEDULE.lease + 1
            self.worker().run(slot, "other", lambda: later, lambda: 1e9)
            self.sweep(later)

        event = self.chance.choice(("before-call", "after-call"))
        try:
            self.worker(disturbed(self.tables, disturb, event)).run(slot, "first", lambda: now, lambda: 1e9)
        except (ProcessDied, KanonError):
            self.died += 1

    def compare(self, now: float) -> None:
        """Ask every reader, and the table."""
        self.rows.refresh()
        table = Statuses(self.rows, self.tables.names["Statuses"])  # type: ignore[arg-type]
        expected = asked(querying(self.tables, table), now)
        for reader in self.readers:
            assert reader.ask(now) == expected, (now, reader.waits)
        self.compared += 1
        self.true += 0 if expected == "stale" else sum(expected.above)


def simulate(moto: Running, steps: int) -> Month:
    month = Month(fresh(moto))
    for step in range(START, START + steps):
        month.hour(step)
    return month


@pytest.fixture(autouse=True)
def _several_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluation, "MOST_STATUSES", 2)


@pytest.fixture(autouse=True)
def _full_items(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statuses, "MOST_CROSSINGS", 1)


def test_for_weeks_every_answer_from_memory_is_that_of_the_table(moto: Running) -> None:
    month = simulate(moto, STEPS)
    used = month.from_memory + sum(reader.answered for reader in month.readers)
    assert month.compared == 6 * STEPS
    assert month.true > 6 * STEPS
    assert used > 2 * month.compared
    assert month.died > STEPS // 36


# Planted mistakes


def older(horizon: Horizon, now: float) -> str | None:
    return horizon.earlier_shows if now >= horizon.visible_from else horizon.earliest_shows


def too_early(horizon: Horizon, now: float) -> str | None:
    return horizon.shows


def not_suppressed(self: Memory, set_keys: Any, slots: Any) -> Any:
    crossings, horizons = self.table.read(set_keys, slots)
    held = {key: self._held[name].crossings(key) for key, name in set_keys.items() if name in self._held}
    return {**crossings, **held}, horizons


def expired_a_step_early(before: Any, found: Any, step: int) -> bytes | None:
    return RIGHT_AFTER(before, found, step + 1)


def without_what_others_decided(self: Evaluation, run: Any, pieces: Any, found: Any, *, since: int) -> Any:
    return [found.get(piece.name, Shown()) for piece in pieces]


def of_a_later_layout(self: Querying, layouts: Any, slots: Any, at: int, now: float) -> Any:
    for layout, slot in zip(reversed(layouts), reversed(slots), strict=True):
        horizon = self._horizons[slot]
        through = None if horizon is None else horizon.at(now)
        if horizon is not None and through is not None and through >= layout.from_step:
            return Visible(min(at, through), horizon.shown_at(now))
        at = layout.from_step - 1
    return None


def kept_by_a_reader(self: Memory, names: Any, now: float) -> None:
    """An object stays under the name of its slot's next one."""
    before = [*self._held.values()]
    RIGHT_LOAD(self, names, now)
    if len(before) == len(names) == 1:
        self._held = {names[0]: before[0]}


def without_the_one_before(self: Statuses, status: Any, full: Any = None) -> Any:
    return RIGHT_RECORD(self, status, full and {**full, "crossings": {"L": []}})


RIGHT_AFTER, RIGHT_LOAD, RIGHT_RECORD = showing.after, Memory.load, Statuses._record
MISTAKES: dict[str, tuple[Any, str, Callable[..., Any]]] = {
    "an object of an older step": (Horizon, "shown_at", older),
    "an object before its tick": (Horizon, "shown_at", too_early),
    "a suppressed set is true": (Memory, "read", not_suppressed),
    "a set expires a step early": (evaluation, "after", expired_a_step_early),
    "crossings of a worker that died are left out": (Evaluation, "_shown", without_what_others_decided),
    "an object of a later layout": (Querying, "_visible", of_a_later_layout),
    "a crossing leaves Statuses too early": (Statuses, "_record", without_the_one_before),
    "an object is kept under a new name": (Memory, "load", kept_by_a_reader),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_planted_mistake_is_found(moto: Running, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(*MISTAKES[name])
    with pytest.raises(AssertionError):
        simulate(moto, 500)
