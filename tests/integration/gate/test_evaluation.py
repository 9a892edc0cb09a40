"""Evaluation on real tables: the same answers after any failure of a worker, and no work for idle sets."""

import copy
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

import pytest
from moto.backends import get_backend
from moto.dynamodb.models.dynamo_type import DynamoType

from kanon.errors import (
    ConfigurationError,
    LeaseLostError,
    ThrottledError,
    TooFarBehindError,
    UndecodableMembersError,
)
from kanon.gate import evaluation, reading
from kanon.gate.evaluation import SECONDS_TO_STOP, Evaluation, NoiseKeys, Outcome
from kanon.gate.fingerprints import retire
from kanon.gate.joining import Join, Joining
from kanon.gate.mechanism.above_threshold import SetState, is_above
from kanon.gate.mechanism.members import Member
from kanon.gate.mechanism.parameters import Parameters
from kanon.gate.mechanism.searches import Searches
from kanon.gate.mechanism.steps import end_of, first_step, instance_of, phase_of
from kanon.gate.mechanism.tape import Tapes
from kanon.gate.reading import Touched, read_sets
from kanon.gate.schedule import Schedule
from kanon.gate.storage.members import to_item
from kanon.gate.storage.statuses import Horizon
from kanon.gate.storage.step_log import Row, StepLog, key_of
from kanon.gate.types import Type
from kanon.keys import Secret
from kanon.local.engines import ACCOUNT, REGION
from kanon.noise.laws import two_sided
from kanon.noise.words import NoiseKey
from tests.integration.gate.tables import Running, Tables, fresh, leave_unprocessed, running, states_of, write
from tests.naive import Naive
from tests.unit.examples import CROSSING, KEY, ONE_SIDED, SIXTEEN_SLOTS, SMALL, TWO_SLOTS, in_slot, set_key

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

    def worker(self, log: Callable[..., StepLog] = StepLog, client: Any = None) -> Evaluation:
        tables = self.tables if client is None else replace(self.tables, client=client)
        return Evaluation(
            types=self.types,
            noise_keys=self.keys,
            check_control=lambda: None,
            deployment="deployment",
            schedule=self.schedule,
            log=log(tables.client, tables.names["StepLog"], tables.layouts),
            members=tables.members,
            statuses=tables.statuses,
            control=tables.control,
        )

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

    def states(self) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """The stored states of the sets."""
        members, statuses = (
            [item for item in self.tables.items(name) if len(item["set_key"]["B"]) > 1]
            for name in ("Members", "Statuses")
        )
        return members, statuses

    def mark(self, slot: int = 0) -> int | None:
        (item,) = (i for i in self.tables.items("Control") if i["name"]["S"] == f"slot#{slot}")
        return int(item["evaluated_through"]["N"]) if "evaluated_through" in item else None

    def horizon(self, slot: int = 0) -> Horizon | None:
        return self.tables.statuses.read((), [slot])[1].get(slot)

    def put_mark_back(self, step: int, slot: int = 0) -> None:
        """As if a worker had died before it moved the mark."""
        self.tables.other_client().update_item(
            TableName=self.tables.names["Control"],
            Key={"name": {"S": f"slot#{slot}"}},
            UpdateExpression="SET evaluated_through = :step",
            ExpressionAttributeValues={":step": {"N": str(step)}},
        )


# The same answers


def test_every_answer_of_every_step_equals_the_reference_algorithm(scenario: Scenario) -> None:
    scenario.start()
    scenario.join_history(seed=1, steps=20)
    for step in range(START, START + 20 + 3 * SMALL.window):  # and the silence after it
        assert scenario.run(closing(step)).steps == 1
        assert scenario.shown(step) == scenario.expected(step)


@dataclass(frozen=True)
class Hourly:
    """The stored states if every step is evaluated in its hour: after the history, and after three days."""

    after_history: Any
    after_three_days: Any


@pytest.fixture(scope="module")
def hourly(moto: Running) -> Hourly:
    scenario = Scenario(fresh(moto))
    scenario.start()
    scenario.join_history(seed=2, steps=15)
    scenario.run_hourly(range(START, START + 15))
    after_history = scenario.states()
    scenario.run_hourly(range(START + 15, START + 72))
    return Hourly(after_history, scenario.states())


def test_a_step_evaluated_twice_gives_the_same_answers(scenario: Scenario, hourly: Hourly) -> None:
    scenario.start()
    scenario.join_history(seed=2, steps=15)
    for step in range(START, START + 15):
        scenario.run(closing(step))
        scenario.put_mark_back(step - 1)
        scenario.tables.calls.clear()
        assert scenario.run(closing(step)).steps == 1
        puts = [item for call in scenario.tables.calls for item in call.puts]
        assert [item["set_key"]["B"] for item in puts] == [b"\0"]  # what is done is skipped whole; the stamp is tried
    assert scenario.states() == hourly.after_history


def test_after_three_days_without_evaluation_the_answers_are_exact_again(scenario: Scenario, hourly: Hourly) -> None:
    scenario.start()
    scenario.join_history(seed=2, steps=15)
    outcome = scenario.run(closing(START + 71))
    assert (outcome.steps, outcome.behind, scenario.mark()) == (72, 0, START + 71)
    assert scenario.states() == hourly.after_three_days


def test_the_order_of_the_sets_does_not_matter(
    scenario: Scenario, hourly: Hourly, monkeypatch: pytest.MonkeyPatch
) -> None:
    def backwards(*place: Any) -> Iterator[list[Touched]]:
        return iter([chunk[::-1] for chunk in list(read_sets(*place))[::-1]])

    scenario.start()
    scenario.join_history(seed=2, steps=15)
    monkeypatch.setattr(evaluation, "read_sets", backwards)
    scenario.run_hourly(range(START, START + 15))
    assert scenario.states() == hourly.after_history


def test_two_workers_on_the_same_steps_give_the_same_answers(scenario: Scenario) -> None:
    """The second worker does everything just before the n-th call of the first one, for every n."""
    steps, calls_of_the_first = 2, 10
    scenario.tables.layouts = SIXTEEN_SLOTS
    for n in range(calls_of_the_first):
        scenario.start(slot=n)
        for i, name in enumerate(in_slot(n, SIXTEEN_SLOTS, 4)):
            for step in range(START, START + steps):
                scenario.join(name, range(i, 2 * i + step - START + 3), step)
    for n in range(calls_of_the_first):
        second = scenario.worker(client=scenario.tables.other_client())
        first = scenario.tables.running.client()
        calls = iter(range(1000))

        def before_call(n: int = n, second: Evaluation = second, calls: Iterator[int] = calls, **_: Any) -> None:
            if next(calls) == n + 1:  # the lease itself is the first call
                later = closing(START + steps - 1) + SCHEDULE.lease + 1
                assert second.run(n, "second", lambda: later, forever).steps == steps

        first.meta.events.register("before-call.dynamodb", before_call)
        with pytest.raises(LeaseLostError):
            scenario.run(closing(START + steps - 1), slot=n, client=first)
        assert next(calls) > n + 1
        assert scenario.mark(n) == START + steps - 1
    for step in range(START, START + steps):
        assert scenario.shown(step) == scenario.expected(step)


# Leases


def test_a_worker_does_not_evaluate_a_slot_that_another_one_leased(scenario: Scenario) -> None:
    scenario.start()
    scenario.join_history(seed=3, steps=1)
    now = closing(START)
    scenario.tables.control.lease(0, "another", now - 10, now + 140)
    before = scenario.tables.items("Control"), scenario.states()
    assert scenario.run(now) == Outcome()
    assert (scenario.tables.items("Control"), scenario.states()) == before
    assert scenario.run(now + 141).steps == 1


def test_a_worker_that_finishes_releases_its_lease(scenario: Scenario) -> None:
    scenario.start()
    assert scenario.run(closing(START)).steps == 1
    assert scenario.run(closing(START + 1)).steps == 1


def test_a_worker_that_fails_releases_its_lease(scenario: Scenario) -> None:
    scenario.start()
    scenario.join(NAMES[0], range(9), START)
    leave_unprocessed(scenario.tables, "BatchGetItem", lambda n, size: size if n <= 6 else 0)
    with pytest.raises(ThrottledError):
        scenario.run(closing(START))
    assert scenario.mark() == START - 1
    assert scenario.run(closing(START)).steps == 1


def test_each_slot_has_its_own_lease(scenario: Scenario) -> None:
    scenario.tables.layouts = TWO_SLOTS
    scenario.start(0)
    scenario.start(1)
    scenario.tables.control.lease(0, "another", closing(START), closing(START) + 150)
    assert scenario.run(closing(START), slot=1).steps == 1


# Time


def test_a_step_is_not_read_before_it_is_closed(scenario: Scenario) -> None:
    scenario.start()
    end = end_of(START, PERIOD)
    assert scenario.run(end + SCHEDULE.grace - 1).steps == 0
    assert scenario.run(end + SCHEDULE.grace).steps == 1


def test_a_worker_short_of_time_leaves_the_remaining_steps_to_the_next_one(
    new_scenario: Callable[..., Scenario], monkeypatch: pytest.MonkeyPatch
) -> None:
    chunk = 10
    monkeypatch.setattr(reading, "SETS_A_CHUNK", chunk)
    sets = [set_key(n) for n in range(2 * chunk + 5)]
    worlds = []
    for chunks, times in ((99, []), (1, [0.0]), (2, [SECONDS_TO_STOP - 1])):
        scenario = new_scenario()
        scenario.start()
        for name in sets:
            scenario.join(name, range(5), START)
        left = iter([forever()] * (1 + chunks) + times)  # the time is read once before the first chunk
        outcome = scenario.run(closing(START), time_left=lambda left=left: next(left))  # type: ignore[misc]
        if times:
            done = chunk * chunks
            assert (outcome.steps, outcome.sets, outcome.behind) == (0, done, 1)
            assert scenario.mark() == START - 1
            assert scenario.horizon() is None  # half a step is never shown
            scenario.tables.calls.clear()
            rest = scenario.run(closing(START))
            assert (rest.steps, rest.sets, rest.behind) == (1, len(sets) - done, 0)
            read = [call for call in scenario.tables.calls if call.operation == "Query"]
            assert sum(call.items for call in read) == 5 * (len(sets) - done)
        worlds.append(scenario)
    assert worlds[0].states() == worlds[1].states() == worlds[2].states()


def test_a_worker_without_any_time_changes_nothing(scenario: Scenario) -> None:
    scenario.start()
    scenario.join(NAMES[0], range(9), START)
    outcome = scenario.run(closing(START + 4), time_left=lambda: 0.0)
    assert outcome == Outcome(behind=5)
    assert (scenario.mark(), scenario.states()) == (START - 1, ([], []))


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


def test_the_sets_of_a_type_that_is_not_configured_stop_their_step_until_it_is_retired_then_they_are_skipped(
    scenario: Scenario,
) -> None:
    scenario.start()
    scenario.join(NAMES[0], range(9), START)
    scenario.tables.log.put_all(Row(START, set_key("gone"), token, "new", 2**31) for token in range(9))
    for _ in range(2):
        with pytest.raises(ConfigurationError, match=r"joins of type 'new', .* with `kanon operate retire new`$"):
            scenario.run(closing(START))
    assert (scenario.mark(), scenario.horizon(), scenario.states()) == (START - 1, None, ([], []))
    retire(scenario.tables.control, "new")
    outcome = scenario.run(closing(START))
    assert (outcome.steps, outcome.sets, outcome.skipped) == (1, 1, 1)
    assert [item["set_key"]["B"] for item in scenario.states()[0]] == [NAMES[0]]


def test_members_that_cannot_be_read_stop_their_slot_and_no_other(scenario: Scenario) -> None:
    scenario.tables.layouts = TWO_SLOTS
    names = [*in_slot(0, TWO_SLOTS, 1), *in_slot(1, TWO_SLOTS, 1)]
    for slot, name in enumerate(names):
        scenario.start(slot)
        scenario.join(name, range(9), START)
    item = to_item(names[0], "small", SetState((), (), START - 1, None), 8, 2**31)
    scenario.tables.other_client().put_item(
        TableName=scenario.tables.names["Members"], Item={**item, "members": {"B": b"\x09"}}
    )
    for _ in range(2):
        with pytest.raises(UndecodableMembersError):
            scenario.run(closing(START), slot=0)
    assert (scenario.mark(0), scenario.horizon(0)) == (START - 1, None)
    assert scenario.tables.statuses.read(names[:1], ())[0] == {}
    assert scenario.run(closing(START), slot=1).sets == 1
    scenario.tables.other_client().delete_item(
        TableName=scenario.tables.names["Members"], Key={"set_key": {"B": names[0]}}
    )
    assert scenario.run(closing(START), slot=0).sets == 1


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


# Wake-ups and horizons


def test_a_wake_up_is_left_out_only_if_the_stored_members_name_it_already(scenario: Scenario) -> None:
    scenario.start()
    scenario.join_history(seed=4, steps=8)
    compared = 0
    for step in range(START, START + 20):
        scenario.run(closing(step))
        rows = {(item["step_slot"]["B"], item["set_token"]["B"]) for item in scenario.tables.items("StepLog")}
        for item in scenario.states()[0]:
            if "wake_up" in item and int(item["wake_up"]["N"]) > step:
                wake_up = Row(int(item["wake_up"]["N"]), item["set_key"]["B"], None, "small", 0)
                assert key_of(scenario.tables.log.item(wake_up)) in rows
                compared += 1
    assert compared


def test_wake_ups_come_first_then_statuses_then_members_then_the_horizon_then_the_mark(scenario: Scenario) -> None:
    scenario.start()
    for name in NAMES:
        scenario.join(name, range(9), START)
    scenario.tables.calls.clear()
    scenario.run(closing(START))
    written = [
        (call.table, len(call.asked.get("Key", {}).get("set_key", {"B": b""})["B"]))
        for call in scenario.tables.calls
        if call.operation not in ("Query", "BatchGetItem")
    ]
    order = [
        ("Control", 0),
        ("Statuses", 1),  # compares the stamp
        ("StepLog", 0),
        ("Statuses", 32),
        ("Members", 0),
        ("Statuses", 1),
        ("Members", 0),  # the stamp
        ("Control", 0),
    ]
    places = [place for n, place in enumerate(written) if n == 0 or written[n - 1] != place]
    assert places == order
    puts = [item for call in scenario.tables.calls for item in call.puts if call.table == "Members"]
    assert [len(item["set_key"]["B"]) for item in puts] == [32] * len(NAMES) + [1]


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


def test_steps_caught_up_are_shown_together(scenario: Scenario) -> None:
    scenario.start()
    scenario.run(closing(START))
    scenario.run(closing(START + 50))
    tick = end_of(START + 50, PERIOD) + SCHEDULE.publish_delay
    assert scenario.horizon() == Horizon(START + 50, tick, START, tick - 50 * PERIOD)


# Lifetimes of rows (rule 9)


def test_a_join_expires_one_outage_allowance_after_the_end_of_its_step(scenario: Scenario) -> None:
    pepper, client_key = Secret.derived("set-pepper", "a"), Secret.derived("client-key", "b")
    joining = Joining(scenario.types, pepper, client_key, scenario.tables.log, PERIOD, SCHEDULE.outage_allowance)
    for now in (START * PERIOD, end_of(START, PERIOD) - 0.001):
        row = joining.row(Join("small", b"set", "client", b"me"), now)
        assert row.expires == end_of(START, PERIOD) + SCHEDULE.outage_allowance
    joining.join(Join("small", b"set", "client", b"me"), START * PERIOD)
    (item,) = scenario.tables.items("StepLog")
    assert item["ttl"] == {"N": str(end_of(START, PERIOD) + SCHEDULE.outage_allowance)}


@pytest.mark.parametrize("late", [0, 40])
def test_rows_do_not_expire_while_an_answer_needs_them(scenario: Scenario, late: int) -> None:
    scenario.start()
    scenario.join_history(seed=5, steps=12)
    scenario.run(closing(START + 11 + late))
    allowance = SCHEDULE.outage_allowance

    def last_needed(item: dict[str, Any]) -> int:
        p = scenario.types[scenario.type_of[item["set_key"]["B"]]].parameters
        newest = int(item["crossings"]["L"][-1]["N"])
        if p.restart is not None:
            return newest + p.restart.epoch + 2 * p.restart.hold
        phase = phase_of(item["set_key"]["B"], p.window, p.phase)
        return first_step(instance_of(newest, phase, p.window) + 1, phase, p.window) - 1

    members, _ = scenario.states()
    states = states_of(scenario.tables.members, (item["set_key"]["B"] for item in members))
    assert members
    for item in members:
        state, p = states[item["set_key"]["B"]], scenario.types[item["type"]["S"]].parameters
        needed = [int(item["evaluated"]["N"])]
        needed += [max(member.last for member in state.members) + p.window] if state.members else []
        needed += [last_needed(item)] if state.crossings else []
        needed += [state.wake_up] if state.wake_up is not None else []
        assert item["ttl"] == {"N": str(end_of(max(needed), PERIOD) + allowance)}
    statuses = [item for item in scenario.tables.items("Statuses") if len(item["set_key"]["B"]) == 32]
    assert statuses
    for item in statuses:
        assert item["ttl"] == {"N": str(end_of(last_needed(item), PERIOD) + allowance)}
    for item in scenario.tables.items("StepLog"):
        step = int.from_bytes(item["step_slot"]["B"][:8], "big", signed=True)
        assert item["ttl"] == {"N": str(end_of(step, PERIOD) + allowance)}
    (horizon,) = (item for item in scenario.tables.items("Statuses") if len(item["set_key"]["B"]) == 1)
    assert "ttl" not in horizon


def test_expired_rows_that_are_not_yet_deleted_change_no_answer(
    new_scenario: Callable[..., Scenario],
) -> None:
    short = replace(SCHEDULE, outage_allowance=7 * PERIOD)
    swept, kept = new_scenario(schedule=short), new_scenario(schedule=short)
    random_ = random.Random(6)
    deleted = 0
    for scenario in (swept, kept):
        scenario.start()
    for step in range(START, START + 60):
        for n, name in enumerate(NAMES[:6]):
            # Long silences: a set returns after all its rows have expired.
            if random_.random() < (0.5 if (step + 5 * n) % 30 < 6 else 0.0):
                tokens = [random_.randrange(12) for _ in range(random_.choice((2, 4, 8)))]
                for scenario in (swept, kept):
                    scenario.join(name, tokens, step)
        deleted += swept.tables.expire(closing(step))
        swept.run(closing(step))
        kept.run(closing(step))
        assert swept.shown(step) == kept.shown(step) == kept.expected(step)
    assert deleted > 50
    assert len(swept.tables.items("Members")) < len(kept.tables.items("Members"))


# Idle sets take no work


def _put_idle_sets(tables: Tables, count: int) -> None:
    """Sets that nobody joins: their members, and of every hundredth a wake-up in some later step.

    One of each is written; the others are copied inside moto, where a write takes 0.3 ms.
    """
    state = SetState(tuple(Member(token, START - 2) for token in range(3)), (), START - 1, START + 1)
    write(tables.members, set_key("idle"), "small", state, 8, 2**31)
    tables.log.put(Row(START + 1, set_key("idle"), None, "small", 2**31))
    dynamodb = get_backend("dynamodb")[ACCOUNT][REGION]
    members, log = (dynamodb.tables[tables.names[name]].items for name in ("Members", "StepLog"))
    (example,) = (item for item in members.values() if "members" in item.attrs)
    ((_, rows),) = log.items()
    ((_, wake_up),) = rows.items()
    for n in range(count - 1):
        name = DynamoType({"B": n.to_bytes(32, "big")})
        members[name] = _copied(example, hash_key=name, attrs={**example.attrs, "set_key": name})
        if n % 100 == 0:
            rows[name] = _copied(wake_up, range_key=name, attrs={**wake_up.attrs, "set_token": name})


def _copied(item: Any, **changes: Any) -> Any:
    other = copy.copy(item)
    vars(other).update(changes)
    return other


def test_a_step_reads_and_writes_the_same_items_with_a_thousand_or_a_hundred_thousand_idle_sets(
    new_scenario: Callable[..., Scenario],
) -> None:
    counts = []
    for idle in (1_000, 100_000):
        scenario = new_scenario()
        scenario.start()
        _put_idle_sets(scenario.tables, idle)
        assert len(states_of(scenario.tables.members, (n.to_bytes(32, "big") for n in range(50)))) == 50
        assert sum(1 for _ in scenario.tables.touched(START + 1, keep=1)) > idle // 100
        for n, name in enumerate(NAMES):
            scenario.join(name, range(n), START)
        scenario.tables.calls.clear()
        assert scenario.run(closing(START)).sets == len(NAMES) - 1
        counts.append(scenario.tables.counted())
    assert counts[0] == counts[1]
    assert counts[0]["StepLog Query items"] == sum(range(len(NAMES)))
    assert counts[0]["Members BatchGetItem items"] == len(NAMES) - 1 + 1  # and the stamp
    assert counts[0]["Members BatchExecuteStatement items"] == len(NAMES) - 1
    assert counts[0]["Members PutItem items"] == 1


def test_a_set_with_many_clients_keeps_at_most_its_bound_of_members(new_scenario: Callable[..., Scenario]) -> None:
    laws = two_sided(Fraction(1), 2), two_sided(Fraction(1), 2)
    bounded = Parameters(6, 24, PERIOD, *laws, client_bits=12)
    scenario = new_scenario(types={"small": Type("small", bounded, None)})
    scenario.start()
    for step in range(START, START + 3):
        scenario.join(NAMES[0], range(500 * (step - START), 500 * (step - START) + 500), step)
    scenario.run_hourly(range(START, START + 3))
    ((_, state),) = states_of(scenario.tables.members, NAMES[:1]).items()
    assert len(state.members) == bounded.members_kept == 10
    assert {member.last for member in state.members} == {START + 2}
