"""Every AWS call of an evaluation fails in every possible way, and no row and no answer changes.

Tables and answers are compared with those of a run without failures. ``make faults`` runs all fault points;
the default is a fixed selection of them.
"""

import json
import os
import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import pytest

from tests.faults.failures import FAILURES, QUEUE_FAILURES, Failure
from tests.faults.fault_injector import Behaviour, Call, ProcessDied, Worker
from tests.faults.gate.simulated_stack import FIRST_STEP, PERIOD, SCHEDULE_OFFSET, VISIBILITY, Message, SimulatedStack

# Powertools warns about every handler without a metric, for example after a failure.
pytestmark = pytest.mark.filterwarnings("ignore:No application metrics to publish")

ALL = os.environ.get("FAULTS") == "all"
ONE_IN = 1 if ALL else 48
"""By default every 48th call is made to fail, a different selection for every way."""

HISTORY = 12
BEHIND = 3
LAST = FIRST_STEP + HISTORY + BEHIND - 1
MAY_DIFFER = {"lease_until", "lease_holder", "resume_step", "resume_after"}


def chosen(calls: list[str], failure: Failure, one_in: int = ONE_IN) -> list[int]:
    """The numbers of the calls that fail in this way."""
    possible = [n for n, operation in enumerate(calls, 1) if failure.applies_to(operation)]
    return possible[FAILURES.index(failure) % one_in :: one_in] or possible[:1] if failure in FAILURES else possible


@dataclass(frozen=True)
class Ending:
    """The results of a run: the tables without leases, and the answers at and around the next tick."""

    log: dict[Any, Any]
    members: dict[Any, Any]
    statuses: dict[Any, Any]
    control: dict[Any, Any]
    answers: tuple[Any, ...]


class Hour:
    """An hour in which a slot is three steps behind: many kinds of writes, several chunks a step."""

    def __init__(self, simulation: SimulatedStack) -> None:
        self.simulation = simulation
        chance = random.Random(9)
        for step in range(FIRST_STEP, LAST + 1):
            for place in simulation.sets:
                if chance.random() < 0.55:
                    clients = [chance.randrange(16) for _ in range(chance.randrange(1, 7))]
                    simulation.join(place, clients, step * PERIOD + 5)
            simulation.set_time((step + 1) * PERIOD + SCHEDULE_OFFSET)
            if step < FIRST_STEP + HISTORY:
                simulation.run_queue()
        self.beginning = simulation.save()
        self.before = simulation.answers()
        self.calls: list[str] = []
        self.undisturbed, (worker,) = self.run()
        self.calls = worker.calls

    def run(self, first: Behaviour = Call.send) -> tuple[Ending, list[Worker]]:
        """Run the hour once, with its first worker disturbed."""
        simulation = self.simulation
        simulation.restore(self.beginning)
        tick = (LAST + 1) * PERIOD + simulation.publish_delay
        workers = simulation.run_queue(first=first, until=tick - 1)
        answers = [simulation.answers(at) for at in (simulation.true_time(), tick - 1, tick, tick + PERIOD - 1)]
        return self.ending(tuple(answers)), workers

    def next_hour(self) -> Ending:
        """Run the next hour, without failures and joins."""
        simulation = self.simulation
        simulation.set_time((LAST + 2) * PERIOD + SCHEDULE_OFFSET)
        simulation.run_queue()
        return self.ending((simulation.answers((LAST + 2) * PERIOD + simulation.publish_delay),))

    def ending(self, answers: tuple[Any, ...]) -> Ending:
        log, members, statuses, control = (
            {
                key: {name: value for name, value in item.items() if name not in MAY_DIFFER}
                for key, item in self.simulation.stored(table).items()
            }
            for table in ("StepLog", "Members", "Statuses", "Control")
        )
        return Ending(log, members, statuses, control, answers)


@pytest.fixture(scope="module")
def hour() -> Iterator[Hour]:
    with SimulatedStack() as simulation:
        yield Hour(simulation)


def test_the_example_hour_makes_every_kind_of_call(hour):
    kinds = Counter(hour.calls)
    assert kinds["dynamodb.Query"] == BEHIND
    assert kinds["dynamodb.BatchGetItem"] >= 2 * BEHIND  # several chunks a step
    assert kinds["dynamodb.BatchWriteItem"] >= BEHIND  # wake-ups
    assert kinds["dynamodb.BatchExecuteStatement"] >= 2 * BEHIND
    assert kinds["dynamodb.PutItem"] == BEHIND  # stamps; only statements that are refused are repeated one by one
    assert kinds["secrets-manager.GetSecretValue"] == 1
    assert hour.calls[-1] == "dynamodb.UpdateItem"  # the last mark, which gives the lease back
    before, *later = hour.undisturbed.answers[1:]
    assert before == (LAST - BEHIND, hour.before[1])
    assert later[0][0] == later[1][0] == LAST
    assert len([s for s in later[0][1] if later[0][1][s] != before[1][s]]) >= 3


def assert_equal(found: Ending, expected: Ending) -> None:
    assert found.answers == expected.answers
    assert found.members == expected.members
    assert found.statuses == expected.statuses
    assert found.control == expected.control
    assert found.log.items() >= expected.log.items()


@pytest.mark.parametrize("failure", FAILURES, ids=str)
def test_a_failure_of_any_aws_call_changes_no_row_and_no_answer(hour, failure, record_property):
    numbers = chosen(hour.calls, failure)
    for number in numbers:
        random.seed(number)
        fails = failure.at(number, hour.calls[number - 1], hour.simulation.pass_time)
        ending, workers = hour.run(first=fails)
        assert fails.met, number
        try:
            assert_equal(ending, hour.undisturbed)
            if ending.log != hour.undisturbed.log:
                assert hour.next_hour().answers == undisturbed_next_hour(hour).answers
        except AssertionError as error:
            calls = [len(worker.calls) for worker in workers]
            raise AssertionError(f"call {number} ({hour.calls[number - 1]}), {failure}, {calls}: {error}") from error
    record_property("fault_points", len(numbers))
    assert numbers


def undisturbed_next_hour(hour: Hour) -> Ending:
    hour.run()
    return hour.next_hour()


@dataclass
class SlowUntil:
    """Every call before the ``number``-th takes ``seconds``; from that one on they meet ``fails``."""

    simulation: SimulatedStack
    seconds: float
    number: int | None = None
    fails: Behaviour = Call.send

    def __call__(self, call: Call):
        if self.number is not None and call.number >= self.number:
            return self.fails(call)
        response = call.send()
        self.simulation.pass_time(self.seconds)
        return response


LAST_CALLS = ("dynamodb.UpdateItem", "sqs.SendMessageBatch")
"""Those of a worker that stops inside a step: the lease given back with the resume point, the rest sent on."""

STOPS = {4.7: 0, 3.1: 1, 2.2: 2}
"""So slow is a worker, seconds a call, that stops inside the first, the second or the third step."""


@pytest.fixture(scope="module")
def slow_hours(hour: Hour) -> Callable[[float], list[Worker]]:
    """The workers of an hour with a slow first worker and no failure."""

    @cache
    def slow_hour(seconds: float) -> list[Worker]:
        ending, workers = hour.run(first=SlowUntil(hour.simulation, seconds))
        assert_equal(ending, hour.undisturbed)
        item = hour.simulation.stored("Control")["slot#0",]
        assert item["resume_step"] == {"N": str(LAST - BEHIND + 1 + STOPS[seconds])}
        return workers

    return slow_hour


@pytest.mark.parametrize("seconds", STOPS)
def test_a_slow_worker_stops_inside_a_step_and_the_next_one_resumes_after_its_last_set(hour, slow_hours, seconds):
    slow, next_one = slow_hours(seconds)
    assert not slow.dead
    assert tuple(slow.calls[-2:]) == LAST_CALLS
    assert slow.calls.count("dynamodb.Query") == STOPS[seconds] + 1
    together = Counter(slow.calls + next_one.calls)
    assert together["dynamodb.BatchExecuteStatement"] == hour.calls.count("dynamodb.BatchExecuteStatement")


@pytest.mark.parametrize("operation", LAST_CALLS)
@pytest.mark.parametrize("seconds", STOPS)
def test_a_failure_of_the_last_calls_of_a_worker_out_of_time_changes_nothing(
    hour, slow_hours, seconds, operation, record_property
):
    number = len(slow_hours(seconds)[0].calls) - 1 + LAST_CALLS.index(operation)
    failures = [failure for failure in (*FAILURES, *QUEUE_FAILURES) if failure.applies_to(operation)]
    if not ALL:
        failures = failures[2 * STOPS[seconds] + LAST_CALLS.index(operation) :: ONE_IN // 2]
    for failure in failures:
        random.seed(number)
        fails = failure.at(number, operation, hour.simulation.pass_time)
        ending, workers = hour.run(first=SlowUntil(hour.simulation, seconds, number, fails))
        assert fails.met, failure
        try:
            assert_equal(ending, hour.undisturbed)
        except AssertionError as error:
            told = [len(worker.calls) for worker in workers]
            raise AssertionError(f"call {number} ({operation}), {failure}, {told}: {error}") from error
    record_property("fault_points", len(failures))
    assert failures


class Rival:
    """Before the n-th call of a worker its process stops for longer than the lease; another worker starts.

    The other one works to its end, or dies at its own ``dies_at``-th call. Then the first worker continues, and its
    conditions fail.
    """

    def __init__(self, simulation: SimulatedStack, number: int, dies_at: int | None) -> None:
        self.simulation, self.number, self.dies_at = simulation, number, dies_at
        self.other: Worker | None = None

    def __call__(self, call: Call):
        if call.number == self.number and self.other is None:
            zombie, simulation = call.worker, self.simulation
            self.other = Worker(self.behaviour)
            simulation.set_time(simulation.true_time() + 151.0)
            environment = simulation.cold_start()
            message = Message('{"slot": 0, "hop": 0}', simulation.true_time() + VISIBILITY, receives=1)
            simulation.queue.append(message)
            with suppress(ProcessDied):
                if simulation.evaluate(environment, message.body, self.other):
                    simulation.queue.remove(message)
            zombie.deadline = simulation.true_time() + 60.0  # Lambda would have ended it; the test lets it continue
            simulation.faults.worker = zombie
        return call.send()

    def behaviour(self, call: Call):
        if call.number == self.dies_at:
            call.worker.dead = True
            raise ProcessDied
        return call.send()


@pytest.mark.parametrize("dies_at", [None, 6, 14, 23, 31, 40])
def test_a_worker_that_resumes_after_another_took_its_slot_changes_nothing(hour, dies_at, record_property):
    numbers = range(1 + (dies_at or 0) % ONE_IN, len(hour.calls) + 1, ONE_IN)
    for number in numbers:
        random.seed(number)
        rival = Rival(hour.simulation, number, dies_at)
        ending, _ = hour.run(first=rival)
        assert rival.other is not None, number
        try:
            assert_equal(ending, hour.undisturbed)
        except AssertionError as error:
            raise AssertionError(f"awake again before call {number} ({hour.calls[number - 1]}): {error}") from error
    record_property("fault_points", len(numbers))


@pytest.fixture
def changed(hour: Hour) -> Iterator[None]:
    """A further type and a later noise key, as an operator may add them; taken back afterwards."""
    simulation = hour.simulation
    function = simulation.stack.functions["evaluate"]
    secrets = simulation.stack.session.client("secretsmanager")
    arn = function.environment["KANON_NOISE_KEY_SECRET"]
    keys = secrets.get_secret_value(SecretId=arn)["SecretString"]
    more = {
        "KANON_TYPES": json.dumps({**simulation.types, "more": {**simulation.types["two"], "k": 30}}),
        "KANON_NOISE_KEYS": json.dumps([{"id": "1", "from_step": 0}, {"id": "2", "from_step": LAST + 13}]),
    }
    secrets.put_secret_value(SecretId=arn, SecretString=json.dumps({**json.loads(keys), "2": "x" * 64}))
    simulation.stack.functions["evaluate"] = replace(function, environment={**function.environment, **more})
    simulation.changed_only_after_a_crash = function
    yield
    simulation.stack.functions["evaluate"] = function
    secrets.put_secret_value(SecretId=arn, SecretString=keys)


@pytest.mark.parametrize("number", [9, 16, 30, 44])
def test_a_type_and_a_noise_key_added_between_a_crash_and_its_retry_change_no_answer(hour, changed, number):
    simulation = hour.simulation
    after = simulation.stack.functions["evaluate"]
    simulation.stack.functions["evaluate"] = simulation.changed_only_after_a_crash

    def crash(call: Call):
        if call.number == number:
            simulation.stack.functions["evaluate"] = after
            call.worker.dead = True
            raise ProcessDied
        return call.send()

    random.seed(number)
    ending, workers = hour.run(first=crash)
    assert workers[0].dead
    assert ending.answers == hour.undisturbed.answers
    assert (ending.members, ending.statuses) == (hour.undisturbed.members, hour.undisturbed.statuses)
    assert ending.log.items() >= hour.undisturbed.log.items()
    recorded = next(item for item in ending.control.values() if item["name"] == {"S": "function#evaluate"})
    assert "type more" in recorded
    assert "noise-key 2" in recorded
