"""Evaluation on real tables and objects: the same answers after any failure of a worker, and little work."""

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import count
from typing import Any

import numpy as np
import pytest

from kanon.errors import ConfigurationError, TooFarBehindError, UndecodableMembersError
from kanon.gate import deciding, evaluation, merging
from kanon.gate.deciding import NoiseKeys
from kanon.gate.evaluation import SECONDS_TO_STOP, DeploymentRecord, Evaluation, Outcome
from kanon.gate.fingerprints import RETIRED, recorded_names, retire
from kanon.gate.mechanism.above_threshold import SetState, is_above
from kanon.gate.mechanism.columns import NEVER
from kanon.gate.mechanism.parameters import Parameters
from kanon.gate.mechanism.searches import Searches
from kanon.gate.mechanism.steps import end_of, first_step, instance_of, phase_of
from kanon.gate.mechanism.tape import LogGeneration, Tapes
from kanon.gate.publishing import Horizon
from kanon.gate.schedule import Schedule
from kanon.gate.slots import Layout, Layouts
from kanon.gate.storage.aws import control
from kanon.gate.storage.aws.control import Place, SlotRow
from kanon.gate.storage.aws.gathering import Gathering
from kanon.gate.storage.aws.statuses import Statuses
from kanon.gate.storage.aws.step_log import Row
from kanon.gate.storage.aws.true_objects import step_of
from kanon.gate.sweeping import Sweeping
from kanon.gate.types import Type
from kanon.noise.laws import two_sided
from kanon.noise.words import NoiseKey
from tests.integration.gate.tables import Running, Tables, fresh, running, states_of
from tests.naive import Naive
from tests.unit.examples import CROSSING, KEY, ONE_SIDED, PUBLISHED, SMALL, TWO_SLOTS, in_slot, set_key

PERIOD = 3600
DAY = 86_400
SCHEDULE = Schedule(
    period=PERIOD, grace=120, lease=150, publish_delay=1800, publish_margin=60, outage_allowance=7 * DAY
)
START = 472_000
TYPES = {
    "small": Type("small", SMALL, None),
    "one-sided": Type("one-sided", replace(ONE_SIDED, period=PERIOD), None),
    "crossing": Type("crossing", CROSSING, None),
}
NAMES = [set_key(n) for n in range(9)]
KEYS = NoiseKeys(((0, KEY),))


@pytest.fixture(scope="module")
def moto() -> Iterator[Running]:
    with running("moto", small_pages=False) as running_:  # tests count the calls
        yield running_


@pytest.fixture
def new_scenario(moto: Running) -> Callable[..., "Scenario"]:
    return lambda **options: Scenario(fresh(moto), **options)


@pytest.fixture
def scenario(new_scenario: Callable[..., "Scenario"]) -> "Scenario":
    return new_scenario()


def forever() -> float:
    """A worker that is never short of time."""
    return 1e9


def closing(step: int) -> float:
    """The time at which the schedule evaluates ``step``."""
    return end_of(step, PERIOD) + 180.0


@dataclass
class Scenario:
    """The tables, the joins, and the naive algorithm with the same joins."""

    tables: Tables
    types: dict[str, Type] = field(default_factory=lambda: dict(TYPES))
    keys: NoiseKeys = KEYS
    schedule: Schedule = SCHEDULE
    type_of: dict[bytes, str] = field(default_factory=dict)
    naive: dict[str, Naive] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, type_ in self.types.items():
            self.naive[name] = Naive(type_.parameters, Tapes(KEY, "deployment", name, type_.parameters))

    def start(self, slot: int = 0) -> None:
        """Nothing is left to evaluate before ``START``."""
        self.tables.mark(slot, START - 1)

    def join(self, name: bytes, tokens: Sequence[int], step: int, type_name: str = "small") -> None:
        expires = end_of(step, PERIOD) + self.schedule.outage_allowance
        assert not self.tables.log.put_all(Row(step, name, token, type_name, expires) for token in tokens)
        self.type_of[name] = type_name
        for token in tokens:
            if type_name in self.naive:
                self.naive[type_name].join(name, token, step)

    def join_history(self, seed: int, steps: int) -> None:
        """Bursts, rejoins and silence for some sets of two types."""
        random_ = random.Random(seed)
        for step in range(START, START + steps):
            for n, name in enumerate(NAMES):
                if random_.random() < 0.4:
                    size = random_.choice((1, 1, 2, 3, 5, 8))
                    tokens = [random_.randrange(12) for _ in range(size)]
                    self.join(name, tokens, step, ("one-sided", "crossing", "small")[n % 3])

    def worker(self, tables: Tables | None = None, **options: Any) -> Evaluation:
        tables = tables or self.tables

        def check_control() -> DeploymentRecord:
            retired = recorded_names(tables.control.recorded("evaluate"), RETIRED)
            return DeploymentRecord(tables.control.type_numbers({*self.types, *retired}), frozenset(retired))

        return Evaluation(
            types=self.types,
            numbers={},
            retired=frozenset(),
            noise_keys=self.keys,
            check_control=check_control,
            deployment="deployment",
            schedule=self.schedule,
            log=tables.log,
            parts_of=tables.parts,
            statuses=tables.statuses,
            control=tables.control,
            **options,
        )

    def sweep(self, now: float) -> None:
        control, layouts = self.tables.control, self.tables.layouts
        Sweeping(control, self.tables.parts, layouts, self.schedule.publish_margin).sweep(now)

    def run(self, now: float, slot: int = 0, time_left: Callable[[], float] = forever, **options: Any) -> Outcome:
        return self.worker(**options).run(slot, "holder", lambda: now, time_left)

    def run_hourly(self, steps: Iterable[int], **options: Any) -> None:
        for step in steps:
            assert self.run(closing(step), **options).steps == 1

    def shown(self, step: int) -> dict[bytes, bool]:
        """The status of every set at ``step``, from its crossings."""
        crossings, _ = self.tables.statuses.read(self.type_of, ())
        return {name: self._above(name, crossings.get(name, ()), step) for name in self.type_of}

    def _above(self, name: bytes, crossings: tuple[int, ...], step: int) -> bool:
        p = self.types[self.type_of[name]].parameters
        return is_above(Searches.of(p, name), crossings, step, step)

    def expected(self, step: int) -> dict[bytes, bool]:
        """The answer of the naive algorithm; steps must be queried in order."""
        return {name: self.naive[type_name].step(name, step) for name, type_name in self.type_of.items()}

    def states(self) -> dict[bytes, SetState]:
        """The stored states of the sets, of all slots of the newest layout."""
        layout = self.tables.layouts.entries[-1]
        slots = (self.tables.stored(slot, layout.from_step) for slot in range(layout.slots))
        return {key: state for part in slots for key, state in states_of(part).items()}

    def statuses(self) -> list[dict[str, Any]]:
        """The stored crossings."""
        return [item for item in self.tables.items("Statuses") if len(item["set_key"]["B"]) > 1]

    def everything(self) -> tuple[dict[bytes, SetState], list[dict[str, Any]]]:
        return self.states(), self.statuses()

    def mark(self, slot: int = 0) -> int | None:
        return self.tables.control.mark_of(slot, self.tables.layouts)

    def horizon(self, slot: int = 0) -> Horizon | None:
        return self.tables.statuses.read((), [slot])[1].get(slot)

    def go_back(self, slot: int = 0, to: SlotRow | None = None) -> None:
        """To the manifest before the newest one, or to that of an earlier row, as a recovery does."""
        kept = self.tables.control.row(Place(0, slot)).kept[:-1] if to is None else to.kept
        step = step_of(kept[-1]) if to is None else to.evaluated_through
        self.tables.other_client().update_item(
            TableName=self.tables.names["Control"],
            Key={"name": {"S": f"slot#0#{slot}"}},
            UpdateExpression="SET evaluated_through = :step, manifest = :name, kept = :kept ADD run :one",
            ExpressionAttributeValues={
                ":step": {"N": str(step)},
                ":name": {"S": kept[-1]},
                ":kept": {"L": [{"S": name} for name in kept]},
                ":one": {"N": "1"},
            },
        )

    def seen(self, now: float, slot: int = 0) -> int | None:
        """The step that a reader sees."""
        horizon = self.horizon(slot)
        return None if horizon is None else horizon.at(now)


def test_a_command_that_changes_states_forgets_what_was_read_of_a_step(scenario: Scenario) -> None:
    """After a replay the mark is before that step again, and its objects may be gone."""
    scenario.start()
    scenario.join_history(seed=2, steps=3)
    scenario.run_hourly(range(START, START + 3))
    place, control = Place(0, 0), scenario.tables.control
    before = control.lease(place, "command", closing(START + 3), closing(START + 4))
    assert before is not None
    assert before.manifest is not None
    parts, step = scenario.tables.parts(place), START + 2
    gathering = Gathering(control, parts, place, before, lambda: 100.0, before.kept[-2])
    gathering.put(step, [b"read"], ())
    scenario.sweep(closing(START + 3))  # the step is done, so nobody needs what was read
    control.restate(place, before.run, step_of(before.kept[-2]), before.kept[:-1])
    control.release(place, before.run)
    assert control.row(place).gathered is None
    scenario.sweep(closing(START + 3))
    assert scenario.run(closing(START + 3)).steps == 2


# The same answers


def test_every_answer_of_every_step_equals_the_reference_algorithm(scenario: Scenario) -> None:
    scenario.start()
    scenario.join_history(seed=1, steps=20)
    for step in range(START, START + 20 + 3 * SMALL.window):  # and the silence after it
        assert scenario.run(closing(step)).steps == 1
        assert scenario.shown(step) == scenario.expected(step)


@pytest.fixture(scope="module")
def hourly(moto: Running) -> Any:
    """What is stored if every step is evaluated in its hour: after the history, and after three days."""
    scenario = Scenario(fresh(moto))
    scenario.start()
    scenario.join_history(seed=2, steps=15)
    scenario.run_hourly(range(START, START + 15))
    after_history = scenario.everything()
    scenario.run_hourly(range(START + 15, START + 72))
    return after_history, scenario.everything()


def test_a_step_evaluated_twice_gives_the_same_answers(scenario: Scenario, hourly: Any) -> None:
    scenario.start()
    scenario.join_history(seed=2, steps=15)
    scenario.run(closing(START))
    for step in range(START + 1, START + 15):
        scenario.run(closing(step))
        before = scenario.everything()
        scenario.go_back()
        assert scenario.run(closing(step)).steps == 1
        assert scenario.everything() == before
    assert scenario.everything() == hourly[0]


def needed_for_a_hold(keys: Sequence[bytes], newest: Any, parameters: Parameters) -> Any:
    """Planted: a crossing is kept while its status is true, though later searches depend on it."""
    assert parameters.restart is not None
    return np.where(newest == NEVER, NEVER, newest + parameters.restart.hold)


@pytest.mark.parametrize("planted", [False, True])
def test_a_recovery_two_holds_after_a_crossing_loses_none(
    new_scenario: Callable[..., Scenario], planted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    names, hold = [set_key(n) for n in range(20)], 8
    schedule = replace(SCHEDULE, outage_allowance=10 * PERIOD)
    scenario = new_scenario(types={"crossing": TYPES["crossing"]}, schedule=schedule)
    scenario.start()
    for n, name in enumerate(names):  # everybody leaves; some come back when the status has been false for a hold
        scenario.join(name, range(9), START, "crossing")
        scenario.join(name, range(3 + n % 2), START + 2 * hold + 2, "crossing")
    last, place = START + 2 * hold + 6, Place(0, 0)
    exact = {step: scenario.expected(step) for step in range(START - 1, last + 1)}
    if planted:
        monkeypatch.setattr(merging, "crossing_needed", needed_for_a_hold)
    rows = {}
    for step in range(START, last + 1):
        scenario.run(closing(step))
        scenario.tables.expire(closing(step))
        rows[step] = scenario.tables.control.row(place)
    before = scenario.everything()
    scenario.go_back(to=rows[START + 2 * hold])
    held = {name: state.crossings for name, state in scenario.states().items()}
    assert (held == dict.fromkeys(names, (START,))) != planted
    found = []
    for step in range(START + 2 * hold + 1, last + 1):
        assert scenario.run(closing(step)).steps == 1
        found.append(scenario.shown(step) == exact[step])
    assert scenario.everything() == before
    assert all(found) != planted


def test_after_three_days_without_evaluation_every_reader_sees_exact_answers_until_the_slot_has_caught_up(
    scenario: Scenario, hourly: Any
) -> None:
    scenario.start()
    scenario.join_history(seed=2, steps=15)
    exact = {step: scenario.expected(step) for step in range(START - 1, START + 72)}
    assert scenario.run(closing(START)).steps == 1
    for hour in range(30):
        now = closing(START + 71 + hour)
        scenario.run(now)
        for moment in (now, now + SCHEDULE.publish_delay):
            seen = scenario.seen(moment)
            assert seen is not None
            assert seen > START + 71 or scenario.shown(seen) == exact[seen]
    assert scenario.mark() == START + 71 + 29
    assert hourly[1] != hourly[0]


def busy(scenario: Scenario) -> None:
    """Two steps with joins and crossings, in several ranges and transactions."""
    scenario.start()
    for i, name in enumerate(NAMES):
        scenario.join(name, range(i, 2 * i + 3), START)
    scenario.join(NAMES[5], range(20, 24), START + 1)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two ranges a step, and two crossings a transaction."""
    monkeypatch.setattr(deciding, "MOST_JOINS_A_RANGE", 40)
    monkeypatch.setattr(deciding, "MOST_PART_BYTES", 300)
    monkeypatch.setattr(evaluation, "MOST_STATUSES", 2)


def disturbed(tables: Tables, call: Callable[[], None], event: str = "before-call") -> Tables:
    """The tables with clients of which every call does something before or after."""
    other = replace(tables, client=tables.running.client(), s3=tables.running.objects())
    for client in (other.client, other.s3):
        client.meta.events.register(event, lambda **_: call())
    return other


# Leases


def test_a_worker_does_not_evaluate_a_slot_that_another_one_leased(scenario: Scenario) -> None:
    scenario.start()
    scenario.join_history(seed=3, steps=1)
    now = closing(START)
    scenario.tables.control.lease(Place(0, 0), "another", now - 10, now + 140)
    before = scenario.tables.items("Control"), scenario.everything()
    assert scenario.run(now) == Outcome()
    assert (scenario.tables.items("Control"), scenario.everything()) == before
    assert scenario.run(now + 141).steps == 1


def test_a_worker_that_fails_releases_its_lease(scenario: Scenario) -> None:
    scenario.start()
    scenario.join(NAMES[0], range(9), START)
    calls = count()

    def fail() -> None:
        if next(calls) >= 6:
            raise ConnectionError

    with pytest.raises(ConnectionError):
        scenario.worker(disturbed(scenario.tables, fail)).run(0, "first", lambda: closing(START), forever)
    tables = replace(scenario.tables, s3=scenario.tables.running.objects())
    tables.s3.meta.events.register("before-call", lambda **_: (_ for _ in ()).throw(ConnectionError()))
    later = closing(START) + SCHEDULE.lease + 1
    with pytest.raises(ConnectionError):
        scenario.worker(tables).run(0, "second", lambda: later, forever)
    assert scenario.mark() == START - 1
    assert scenario.run(later).steps == 1


# Time


def test_a_step_is_not_read_before_it_is_closed(scenario: Scenario) -> None:
    scenario.start()
    end = end_of(START, PERIOD)
    assert scenario.run(end + SCHEDULE.grace - 1).steps == 0
    assert scenario.run(end + SCHEDULE.grace).steps == 1


@pytest.mark.usefixtures("small")
def test_a_worker_short_of_time_leaves_the_rest_to_the_next_one_which_decides_nothing_again(
    new_scenario: Callable[..., Scenario],
) -> None:
    """However often the time is read before it is short."""
    worlds, decided = [], set()
    for reads in (10**6, *range(1, 26, 3)):
        scenario = new_scenario()
        busy(scenario)
        sets = workers = 0
        while (scenario.mark() or 0) < START + 1:
            left = iter([forever()] * reads)
            outcome = scenario.run(closing(START + 1), time_left=lambda left=left: next(left, 0.0))  # type: ignore[misc]
            sets, workers = sets + outcome.sets, workers + 1
            assert outcome.behind == START + 1 - (scenario.mark() or 0)
            if reads < 8 and workers > 2:
                break  # too little for any range
        else:
            decided.add(sets)
            worlds.append(scenario.everything())
            assert workers > 1 or reads > 15
    assert len(worlds) > 5
    assert all(world == worlds[0] for world in worlds)
    assert len(decided) == 1


def test_half_a_step_is_never_shown(scenario: Scenario, small: None) -> None:
    busy(scenario)
    left = iter([forever()] * 8)
    outcome = scenario.run(closing(START), time_left=lambda: next(left, SECONDS_TO_STOP - 1))
    assert (outcome.steps, outcome.behind, scenario.mark(), scenario.horizon()) == (0, 1, START - 1, None)
    assert scenario.tables.control.row(Place(0, 0)).progress is not None


def test_a_worker_without_any_time_changes_nothing(scenario: Scenario) -> None:
    scenario.start()
    scenario.join(NAMES[0], range(9), START)
    outcome = scenario.run(closing(START + 4), time_left=lambda: 0.0)
    assert outcome == Outcome(behind=5)
    assert (scenario.mark(), scenario.everything()) == (START - 1, ({}, []))


def test_a_step_without_rows_takes_one_read(scenario: Scenario) -> None:
    scenario.start()
    scenario.tables.calls.clear()
    assert scenario.run(closing(START + 99)).steps == 100
    operations = [call.operation for call in scenario.tables.calls]
    assert operations.count("Query") == 100
    assert len(operations) <= 109
    assert scenario.mark() == START + 99


def test_a_slot_without_a_mark_begins_with_the_oldest_step_the_log_may_hold(scenario: Scenario) -> None:
    now = closing(START)
    oldest = SCHEDULE.oldest_in_log(now)
    assert end_of(oldest, PERIOD) + SCHEDULE.outage_allowance > now
    assert end_of(oldest - 1, PERIOD) + SCHEDULE.outage_allowance <= now
    scenario.join(NAMES[0], range(9), oldest)
    outcome = scenario.run(now)
    assert (outcome.steps, scenario.mark()) == (START - oldest + 1, START)
    assert scenario.shown(oldest) == {NAMES[0]: True}


def test_a_slot_whose_half_done_first_step_may_have_lost_rows_takes_its_parts_for_those_of_no_other_step(
    scenario: Scenario, small: None
) -> None:
    now = closing(START)
    oldest = SCHEDULE.oldest_in_log(now)
    for name in NAMES:
        scenario.join(name, range(9), oldest)
        scenario.join(name, range(9, 18), oldest + 1)
    scenario.run(now, time_left=lambda: 0.0 if scenario.tables.control.row(Place(0, 0)).progress else forever())
    before = scenario.everything()
    with pytest.raises(TooFarBehindError, match=f"^step {oldest}, the first one of slot 0, is half done"):
        scenario.run(now + PERIOD)
    assert scenario.everything() == before
    assert scenario.mark() is None


def test_a_slot_of_a_new_stack_begins_with_the_step_before_its_log_was_made(scenario: Scenario) -> None:
    scenario.join(NAMES[0], range(9), START)
    worker = scenario.worker()
    worker.log_created = START * PERIOD + 1.0
    scenario.tables.calls.clear()
    closed = closing(START - 1)
    assert worker.run(0, "holder", lambda: closed, forever).steps == 1  # the first wake-up leaves a mark
    assert scenario.mark() == START - 1
    closed = closing(START)
    assert worker.run(0, "holder", lambda: closed, forever).steps == 1
    assert scenario.shown(START) == {NAMES[0]: True}
    assert sum(call.operation == "Query" for call in scenario.tables.calls) == 2


def test_a_log_that_seems_to_be_created_in_the_future_is_treated_as_old(scenario: Scenario) -> None:
    scenario.join(NAMES[0], range(9), START)
    worker = scenario.worker()
    worker.log_created = closing(START) + 1
    assert worker.run(0, "holder", lambda: closing(START), forever).steps > 100
    assert scenario.shown(START) == {NAMES[0]: True}


def test_an_evaluator_that_is_too_far_behind_stops_before_rows_expire(scenario: Scenario) -> None:
    scenario.start()
    scenario.join(NAMES[0], range(9), START)
    most = START * PERIOD + 6 * DAY
    with pytest.raises(TooFarBehindError, match=rf"step {START} may have lost rows; move the mark"):
        scenario.run(most + PERIOD)
    assert scenario.mark() == START - 1
    scenario.run(most)
    assert scenario.shown(START) == {NAMES[0]: True}


# Errors that stop a slot, and errors that do not


def test_the_joins_of_a_type_that_is_not_configured_stop_their_step_until_it_is_retired_then_they_are_skipped(
    scenario: Scenario,
) -> None:
    scenario.start()
    scenario.join(NAMES[0], range(9), START)
    scenario.tables.log.put_all(Row(START, set_key("gone"), token, "new", 2**31) for token in range(9))
    for _ in range(2):
        with pytest.raises(ConfigurationError, match=r"joins of type 'new', .* with `kanon operate retire new`$"):
            scenario.run(closing(START))
    assert (scenario.mark(), scenario.horizon(), scenario.everything()) == (START - 1, None, ({}, []))
    retire(scenario.tables.control, "new")
    outcome = scenario.run(closing(START))
    assert (outcome.steps, outcome.sets, outcome.skipped) == (1, 1, 9)
    assert list(scenario.states()) == [NAMES[0]]


def test_a_version_without_a_type_whose_states_are_stored_stops_and_drops_none(scenario: Scenario) -> None:
    scenario.start()
    scenario.join_history(seed=3, steps=2)
    scenario.run(closing(START + 1))
    before = scenario.everything()
    old = replace(scenario, types={"small": TYPES["small"]}, naive={})
    with pytest.raises(ConfigurationError, match="type 'crossing' is no longer configured: put it back, or retire"):
        old.run(closing(START + 19))
    assert scenario.everything() == before
    for name in ("crossing", "one-sided"):
        retire(scenario.tables.control, name)
    old.run(closing(START + 19))
    assert {scenario.type_of[name] for name in scenario.states()} <= {"small"}


def test_a_crossing_in_the_next_instance_does_not_hide_the_one_that_readers_still_need(scenario: Scenario) -> None:
    """Each set gets a crowd in one step of six only. It is forgotten, and the next crowd makes it again."""
    scenario.start()
    before: dict[bytes, bool] = {}
    true = 0
    for step in range(START, START + 30):
        for n, name in enumerate(NAMES):
            if step % 6 == n % 6:
                scenario.join(name, range(30), step, ("one-sided", "crossing", "small")[n % 3])
        expected = scenario.expected(step)
        scenario.run_hourly([step])
        assert {name: above for name, above in scenario.shown(step - 1).items() if name in before} == before
        before = expected
        true += sum(expected.values())
    assert true > 30


def test_a_slot_whose_row_is_lost_is_not_begun_again(scenario: Scenario) -> None:
    scenario.start()
    scenario.join(NAMES[0], range(6), START)
    scenario.run(closing(START))
    objects = scenario.tables.objects()
    key = {"name": {"S": "slot#0#0"}}
    scenario.tables.other_client().delete_item(TableName=scenario.tables.names["Control"], Key=key)
    for _ in range(3):
        with pytest.raises(ConfigurationError, match=r"Control has lost slot 0, .*: begin a new log generation"):
            scenario.run(closing(START + 1))
    assert scenario.tables.objects() == objects


def test_a_part_that_is_damaged_or_missing_stops_its_slot_and_no_other(scenario: Scenario) -> None:
    scenario.tables.layouts = TWO_SLOTS
    names = [*in_slot(0, TWO_SLOTS, 1), *in_slot(1, TWO_SLOTS, 1)]
    for slot, name in enumerate(names):
        scenario.start(slot)
        scenario.join(name, range(3), START)
        scenario.run(closing(START), slot=slot)
        scenario.join(name, range(3, 9), START + 1)
    (part,) = (name for name in scenario.tables.objects() if name.startswith("0/0/") and name.endswith(".part"))
    s3, place = scenario.tables.running.objects(), {"Bucket": scenario.tables.bucket, "Key": part}
    content = s3.get_object(**place)["Body"].read()
    s3.put_object(**place, Body=content[:-1] + b"\1")
    with pytest.raises(UndecodableMembersError, match="is not as it was written"):
        scenario.run(closing(START + 1), slot=0)
    s3.delete_object(**place)
    with pytest.raises(UndecodableMembersError, match="of the bucket of states is missing"):
        scenario.run(closing(START + 1), slot=0)
    assert scenario.mark(0) == START
    assert scenario.run(closing(START + 1), slot=1).sets == 1
    s3.put_object(**place, Body=content)
    assert scenario.run(closing(START + 1), slot=0).sets == 1


def test_a_slot_that_has_lost_a_list_of_parts_is_not_swept_and_all_others_are(scenario: Scenario) -> None:
    scenario.tables.layouts, left = TWO_SLOTS, "472000-0-0.part"
    for slot in range(2):
        scenario.start(slot)
        scenario.join(in_slot(slot, TWO_SLOTS, 1)[0], range(3), START)
        scenario.run(closing(START), slot=slot)
        scenario.tables.s3.put_object(Bucket=scenario.tables.bucket, Key=f"0/{slot}/{left}", Body=b"")
    (lost, row), (other, _) = scenario.tables.control.rows()
    scenario.tables.s3.delete_object(Bucket=scenario.tables.bucket, Key=row.manifest)
    with pytest.raises(UndecodableMembersError, match="of the bucket of states is missing"):
        scenario.sweep(closing(START))
    assert lost.folder + left in scenario.tables.objects()
    assert other.folder + left not in scenario.tables.objects()


def test_an_instance_without_its_noise_key_is_not_evaluated_with_another_key(
    new_scenario: Callable[..., Scenario],
) -> None:
    scenario = new_scenario(keys=NoiseKeys(((START + 100, KEY),)))
    scenario.start()
    scenario.join(NAMES[0], range(4), START)
    with pytest.raises(
        ConfigurationError, match=r"^no noise key covers what began before step \d+: put the removed key back"
    ):
        scenario.run(closing(START))
    assert scenario.mark() == START - 1


def test_an_instance_uses_the_key_of_its_first_step(new_scenario: Callable[..., Scenario]) -> None:
    old, new = KEY, NoiseKey("2", bytes(32))
    scenario = new_scenario(keys=NoiseKeys(((0, old), (START + 8, new))))
    scenario.start()
    parameters = {False: Tapes(old, "deployment", "small", SMALL), True: Tapes(new, "deployment", "small", SMALL)}
    naive = {is_new: Naive(SMALL, tapes) for is_new, tapes in parameters.items()}
    different = False
    for step in range(START, START + 18):
        for name in NAMES[:5]:
            scenario.join(name, range(step % 5, step % 5 + 2), step)
            for plain in naive.values():
                for token in range(step % 5, step % 5 + 2):
                    plain.join(name, token, step)
        scenario.run(closing(step))
        shown = scenario.shown(step)
        for name in NAMES[:5]:
            phase = phase_of(name, SMALL.window, SMALL.phase)
            first = first_step(instance_of(step, phase, SMALL.window), phase, SMALL.window)
            answers = {is_new: plain.step(name, step) for is_new, plain in naive.items()}
            assert shown[name] == answers[first >= START + 8]
            different |= answers[True] != answers[False]
    assert different  # so the example tells the keys apart


# Order of writes, and horizons


def test_parts_come_first_then_the_record_then_the_crossings_then_the_commit(scenario: Scenario) -> None:
    scenario.start()
    for name in NAMES:
        scenario.join(name, range(9), START)
    scenario.tables.calls.clear()
    scenario.run(closing(START))
    written = [
        (call.operation, sorted(set(call.tables)))
        for call in scenario.tables.calls
        if call.operation not in ("Query", "GetItem", "GetObject", "HeadObject")
    ]
    assert written == [
        ("UpdateItem", ["Control"]),  # the lease
        ("UpdateItem", ["Control"]),  # the numbers of the types
        ("PutObject", ["States"]),
        ("PutObject", ["States"]),
        ("UpdateItem", ["Control"]),  # the record
        ("TransactWriteItems", ["Control", "Statuses"]),  # the crossings
        ("PutObject", ["States"]),  # the true sets
        ("TransactWriteItems", ["Control", "Statuses"]),  # refused: the slot has no horizon yet
        ("TransactWriteItems", ["Control", "Statuses"]),
    ]


def test_a_step_without_crossings_takes_two_objects_and_three_writes(scenario: Scenario) -> None:
    scenario.start()
    scenario.run(closing(START - 1))
    for step in (START, START + 1):
        scenario.join(NAMES[0], [step - START], step)
        scenario.tables.calls.clear()
        scenario.run(closing(step))
    operations = [call.operation for call in scenario.tables.calls]
    assert [operations.count(name) for name in ("PutObject", "UpdateItem", "TransactWriteItems")] == [2, 1, 1]
    assert operations.count("GetItem") == 3  # the row, the recorded values, the numbers of the types


def test_a_step_in_time_is_shown_at_its_tick(scenario: Scenario) -> None:
    scenario.start()
    scenario.run(closing(START))
    tick = end_of(START, PERIOD) + SCHEDULE.publish_delay
    horizon = scenario.horizon()
    assert horizon == Horizon(START, tick, None)
    assert scenario.run(closing(START)).late == 0


def test_a_step_too_late_for_its_tick_is_shown_at_the_next_one_and_counted_late(scenario: Scenario) -> None:
    scenario.start()
    tick = end_of(START, PERIOD) + SCHEDULE.publish_delay
    outcome = scenario.run(tick - SCHEDULE.publish_margin + 0.5)
    assert scenario.horizon() == Horizon(START, tick + PERIOD, None)
    assert outcome.late == PERIOD


def test_steps_caught_up_are_shown_together_as_many_as_the_oldest_crossing_that_is_visible_allows(
    scenario: Scenario,
) -> None:
    scenario.start()
    scenario.run(closing(START))
    now = closing(START + 50)
    outcome = scenario.run(now)
    tick = end_of(START + 50, PERIOD) + SCHEDULE.publish_delay
    ahead = min(TYPES["one-sided"].parameters.window, SMALL.window, 8)
    assert (outcome.steps, outcome.behind) == (ahead, 0)  # the rest waits for the tick, and no message is sent for it
    assert scenario.horizon() == Horizon(START + ahead, tick, START, tick - 50 * PERIOD)
    assert scenario.run(tick + SCHEDULE.publish_margin).steps == ahead


def test_the_first_step_that_readers_will_see_limits_the_steps_after_it_though_nobody_sees_it_yet(
    scenario: Scenario,
) -> None:
    """A new slot with a long log. One worker stops just before its tick is settled, the next one goes on after that."""
    for step in range(START, START + 41):
        scenario.join(NAMES[1], range(30), step, "crossing")
        scenario.join(NAMES[2], range(30), step)
    exact = {step: scenario.expected(step) for step in range(START - 1, START + 41)}
    worker, tick = scenario.worker(), SCHEDULE.tick_of(START + 40)
    worker.log_created = START * PERIOD + 1.0
    settled = tick - SCHEDULE.publish_margin
    worker.run(0, "first", lambda: settled - 5, lambda: 0.0 if scenario.mark() == START + 2 else forever())
    assert worker.run(0, "next", lambda: settled + 5, forever).steps == min(SMALL.window, 4)
    assert scenario.seen(tick) == START + 2
    assert scenario.shown(START + 2) == exact[START + 2] == {NAMES[1]: True, NAMES[2]: True}


# Lifetimes of rows (rule 9)


def test_crossings_do_not_expire_while_an_answer_needs_them(scenario: Scenario) -> None:
    scenario.start()
    scenario.join_history(seed=5, steps=12)
    scenario.run_hourly(range(START, START + 12))

    def last_needed(item: dict[str, Any]) -> int:
        p = scenario.types[scenario.type_of[item["set_key"]["B"]]].parameters
        newest = int(item["crossings"]["L"][-1]["N"])
        if p.restart is not None:
            return newest + p.restart.epoch + p.restart.hold
        phase = phase_of(item["set_key"]["B"], p.window, p.phase)
        return first_step(instance_of(newest, phase, p.window) + 1, phase, p.window) - 1

    assert scenario.statuses()
    for item in scenario.statuses():
        assert item["ttl"] == {"N": str(end_of(last_needed(item), PERIOD) + SCHEDULE.outage_allowance)}
    (horizon,) = (item for item in scenario.tables.items("Statuses") if len(item["set_key"]["B"]) == 1)
    assert "ttl" not in horizon


# Little work


@pytest.mark.usefixtures("small")
def test_parts_in_which_nothing_happens_are_neither_read_nor_put(
    new_scenario: Callable[..., Scenario], monkeypatch: pytest.MonkeyPatch
) -> None:
    scenario = new_scenario(types={"small": Type("small", PUBLISHED, None)})
    scenario.start()
    for n in range(60):
        scenario.join(set_key(n), [1], START)
    scenario.run(closing(START))
    parts = [name for name in scenario.tables.objects() if name.endswith(".part")]
    assert len(parts) > 8
    monkeypatch.setattr(deciding, "MOST_PART_BYTES", 10_000)
    scenario.join(set_key(7), [2], START + 1)
    scenario.tables.calls.clear()
    scenario.run(closing(START + 1))
    operations = [call.operation for call in scenario.tables.calls]
    assert (operations.count("GetObject"), operations.count("PutObject")) == (
        2,
        3,
    )  # a part, its record, the manifest


def test_a_set_with_many_clients_keeps_at_most_its_bound_of_members(new_scenario: Callable[..., Scenario]) -> None:
    laws = two_sided(Fraction(1), 2), two_sided(Fraction(1), 2)
    bounded = Parameters(6, 24, PERIOD, *laws, client_bits=12)
    scenario = new_scenario(types={"small": Type("small", bounded, None)})
    scenario.start()
    for step in range(START, START + 3):
        scenario.join(NAMES[0], range(500 * (step - START), 500 * (step - START) + 500), step)
    scenario.run_hourly(range(START, START + 3))
    ((_, state),) = scenario.states().items()
    assert len(state.members) == bounded.members_kept == 10
    assert {member.last for member in state.members} == {START + 2}


# Changes of slots


def slots_at(*entries: tuple[int, int]) -> Layouts:
    return Layouts(tuple(Layout(slots, step, 1) for slots, step in entries), late=7 * 24)


def run_all(scenario: Scenario, now: float) -> list[int]:
    """Evaluate every slot, and those that may continue then."""
    waiting, order = list(scenario.tables.layouts.slots), []
    while waiting:
        slot = waiting.pop(0)
        outcome = scenario.run(now, slot)
        order.append(slot)
        waiting += [each for each in outcome.following if each not in waiting]
    return order


@pytest.mark.parametrize("what", ["right", "rows", "objects"])
def test_rows_or_objects_named_by_slot_alone_would_be_noticed(
    scenario: Scenario, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Planted: the names leave out the layout, so slot 0 of the next layout takes what that of the first one has."""
    if what == "rows":
        monkeypatch.setattr(control, "_name", lambda place: f"slot#0#{place.slot}")
    if what == "objects":
        monkeypatch.setattr(control.Place, "folder", property(lambda place: f"{place.slot}/"))
    scenario.tables.layouts = slots_at((1, 0), (4, START + 2))
    scenario.start()
    scenario.join_history(seed=7, steps=5)

    def is_exact() -> bool:
        for step in range(START, START + 6):
            run_all(scenario, closing(step))
            if scenario.shown(step) != scenario.expected(step):
                return False
            scenario.sweep(closing(step))
        return True

    refused = False
    try:
        exact = is_exact()
    except ConfigurationError as error:
        exact, refused = False, "has lost slot 0, whose states are in the bucket" in str(error)
    assert (exact, refused) == (what == "right", what == "objects")


@pytest.mark.parametrize("before", [1, 2])
def test_a_slot_waits_for_all_slots_from_which_it_continues(scenario: Scenario, before: int) -> None:
    scenario.tables.layouts = slots_at((2, 0), (1, START + 1))
    for slot in range(2):
        scenario.start(slot)
        scenario.join(in_slot(slot, TWO_SLOTS, 1)[0], range(9), START)
    now = closing(START + 2)
    for slot in range(before):
        outcome = scenario.run(now, slot)
        assert (outcome.steps, outcome.following) == (1, range(1))
    row = scenario.tables.control.row(Place(START + 1, 0))
    assert row.evaluated_through is None
    outcome = scenario.run(now, 0)
    assert outcome.steps == (2 if before == 2 else 0)
    scenario.sweep(now)
    assert bool(scenario.states()) == (before == 2)


@pytest.mark.parametrize("lost", [0, 1, None])
def test_a_slot_does_not_begin_if_statuses_has_lost_what_the_slots_before_it_have_shown(
    scenario: Scenario, lost: int | None
) -> None:
    """Also not the slot of another number: it has no row of its own in Statuses."""
    scenario.tables.layouts = slots_at((2, 0), (1, START + 2), (4, START + 4))
    for slot in range(2):
        scenario.start(slot)
        scenario.join(in_slot(slot, TWO_SLOTS, 1)[0], range(9), START)
    for slot in range(2):
        scenario.run(closing(START + 1), slot)
    if lost is not None:
        key = {"set_key": {"B": bytes([lost])}}
        scenario.tables.client.delete_item(TableName=scenario.tables.names["Statuses"], Key=key)
        with pytest.raises(ConfigurationError, match=rf"^the table Statuses is older than the states of slot {lost}, "):
            scenario.run(closing(START + 2))
        assert scenario.tables.control.row(Place(START + 2, 0)).evaluated_through is None
        return
    scenario.run(closing(START + 3))
    scenario.tables.client.delete_item(TableName=scenario.tables.names["Statuses"], Key={"set_key": {"B": bytes([0])}})
    for slot in range(4):
        with pytest.raises(ConfigurationError, match=r"^the table Statuses is older than the states of slot 0, "):
            scenario.run(closing(START + 4), slot)


def test_a_new_slot_chooses_its_tick_after_it_has_asked_statuses_about_the_slots_before_it(
    scenario: Scenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    scenario.tables.layouts = slots_at((2, 0), (1, START + 1))
    for slot in range(2):
        scenario.start(slot)
        scenario.run(closing(START), slot)
    now, original = SCHEDULE.tick_of(START + 1) - SCHEDULE.publish_margin - 5.0, Statuses.has_moved

    def slow(*given: Any) -> bool:
        nonlocal now
        now += SCHEDULE.publish_margin / 2 + 5
        return original(*given)

    monkeypatch.setattr(Statuses, "has_moved", slow)
    scenario.worker().run(0, "holder", lambda: now, forever)
    horizon = scenario.horizon()
    assert horizon is not None
    assert horizon.through == START + 1
    assert horizon.visible_from > now + SCHEDULE.publish_margin


def test_slots_whose_predecessors_are_no_longer_listed_do_not_begin(scenario: Scenario) -> None:
    scenario.tables.layouts = slots_at((2, START))
    worker = scenario.worker()
    check = worker.check_control
    worker.check_control = lambda: check()._replace(removed=True)
    with pytest.raises(ConfigurationError, match=f"the slots that begin at step {START} continue those of an entry"):
        worker.run(0, "holder", lambda: closing(START + 7 * 24), forever)


# Log generations


def test_a_log_generation_decides_every_set_again_and_keeps_what_is_true(
    new_scenario: Callable[..., Scenario],
) -> None:
    scenario = new_scenario()
    scenario.start()
    scenario.join_history(seed=8, steps=16)
    begun = LogGeneration("log-2", START + 9)
    for step in range(START, START + 40):
        generation = begun if step >= begun.from_step else None
        if step == begun.from_step:
            for name, naive in scenario.naive.items():
                parameters = TYPES[name].parameters
                naive.begin_generation(Tapes(KEY, "deployment", name, parameters, generation=begun), step)
        assert scenario.worker(generation=generation).run(0, "w", lambda s=step: closing(s), forever).steps == 1  # type: ignore[misc]
        assert scenario.shown(step) == scenario.expected(step)
    late = scenario.worker(generation=LogGeneration("log-3", START + 60))
    with pytest.raises(ConfigurationError, match="was not started in every slot"):
        late.run(0, "w", lambda: closing(START + 61), forever)
