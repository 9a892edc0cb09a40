"""Every AWS call of an evaluation fails in every possible way, and no state, no row and no answer changes.

States, rows and answers are compared with those of a run without failures; after a sweep, every object is one to which
a row leads. FAULTS=every runs all fault points, ``make faults`` an eighth, the default a few of them.
"""

import json
import os
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import pytest

from kanon.gate.storage.aws.true_objects import step_of
from kanon.gate.true_sets import PREFIX
from tests.faults.failures import FAILURES, OBJECT_FAILURES, QUEUE_FAILURES, TRANSACTION_FAILURES, Failure
from tests.faults.fault_injector import Behaviour, Call, ProcessDied, Worker
from tests.faults.gate.simulated_stack import FIRST_STEP, PERIOD, SCHEDULE_OFFSET, VISIBILITY, Message, SimulatedStack

ONE_IN = {"every": 1, "all": 8}.get(os.environ.get("FAULTS", ""), 96)
"""Every so-many-th call is made to fail, a different selection for every way."""

HISTORY = 12
BEHIND = 3
LAST = FIRST_STEP + HISTORY + BEHIND - 1
COMPARED = {"evaluated_through", "horizon", "begun"}
"""What is compared of a slot's row: names of objects have the number of the run."""
EVERY_FAILURE = (*FAILURES, *OBJECT_FAILURES, *TRANSACTION_FAILURES)
KINDS = (
    "secrets-manager.GetSecretValue", "dynamodb.UpdateItem", "dynamodb.Query", "dynamodb.TransactWriteItems",
    "s3.GetObject", "s3.PutObject",
)  # fmt: skip


def possible(calls: Sequence[str], failure: Failure) -> list[int]:
    """The numbers of the calls that can fail in this way."""
    return [
        number
        for number, operation in enumerate(calls, 1)
        if failure.applies_to(operation) and (failure not in OBJECT_FAILURES or operation.startswith("s3."))
    ]


def chosen(calls: Sequence[str], failure: Failure, one_in: int = ONE_IN) -> list[int]:
    """The numbers of the calls that fail in this way."""
    numbers = possible(calls, failure)
    return numbers[EVERY_FAILURE.index(failure) % one_in :: one_in] or numbers[:1]


@dataclass(frozen=True)
class Ending:
    """The results of a run: the stored, without leases and names, and the answers at and around the next tick."""

    log: dict[Any, Any]
    states: dict[Any, Any]
    statuses: dict[Any, Any]
    control: dict[Any, Any]
    answers: tuple[Any, ...]


def ending(simulation: SimulatedStack, answers: tuple[Any, ...] = ()) -> Ending:
    """What is stored now. No object is left to which no row leads."""
    assert simulation.unreferenced() == set()
    control = {
        key: {name: value for name, value in item.items() if name in COMPARED}
        | {"kept": [step_of(name["S"]) for name in item.get("kept", {"L": []})["L"]], "progress": "draft" in item}
        if key[0].startswith("slot#")
        else item
        for key, item in simulation.stored("Control").items()
    }
    log, statuses = simulation.stored("StepLog"), simulation.stored("Statuses")
    return Ending(log, simulation.columns(), by_digest(statuses), by_digest(control), answers)


def by_digest(stored: Any) -> Any:
    """Items in which each object of true sets is named by its digest alone: its content is the same in every run."""
    if isinstance(stored, dict):
        return {key: by_digest(value) for key, value in stored.items()}
    if isinstance(stored, list):
        return [by_digest(value) for value in stored]
    return stored.rpartition("-")[2] if isinstance(stored, str) and stored.startswith(PREFIX) else stored


class Hour:
    """An hour in which a slot is three steps behind: all kinds of writes, several parts and several ranges a step."""

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
        return ending(simulation, tuple(answers)), workers


@pytest.fixture(scope="module")
def hour() -> Iterator[Hour]:
    with SimulatedStack() as simulation:
        yield Hour(simulation)


def test_the_example_hour_makes_every_kind_of_call(hour):
    kinds = Counter(hour.calls)
    assert {*KINDS} <= {*kinds}
    assert kinds["dynamodb.Query"] == BEHIND
    assert kinds["s3.GetObject"] >= 3 * BEHIND  # several parts a step
    assert kinds["s3.PutObject"] >= 6 * BEHIND  # and the lists of them
    assert kinds["dynamodb.UpdateItem"] >= 2 * BEHIND  # several ranges a step are recorded as decided
    assert kinds["dynamodb.TransactWriteItems"] >= 2 * BEHIND  # crossings and commits
    assert hour.calls[-1] == "dynamodb.TransactWriteItems"  # the last commit, which gives the lease back
    before, *later = hour.undisturbed.answers[1:]
    assert before == (LAST - BEHIND, hour.before[1])
    assert later[0][0] == later[1][0] == LAST
    assert len([s for s in later[0][1] if later[0][1][s] != before[1][s]]) >= 3


def assert_equal(found: Ending, expected: Ending) -> None:
    assert found.answers == expected.answers
    assert found.statuses == expected.statuses
    assert found.control == expected.control
    assert found.states == expected.states
    assert found.log == expected.log


def assert_unchanged(hour: Hour, number: int, disturbed: Any, what: object) -> None:
    """An hour whose first worker is disturbed at a call ends as one without that."""
    random.seed(number)
    found, workers = hour.run(first=disturbed)
    calls = workers[0].calls
    assert disturbed.met, (number, what)
    try:
        assert_equal(found, hour.undisturbed)
    except AssertionError as error:
        each = [len(worker.calls) for worker in workers]
        raise AssertionError(f"{what} at call {number} ({calls[number - 1]}), {each}: {error}") from error


@pytest.mark.parametrize("failure", [each for each in EVERY_FAILURE if possible(KINDS, each)], ids=str)
def test_a_failure_of_any_aws_call_changes_no_state_and_no_answer(hour, failure, record_property):
    numbers = chosen(hour.calls, failure)
    for number in numbers:
        fails = failure.at(number, hour.calls[number - 1], hour.simulation.pass_time)
        assert_unchanged(hour, number, fails, failure)
    record_property("fault_points", len(numbers))
    assert numbers


@dataclass
class SlowUntil:
    """Every call before the ``number``-th takes ``seconds``; from that one on they meet ``fails``."""

    simulation: SimulatedStack
    seconds: float
    number: int | None = None
    fails: Any = Call.send

    @property
    def met(self) -> int:
        return int(self.fails.met)

    def __call__(self, call: Call):
        if self.number is not None and call.number >= self.number:
            return self.fails(call)
        response = call.send()
        self.simulation.pass_time(self.seconds)
        return response


LAST_CALLS = ("dynamodb.UpdateItem", "sqs.SendMessageBatch")
"""Those of a worker that stops inside a step: the lease given back, the rest sent on."""

STOPS = {4.7: 0, 2.1: 1, 1.4: 2}
"""So slow is a worker, seconds a call, that stops inside the first, the second or the third step."""


@pytest.fixture(scope="module")
def slow_hours(hour: Hour) -> Callable[[float], list[Worker]]:
    """The workers of an hour with a slow first worker and no failure."""

    @cache
    def slow_hour(seconds: float) -> list[Worker]:
        found, workers = hour.run(first=SlowUntil(hour.simulation, seconds))
        assert_equal(found, hour.undisturbed)
        return workers

    return slow_hour


@pytest.mark.parametrize("seconds", STOPS)
def test_a_slow_worker_stops_inside_a_step_and_the_next_one_resumes_after_its_last_range(hour, slow_hours, seconds):
    slow, next_one = slow_hours(seconds)
    assert not slow.dead
    assert tuple(slow.calls[-2:]) == LAST_CALLS
    assert slow.calls.count("dynamodb.Query") == STOPS[seconds] + 1
    together = Counter(slow.calls + next_one.calls)
    assert together["dynamodb.Query"] == BEHIND + 1  # the joins of the step at which it stops
    for operation in ("s3.PutObject", "dynamodb.TransactWriteItems"):  # no range is decided twice
        assert together[operation] == hour.calls.count(operation)


@pytest.mark.parametrize("operation", LAST_CALLS)
@pytest.mark.parametrize("seconds", STOPS)
def test_a_failure_of_the_last_calls_of_a_worker_out_of_time_changes_nothing(
    hour, slow_hours, seconds, operation, record_property
):
    number = len(slow_hours(seconds)[0].calls) - 1 + LAST_CALLS.index(operation)
    failures = [failure for failure in (*FAILURES, *QUEUE_FAILURES) if failure.applies_to(operation)]
    if ONE_IN > 1:
        failures = failures[2 * STOPS[seconds] + LAST_CALLS.index(operation) :: ONE_IN // 2]
    for failure in failures:
        fails = failure.at(number, operation, hour.simulation.pass_time)
        assert_unchanged(hour, number, SlowUntil(hour.simulation, seconds, number, fails), failure)
    record_property("fault_points", len(failures))
    assert failures


class Meanwhile:
    """Before the n-th call of a worker its process stops, and something else happens."""

    def __init__(self, simulation: SimulatedStack, number: int) -> None:
        self.simulation, self.number = simulation, number
        self.met = False

    def __call__(self, call: Call):
        if call.number == self.number and not self.met:
            self.met = True
            self.happens(call.worker)
            self.simulation.faults.worker = call.worker
        return call.send()

    def happens(self, zombie: Worker) -> None:
        raise NotImplementedError


class Swept(Meanwhile):
    """The sweeper runs."""

    def happens(self, zombie: Worker) -> None:
        del zombie
        assert self.simulation.sweep(Worker())


class Rival(Meanwhile):
    """It stops for longer than the lease, and another worker starts.

    The other one works to its end, or dies at its own ``dies_at``-th call; then the sweeper runs. Then the first worker
    continues, and its conditions fail.
    """

    def __init__(self, simulation: SimulatedStack, number: int, dies_at: int | None) -> None:
        super().__init__(simulation, number)
        self.dies_at = dies_at

    def happens(self, zombie: Worker) -> None:
        simulation = self.simulation
        simulation.set_time(simulation.true_time() + 151.0)
        environment = simulation.cold_start()
        message = Message('{"slot": 0, "hop": 0}', simulation.true_time() + VISIBILITY, receives=1)
        simulation.queue.append(message)
        with suppress(ProcessDied):
            if simulation.evaluate(environment, message.body, Worker(self.behaviour)):
                simulation.queue.remove(message)
        assert simulation.sweep(Worker())
        zombie.deadline = simulation.true_time() + 60.0  # Lambda would have ended it; the test lets it continue

    def behaviour(self, call: Call):
        if call.number == self.dies_at:
            call.die()
        return call.send()


def test_a_sweep_before_any_call_changes_nothing(hour, record_property):
    numbers = range(5, len(hour.calls) + 1, max(1, ONE_IN // 4))
    for number in numbers:
        assert_unchanged(hour, number, Swept(hour.simulation, number), "swept")
    record_property("fault_points", len(numbers))


@pytest.mark.parametrize("dies_at", [None, 6, 14, 23, 31, 40])
def test_a_worker_that_resumes_after_another_took_its_slot_changes_nothing(hour, dies_at, record_property):
    one_in = min(ONE_IN, 48)
    numbers = range(1 + (dies_at or 0) % one_in, len(hour.calls) + 1, one_in)
    for number in numbers:
        assert_unchanged(hour, number, Rival(hour.simulation, number, dies_at), "awake again")
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
            call.die()
        return call.send()

    random.seed(number)
    found, workers = hour.run(first=crash)
    assert workers[0].dead
    assert found.answers == hour.undisturbed.answers
    assert (found.states, found.statuses) == (hour.undisturbed.states, hour.undisturbed.statuses)
    assert found.log == hour.undisturbed.log
    recorded = found.control["function#evaluate",]
    assert "type more" in recorded
    assert "noise-key 2" in recorded
