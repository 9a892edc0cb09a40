"""One run over a slot: when its steps are published, how late they count, and where it ends after a rollback."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

import pytest

from kanon.errors import ConfigurationError, UndecodableMembersError
from kanon.gate.deciding import NoiseKeys
from kanon.gate.evaluation import DeploymentRecord, Evaluation, Outcome, Run
from kanon.gate.mechanism.above_threshold import SetState, evaluate
from kanon.gate.mechanism.steps import end_of
from kanon.gate.mechanism.tape import Noise, Tapes
from kanon.gate.parts import Part, keys_of
from kanon.gate.publishing import tick_of
from kanon.gate.schedule import DAY, Schedule
from kanon.gate.storage.aws.control import Commit, Place, SlotRow
from kanon.gate.storage.aws.parts import PartList
from kanon.gate.storage.aws.step_log import PartitionPage, StepLog
from kanon.gate.storage.protocols import Piece, Status
from kanon.gate.true_sets import TrueSets, name_of
from kanon.gate.types import Type
from tests.unit.examples import KEY, ONE_SLOT, SMALL, set_key

PERIOD, STEP, DELAY, MARGIN = 3600, 472_000, 1800, 60
SCHEDULE = Schedule(PERIOD, grace=120, lease=150, publish_delay=DELAY, publish_margin=MARGIN, outage_allowance=7 * DAY)
TYPES = {"small": Type("small", SMALL, None)}
TICK = tick_of(STEP, PERIOD, DELAY)
Joined = Mapping[bytes, tuple[int, ...]]


class Log(StepLog):
    """The log of a service in memory: a page takes ``page_seconds``."""

    def __init__(self, service: "Service") -> None:
        super().__init__(None, "log", ONE_SLOT)  # type: ignore[arg-type]
        self.service = service

    def page(self, partition: bytes, first: bytes, last: bytes) -> PartitionPage:
        self.service.now += self.service.page_seconds
        sets = self.service.rows.get(int.from_bytes(partition[:8], "big"), {})
        rows = [(key + token.to_bytes(4, "big"), type_name(key)) for key, tokens in sets.items() for token in tokens]
        return PartitionPage(sorted(rows), [], None, [])


@dataclass
class Service:
    """Log, tables, objects and clock of one slot in memory.

    Attributes:
        rows: the tokens that join each set in each step; a step that is left out is idle.
        now: Unix seconds.
        page_seconds: how long a page of the log takes.
        set_seconds: how long a touched set takes.
        row: the row of the slot.
        published: the time, step and visible time of every completion.
        objects: the parts and lists by their names.
    """

    rows: Mapping[int, Joined]
    now: float
    page_seconds: float = 0.0
    set_seconds: float = 0.0
    row_: SlotRow = SlotRow(1, STEP - 1)
    published: list[tuple[float, int, int]] = field(default_factory=list)
    objects: dict[str, Any] = field(default_factory=dict)
    numbers: Any = field(default_factory=count)

    @property
    def through(self) -> int | None:
        return self.row_.evaluated_through

    def clock(self) -> float:
        return self.now

    # Control and Statuses

    def row(self, _: Place) -> SlotRow:
        return self.row_

    def lease(self, *_: Any) -> SlotRow:
        return self.row_

    def release(self, *_: Any) -> None: ...

    def record_decided(self, *_: Any) -> None: ...

    def fence(self, *_: Any) -> Any: ...

    def write(self, _: Any, statuses: Sequence[Status]) -> bool:
        return bool(statuses)

    def horizon_moves(self, slot: int, step: int, visible_from: int, known: int | None, shows: str | None) -> Any:
        return step, visible_from

    def commit(
        self, place: Place, run: int, before: SlotRow, commit: Commit, moves: tuple[int, int], *, leaving: bool
    ) -> None:
        assert (before.evaluated_through, before.manifest) == (self.row_.evaluated_through, self.row_.manifest)
        assert moves[0] == commit.evaluated_through
        self.published.append((self.now, *moves))
        step, manifest, kept, horizon, shown, remaking = commit
        self.row_ = replace(
            before,
            evaluated_through=step,
            manifest=manifest,
            kept=tuple(kept),
            horizon=horizon,
            shown=shown,
            remaking=remaking,
        )

    # Parts

    def put(self, part: Part, step: int, run: int, first: str) -> Piece:
        self.now += self.set_seconds * len(self.rows.get(step, {}))
        name = f"{step}-{run}-{next(self.numbers)}.part"
        self.objects[name] = part
        return Piece(first, name, "", part.earliest)

    def read(self, piece: Piece) -> Part:
        found: Part = self.objects[piece.name]
        return found

    def put_list(self, listed: PartList, run: int) -> str:
        name = f"{listed.step}-{run}-{next(self.numbers)}-.list"
        self.objects[name] = listed
        return name

    def put_true(self, content: bytes, step: int, run: int) -> str:
        name = name_of(f"0/0/{step}-{run}-{next(self.numbers)}", content)
        self.objects[name] = TrueSets.of(name, content)
        return name

    def true_sets(self, name: str) -> TrueSets:
        if name not in self.objects:
            raise UndecodableMembersError(name)
        found: TrueSets = self.objects[name]
        return found

    def has(self, name: str) -> bool:
        return name in self.objects

    def list_of(self, name: str) -> PartList:
        found: PartList = self.objects[name]
        return found

    @property
    def states(self) -> dict[bytes, SetState]:
        listed = self.objects[self.row_.manifest or ""]
        parts = [self.objects[piece.name] for piece in listed.pieces]
        return {key: state for part in parts for key, state in zip(keys_of(part.keys), part.states().states())}  # noqa: B905

    def run(self, kind: type[Evaluation] = Evaluation, missing: int | None = None) -> Outcome:
        this: Any = self
        recorded = DeploymentRecord({"small": 1, "retired": 2}, frozenset({"retired"}), missing)
        worker = kind(
            TYPES, {}, frozenset(), NoiseKeys(((0, KEY),)), "deployment", SCHEDULE,
            Log(self), lambda _: this, this, this, lambda: recorded,
        )  # fmt: skip
        return worker.run(0, "w", self.clock, lambda: 100.0)


RETIRED: set[bytes] = set()


def type_name(key: bytes) -> str:
    return "retired" if key in RETIRED else "small"


def touched(*names: object, joined: tuple[int, ...] = (1,)) -> Joined:
    return {set_key(name): joined for name in names}


def publishes_between_ticks(service: Service) -> bool:
    """Whether some step became visible sooner than a margin after it was completed."""
    return any(visible_from <= at + MARGIN for at, _, visible_from in service.published)


BUSY, BUSY_AFTER_IDLE = {STEP: touched("a")}, {STEP + 2: touched("a")}


class ByTheStart(Evaluation):
    """The mistake: a step is published by the time at which its reading began."""

    def _complete(
        self, run: Run, step: int, manifest: str | None, shown: str | None, now: float, *more: Any, leaving: bool
    ) -> None:
        super()._complete(run, step, manifest, shown, now - 3 * PAGE, *more, leaving=leaving)


PAGE = 70.0


@pytest.mark.parametrize("before", [0.5, 30.0, MARGIN + 0.5, MARGIN + PAGE - 0.5, MARGIN + 3 * PAGE - 0.5])
@pytest.mark.parametrize("rows", [BUSY, BUSY_AFTER_IDLE, {}], ids=["busy", "idle, then busy", "idle"])
def test_a_worker_that_starts_before_a_tick_and_ends_after_it_publishes_at_the_next_one(
    rows: Mapping[int, Joined], before: float
) -> None:
    service = Service(rows, TICK + 2 * PERIOD - before, PAGE)
    service.run()
    assert service.published[-1][1] == service.through == STEP + 2
    assert not publishes_between_ticks(service)


@pytest.mark.parametrize("rows", [BUSY, BUSY_AFTER_IDLE, {}], ids=["busy", "idle, then busy", "idle"])
def test_a_horizon_computed_from_the_start_of_the_run_is_found(rows: Mapping[int, Joined]) -> None:
    service = Service(rows, TICK + 2 * PERIOD - MARGIN - PAGE + 0.5, PAGE)
    service.run(ByTheStart)
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


@pytest.mark.slow
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


# Retired types


def test_joins_of_retired_types_do_not_change_the_other_sets(monkeypatch: pytest.MonkeyPatch) -> None:
    names = sorted(range(12), key=set_key)  # the order of the log
    joined = {set_key(name): tuple(range(1, 2 + name)) for name in names}
    monkeypatch.setattr(f"{__name__}.RETIRED", {set_key(name) for name in (*names[:3], names[5], names[-1])})
    service = Service({STEP: joined}, TICK - 200.0)
    outcome = service.run()
    assert outcome.sets == len(names) - len(RETIRED)
    assert outcome.skipped == sum(len(joined[key]) for key in RETIRED)
    expected = {key: alone(key, tokens) for key, tokens in joined.items() if key not in RETIRED}
    assert {key: replace(state, evaluated=STEP) for key, state in service.states.items()} == expected


def alone(key: bytes, joined: tuple[int, ...]) -> SetState:
    """The state of a new set after STEP by the definition."""
    tapes = Tapes(KEY, "deployment", "small", SMALL)
    return evaluate(SMALL, key, SetState(), joined, STEP, lambda instance: Noise(tapes, key, instance))


def test_the_first_step_of_a_run_is_closed() -> None:
    service = Service(BUSY, float(end_of(STEP, PERIOD)))
    assert service.run() == Outcome()
    assert service.published == []
