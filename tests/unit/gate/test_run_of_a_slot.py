"""One run over a slot: when its steps are published, how late they count, and which sets of a chunk are decided."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from kanon.errors import ConfigurationError
from kanon.gate.evaluation import Evaluation, NoiseKeys, Outcome, Run
from kanon.gate.mechanism.above_threshold import SetState, evaluate
from kanon.gate.mechanism.columns import States
from kanon.gate.mechanism.steps import end_of
from kanon.gate.mechanism.tape import Noise, Tapes
from kanon.gate.publishing import tick_of
from kanon.gate.reading import Touched
from kanon.gate.schedule import DAY, Schedule
from kanon.gate.slots import Layout
from kanon.gate.storage.control import Mark
from kanon.gate.storage.members import Update
from kanon.gate.storage.step_log import Found, partition
from kanon.gate.types import Type
from tests.unit.examples import KEY, ONE_SLOT, SMALL, set_key

PERIOD, STEP, DELAY, MARGIN = 3600, 472_000, 1800, 60
SCHEDULE = Schedule(PERIOD, grace=120, lease=150, publish_delay=DELAY, publish_margin=MARGIN, outage_allowance=7 * DAY)
TYPES = {"small": Type("small", SMALL, None)}
TICK = tick_of(STEP, PERIOD, DELAY)


@dataclass
class Service:
    """Log, tables and clock of one slot in memory; a page of the log takes ``page_seconds``.

    Attributes:
        rows: the sets touched by each step; a step that is left out is idle.
        now: Unix seconds.
        page_seconds: how long a page takes.
        set_seconds: how long a touched set takes.
        through: the mark.
        published: the time, step and visible time of every completion.
        states: what Members holds.
    """

    rows: Mapping[int, tuple[Touched, ...]]
    now: float
    page_seconds: float = 0.0
    set_seconds: float = 0.0
    through: int = STEP - 1
    published: list[tuple[float, int, int]] = field(default_factory=list)
    states: dict[bytes, SetState] = field(default_factory=dict)

    def clock(self) -> float:
        return self.now

    layouts = ONE_SLOT

    def partitions(self, step: int, slot: int, window: int) -> dict[bytes, Layout]:
        layout = self.layouts.at(step)
        return {partition(step, layout, slot): layout}

    def page(self, place: bytes, first: bytes, last: bytes) -> Found:
        self.now += self.page_seconds
        sets = self.rows.get(int.from_bytes(place[:8], "big"), ())
        rows = [
            (each.set_key + suffix, each.type_name)
            for each in sets
            for suffix in ([token.to_bytes(4, "big") for token in each.joined] or [b""])
        ]
        return Found(sorted(rows), [], None)

    def put_wake_ups(self, rows: Iterable[Any]) -> None:
        list(rows)

    def read(self, set_keys: Sequence[bytes]) -> States:
        self.now += self.set_seconds * len(set_keys)
        return States.of([(key, self.states.get(key, SetState())) for key in set_keys])

    def write(self, step: int, updates: Iterable[Update], writers: Any) -> None:
        for update in updates:
            self.states.update(zip(update.states.keys, update.states.states(), strict=True))

    def move_horizon(self, slot: int, step: int, visible_from: int) -> None:
        self.published.append((self.now, step, visible_from))

    def stamp(self, slot: int, step: int) -> None:
        assert self.published[-1][1] == step

    def stamps(self, slots: Iterable[int]) -> dict[int, int]:
        return dict.fromkeys(slots, self.through)

    def is_stamped(self, slot: int, least: int) -> bool:
        return least == self.through

    def lease(self, *_: Any) -> Mark:
        return Mark(self.through, None)

    def release(self, *_: Any) -> None: ...

    def recorded(self, owner: str) -> dict[str, str]:
        return {f"{owner} of nothing": "", "retired retired": "for good"}

    def advance(self, slot: int, before: int | None, step: int, leaving: str | None) -> None:
        assert before == self.through
        self.through = step

    def run(self, kind: type[Evaluation] = Evaluation, missing: int | None = None) -> Outcome:
        this: Any = self
        statuses: Any = SimpleNamespace(move_horizon=self.move_horizon, is_stamped=self.is_stamped, write=ignore)
        keys = NoiseKeys(((0, KEY),))
        worker = kind(TYPES, keys, "deployment", SCHEDULE, this, this, statuses, this, lambda: missing)
        return worker.run(0, "w", self.clock, lambda: 100.0)


def ignore(*_: Any) -> None: ...


def touched(*names: object, type_name: str = "small", joined: tuple[int, ...] = (1,)) -> tuple[Touched, ...]:
    return tuple(Touched(set_key(name), type_name, joined) for name in names)


def publishes_between_ticks(service: Service) -> bool:
    """Whether some step became visible sooner than a margin after it was completed."""
    return any(visible_from <= at + MARGIN for at, _, visible_from in service.published)


BUSY, BUSY_AFTER_IDLE = {STEP: touched("a")}, {STEP + 2: touched("a")}


class StepsByTheStart(Evaluation):
    """The mistake: a busy step is published by the time at which the run began."""

    def _finish_step(self, run: Run, clock: Callable[[], float]) -> None:
        started = getattr(self, "started", None) or clock() - PAGE
        self.started = started
        super()._finish_step(run, lambda: started)


class IdleStepsByTheStart(Evaluation):
    """The same mistake for idle steps that are completed together."""

    def _complete_idle(self, run: Run, clock: Callable[[], float]) -> None:
        super()._complete_idle(run, lambda: clock() - 3 * PAGE)


PAGE = 70.0


@pytest.mark.parametrize("before", [0.5, 30.0, MARGIN + 0.5, MARGIN + PAGE - 0.5, MARGIN + 3 * PAGE - 0.5])
@pytest.mark.parametrize("rows", [BUSY, BUSY_AFTER_IDLE, {}], ids=["busy", "idle, then busy", "idle"])
def test_a_worker_that_starts_before_a_tick_and_ends_after_it_publishes_at_the_next_one(
    rows: Mapping[int, tuple[Touched, ...]], before: float
) -> None:
    service = Service(rows, TICK + 2 * PERIOD - before, PAGE)
    service.run()
    assert service.published[-1][1] == service.through == STEP + 2
    assert not publishes_between_ticks(service)


@pytest.mark.parametrize(
    ("mistake", "rows"), [(StepsByTheStart, BUSY), (IdleStepsByTheStart, BUSY_AFTER_IDLE)], ids=["busy", "idle"]
)
def test_a_horizon_computed_from_the_start_of_the_run_is_found(
    mistake: type[Evaluation], rows: Mapping[int, tuple[Touched, ...]]
) -> None:
    service = Service(rows, TICK + 2 * PERIOD - MARGIN - PAGE + 0.5, PAGE)
    service.run(mistake)
    assert publishes_between_ticks(service)


# Lateness

STEPS = 4
LATE = TICK + (STEPS - 1) * PERIOD - 100.0  # the last of four closed steps is in time, the first is three periods late


@pytest.mark.parametrize("busy", range(2**STEPS))
def test_lateness_does_not_depend_on_the_steps_with_joins(busy: int) -> None:
    rows = {STEP + n: touched("a") for n in range(STEPS) if busy >> n & 1}
    service = Service(rows, LATE)
    outcome = service.run()
    assert service.through == STEP + STEPS - 1
    assert outcome.late == (STEPS - 1) * PERIOD


@pytest.mark.parametrize("busy", range(2**STEPS))
def test_steps_completed_before_their_ticks_are_not_late(busy: int) -> None:
    rows = {STEP + n: touched("a") for n in range(STEPS) if busy >> n & 1}
    service = Service(rows, TICK - 200.0)
    outcome = service.run()
    assert (service.through, outcome.late) == (STEP, 0)


# How much one join may delay the others


def visible_from(sets: int, set_seconds: float) -> int:
    """The tick from which STEP is visible if so many sets were touched, each of which takes so long."""
    service = Service({STEP: touched(*range(sets))}, end_of(STEP, PERIOD) + 180.0, 0.0, set_seconds)
    service.run()
    return service.published[0][2]


@pytest.mark.parametrize("sets", [1, 7, 40])
def test_a_join_to_another_set_delays_a_step_by_at_most_one_tick_and_only_if_calls_are_slow(
    sets: int,
) -> None:
    in_time = DELAY - MARGIN - 180.0  # seconds between the schedule and the last moment before the tick's margin
    for per_mille in range(0, 2001, 20):
        seconds = in_time / sets * per_mille / 1000
        moved = visible_from(sets + 1, seconds) - visible_from(sets, seconds)
        between = sets * seconds < in_time <= (sets + 1) * seconds
        later = in_time + PERIOD <= (sets + 1) * seconds and sets * seconds < in_time + PERIOD
        assert moved == (PERIOD if between or later else 0)


# Rollbacks


@pytest.mark.parametrize("busy", range(2**STEPS))
@pytest.mark.parametrize("known", range(STEPS + 1))
def test_a_run_ends_before_a_missing_layout_and_the_next_one_stops_once_its_first_step_is_closed(
    known: int, busy: int
) -> None:
    service = Service({STEP + n: touched("a") for n in range(STEPS) if busy >> n & 1}, LATE)
    if known:
        assert service.run(missing=STEP + known).steps == known
        assert service.through == STEP + known - 1
    if known < STEPS:
        with pytest.raises(ConfigurationError, match=f"begins at step {STEP + known} is missing: put it back"):
            service.run(missing=STEP + known)
    else:
        assert service.run(missing=STEP + known).steps == 0  # that step is not closed yet
    assert service.through == STEP + known - 1


# Chunks


def test_sets_of_retired_types_do_not_change_the_sets_after_them() -> None:
    names = sorted(range(12), key=set_key)  # the order of the log
    joined = {name: tuple(range(name)) for name in names}
    retired = {*names[:3], names[5], names[-1]}
    chunk = tuple(Touched(set_key(name), "retired" if name in retired else "small", joined[name]) for name in names)
    service = Service({STEP: chunk}, TICK - 200.0)
    service.states = {set_key(names[4]): SetState(evaluated=STEP - 1, crossings=(STEP - 1,))}
    before = dict(service.states)
    outcome = service.run()
    assert (outcome.sets, outcome.skipped) == (len(names) - len(retired), len(retired))
    assert service.states == {
        set_key(name): alone(name, before.get(set_key(name), SetState()), joined[name])
        for name in names
        if name not in retired
    }


def alone(name: object, state: SetState, joined: tuple[int, ...]) -> SetState:
    """The state of a set after STEP by the definition."""
    tapes = Tapes(KEY, "deployment", "small", SMALL)
    return evaluate(SMALL, set_key(name), state, joined, STEP, lambda instance: Noise(tapes, set_key(name), instance))


def test_the_first_step_of_a_run_is_closed() -> None:
    service = Service(BUSY, float(end_of(STEP, PERIOD)))
    assert service.run() == Outcome()
    assert service.published == []
