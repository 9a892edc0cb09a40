"""The fault tests must detect mistakes: the service with one planted mistake must show a difference.

Each mistake is a wrong order of writes, a missing condition or a forgotten check (docs/proofs/segments.md). Each is
planted beside its control: the right behaviour, planted through the same helper. With the same fault, the control shows
no difference. Without a fault the mistake shows no difference. So the difference comes from the mistake, and not from
an error in the code that plants it.
"""

import dataclasses
import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest.mock import patch

import pytest
from botocore.exceptions import BotoCoreError, ClientError

from kanon import aws
from kanon.dynamo.batches import chunks
from kanon.dynamo.transactions import all_or_none
from kanon.errors import UndecodableMembersError
from kanon.gate.storage.aws.control import Control, Place
from kanon.gate.storage.aws.parts import PartObjects
from kanon.gate.storage.aws.statuses import Statuses
from kanon.gate.storage.aws.true_objects import run_of, step_of
from tests.faults.failures import FAILURES, QUEUE_FAILURES
from tests.faults.fault_injector import Call, Worker
from tests.faults.gate.simulated_stack import SimulatedStack
from tests.faults.gate.test_crash_at_every_call import (
    LAST_CALLS,
    STOPS,
    Ending,
    Hour,
    Rival,
    SlowUntil,
    Swept,
    assert_equal,
)

Function = Callable[..., Any]
PLACE = Place(0, 0)
IF_CURRENT = "run = :run"
IN_ANY_RUN = "(run = :run OR run <> :run)"
COMMITS, RECORDS = "evaluated_through = :evaluated_through", "draft = :draft"


class Mistake(NamedTuple):
    """A function of the service, its right and its wrong form, and the fault that distinguishes them."""

    owner: Any
    name: str
    right: Function
    wrong: Function
    fault: str
    operation: str


# Each helper makes the right and the wrong form


def commit_in_order(*order: str) -> Function:
    """A commit in several transactions: each writes these, and the first one also the mark."""
    real = Control.commit

    def commit(self, place, run, before, commit, shows, *, leaving) -> None:
        now = before
        for number, names in enumerate(order, 1):
            last = number == len(order)
            part = commit
            if "manifest" not in names and not last:
                part = part._replace(manifest=before.manifest, kept=before.kept)
            if "horizon" not in names and not last:
                part = part._replace(horizon=before.horizon)
            real(self, place, run, now, part, shows if "horizon" in names else [], leaving=leaving and last)
            now = dataclasses.replace(now, evaluated_through=part.evaluated_through, manifest=part.manifest)

    return commit


def with_condition(real: Function, of: str, clauses: dict[str, str]) -> Function:
    """A write of Control; in the condition of an update with ``of`` these clauses are replaced."""

    def write(self, name, update, condition, values, **more):
        if of in update:
            for clause, other in clauses.items():
                condition = condition.replace(clause, other)
        return real(self, name, update, condition, values, **more)

    return write


def record_decided(*, as_written: bool) -> Function:
    """Records parts as decided; ``as_written``: their crossings count as written."""
    real = Control.record_decided

    def record(self, place, run, step, progress) -> None:
        real(self, place, run, step, dataclasses.replace(progress, written=1000) if as_written else progress)

    return record


def write_crossings(*, after_place: bool) -> Function:
    """Writes crossings; ``after_place``: in a transaction after that which stores the place among them."""
    real = Statuses.write

    def write(self, fence, statuses) -> bool:
        return not (after_place and all_or_none(self._client, [fence])) and real(self, fence, statuses)

    return write


def lease_longer(seconds: float) -> Function:
    """Takes a lease that ends ``seconds`` later."""
    real = Control.lease
    return lambda self, slot, holder, now, until: real(self, slot, holder, now, until + seconds)


def sweep_objects(*, of_earlier_runs: bool) -> Function:
    """Deletes objects that nothing names; ``of_earlier_runs``: only those."""

    def sweep(self, named, run) -> None:
        for keys in chunks((key for key in self.names() if key not in named), 1000):
            wanted = [{"Key": key} for key in keys if not of_earlier_runs or run_of(key) < run]
            if wanted:
                self._client.delete_objects(Bucket=self._bucket, Delete={"Objects": wanted})

    return sweep


def name_object(*, with_run: bool) -> Function:
    """Names an object; ``with_run``: the name has the number of its run."""
    return lambda self, step, run: f"{self._folder}{step}-{run if with_run else 0}-{next(self._numbers)}"


def release_ignoring(*errors: type[Exception]) -> Function:
    """Returns a lease and ignores these errors."""
    real = Control.release

    def release(self, *arguments) -> None:
        with suppress(*errors):
            real(self, *arguments)

    return release


def queue_client(*, told: bool) -> Function:
    """A client of the queue that is ``told`` which messages were rejected."""
    real = aws.sqs

    def sqs():
        queue = real()
        return SimpleNamespace(send_message_batch=lambda **asked: {**queue.send_message_batch(**asked), **ignored})

    ignored = {} if told else {"Failed": []}
    return sqs


COMMIT = commit_in_order("manifest horizon")

MISTAKES = {
    "the mark moves before the manifest": Mistake(
        Control, "commit", COMMIT, commit_in_order("horizon", "manifest"), "dies-after", "TransactWriteItems"
    ),
    "the mark moves before the horizon": Mistake(
        Control, "commit", COMMIT, commit_in_order("manifest", "horizon"), "dies-after", "TransactWriteItems"
    ),
    "what is decided counts as written": Mistake(
        Control,
        "record_decided",
        record_decided(as_written=False),
        record_decided(as_written=True),
        "dies-after",
        "UpdateItem",
    ),
    "the place is stored before the crossing": Mistake(
        Statuses,
        "write",
        write_crossings(after_place=False),
        write_crossings(after_place=True),
        "dies-after",
        "TransactWriteItems",
    ),
    "a late worker commits after a sweep": Mistake(
        Control,
        "_part",
        with_condition(Control._part, COMMITS, {}),
        with_condition(Control._part, COMMITS, {IF_CURRENT: IN_ANY_RUN}),
        "rival that dies",
        "TransactWriteItems",
    ),
    "a late worker commits over another manifest": Mistake(
        Control,
        "_part",
        with_condition(Control._part, COMMITS, {}),
        with_condition(
            Control._part, COMMITS, {IF_CURRENT: IN_ANY_RUN, "manifest = :read": "(manifest = :read OR run > :run)"}
        ),
        "recovery",
        "TransactWriteItems",
    ),
    "a late worker records parts as decided": Mistake(
        Control,
        "_update",
        with_condition(Control._update, RECORDS, {}),
        with_condition(Control._update, RECORDS, {IF_CURRENT: IN_ANY_RUN}),
        "rival that dies",
        "UpdateItem",
    ),
    "a part is swept before it is recorded": Mistake(
        PartObjects,
        "sweep",
        sweep_objects(of_earlier_runs=True),
        sweep_objects(of_earlier_runs=False),
        "sweep",
        "UpdateItem",
    ),
    "names of objects have no run": Mistake(
        PartObjects, "_name", name_object(with_run=True), name_object(with_run=False), "sweep", "UpdateItem"
    ),
    "a lease never ends": Mistake(Control, "lease", lease_longer(0), lease_longer(10**6), "dies-after", "Query"),
    "a worker may not take its own lease again": Mistake(
        Control,
        "_update",
        with_condition(Control._update, "lease_until", {}),
        with_condition(Control._update, "lease_until", {"lease_holder = :holder": "lease_holder = :one"}),
        "unanswered-once",
        "UpdateItem",
    ),
}

SLOW = max(STOPS)
"""Seconds a call takes, so that a worker stops inside its first step."""

AT_THE_LIMIT = {
    "a lease that was not given back goes unnoticed": Mistake(
        Control,
        "release",
        release_ignoring(),
        release_ignoring(ClientError, BotoCoreError),
        "refused",
        "dynamodb.UpdateItem",
    ),
    "a message that the queue did not take goes unnoticed": Mistake(
        aws, "sqs", queue_client(told=True), queue_client(told=False), "none-taken", "sqs.SendMessageBatch"
    ),
}


class Leased(Rival):
    """The other worker dies when it has taken the lease and checked what is recorded."""

    def behaviour(self, call: Call):
        if call.operation == "dynamodb.Query":
            call.die()
        return call.send()


class Recovered(Rival):
    """An operator goes back to the manifest before; another worker evaluates that step again, and dies in the next."""

    def __init__(self, simulation: SimulatedStack, number: int) -> None:
        super().__init__(simulation, number, None)
        self.mark = 0

    def happens(self, zombie: Worker) -> None:
        simulation, control = self.simulation, self.simulation.control
        simulation.set_time(simulation.true_time() + 151.0)
        row = control.lease(PLACE, "operator", simulation.true_time(), simulation.true_time() + 1)
        assert row is not None
        self.mark = row.evaluated_through
        control.restate(PLACE, row.run, step_of(row.kept[-2]), row.kept[:-1])
        control.release(PLACE, row.run)
        super().happens(zombie)

    def behaviour(self, call: Call):
        if call.operation == "dynamodb.TransactWriteItems":
            own = call.body["TransactItems"][0]["Update"]
            step = own["ExpressionAttributeValues"].get(":evaluated_through")
            if COMMITS in own["UpdateExpression"] and int(step["N"]) > self.mark:
                call.die()
        return call.send()


# Whether they show a difference


@pytest.fixture(scope="module")
def hour() -> Iterator[Hour]:
    with SimulatedStack() as simulation:
        yield Hour(simulation)


def differs(hour: Hour, behaviour: Any) -> bool:
    """Whether an hour whose first worker meets this behaviour ends differently from an undisturbed one."""
    try:
        found, _ = hour.run(first=behaviour)
        assert_equal(found, hour.undisturbed)
    except (AssertionError, UndecodableMembersError):
        return True
    return False


def failing(hour: Hour, name: str, number: int, calls: list[str] | None = None) -> Any:
    """The behaviour that fails at the ``number``-th call."""
    random.seed(number)
    match name:
        case "rival that dies":
            return Leased(hour.simulation, number, None)
        case "recovery":
            return Recovered(hour.simulation, number)
        case "sweep":
            return Swept(hour.simulation, number)
    (failure,) = (failure for failure in (*FAILURES, *QUEUE_FAILURES) if failure.name == name)
    return failure.at(number, (calls or hour.calls)[number - 1], hour.simulation.pass_time)


def calls_of(calls: list[str], operation: str) -> list[int]:
    """The numbers of the calls of this kind."""
    return [number for number, kind in enumerate(calls, 1) if kind == f"dynamodb.{operation}"]


@pytest.fixture(scope="module")
def without_a_fault(hour: Hour) -> Callable[[str], tuple[Ending, list[Worker]]]:
    """An hour with a planted mistake and no fault."""

    @cache
    def run(mistake: str) -> tuple[Ending, list[Worker]]:
        planted = (MISTAKES | AT_THE_LIMIT)[mistake]
        with patch.object(planted.owner, planted.name, planted.wrong):
            return hour.run()

    return run


@pytest.fixture(scope="module")
def shows_at(hour: Hour, without_a_fault: Callable[[str], tuple[Ending, list[Worker]]]) -> Callable[[str], int | None]:
    """The call of its kind whose failure shows a planted mistake; None if there is none."""

    @cache
    def place_of_call(mistake: str) -> int | None:
        planted = MISTAKES[mistake]
        _, (worker,) = without_a_fault(mistake)  # a wrong order gives the calls other numbers
        with patch.object(planted.owner, planted.name, planted.wrong):
            numbers = list(enumerate(calls_of(worker.calls, planted.operation)))
            if planted.fault == "dies-after":
                numbers.reverse()  # late deaths show a difference more often: no later step repairs the missing rows
            return next(
                (place for place, n in numbers if differs(hour, failing(hour, planted.fault, n, worker.calls))), None
            )

    return place_of_call


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_planted_mistake_is_found(shows_at, mistake):
    assert shows_at(mistake) is not None


@pytest.mark.parametrize("mistake", MISTAKES)
def test_planting_the_right_behaviour_shows_no_difference(hour, shows_at, mistake):
    planted = MISTAKES[mistake]
    place = shows_at(mistake)
    assert place is not None
    numbers = calls_of(hour.calls, planted.operation)  # some wrong orders need more calls
    number = numbers[min(place, len(numbers) - 1)]
    with patch.object(planted.owner, planted.name, planted.right):
        assert not differs(hour, failing(hour, planted.fault, number))


@pytest.mark.parametrize("mistake", MISTAKES | AT_THE_LIMIT)
def test_a_planted_mistake_changes_nothing_without_a_fault(hour, without_a_fault, mistake):
    found, workers = without_a_fault(mistake)
    assert len(workers) == 1  # no invocation failed
    assert_equal(found, hour.undisturbed)


@pytest.mark.parametrize("mistake", AT_THE_LIMIT)
def test_a_planted_mistake_near_the_time_limit_is_found_and_its_control_is_not(hour, mistake):
    planted = AT_THE_LIMIT[mistake]
    _, (worker, _) = hour.run(first=SlowUntil(hour.simulation, SLOW))
    number = len(worker.calls) - 1 + LAST_CALLS.index(planted.operation)

    def at_the_limit():
        return SlowUntil(hour.simulation, SLOW, number, failing(hour, planted.fault, number, worker.calls))

    with patch.object(planted.owner, planted.name, planted.wrong):
        assert not differs(hour, SlowUntil(hour.simulation, SLOW))  # without the fault
        assert differs(hour, at_the_limit())
    with patch.object(planted.owner, planted.name, planted.right):
        assert not differs(hour, at_the_limit())


@pytest.mark.parametrize("failure", ["dies-after", "unanswered-once", "refused", "rival that dies", "sweep"])
def test_without_a_planted_mistake_no_fault_is_found(hour, failure):
    number = hour.calls.index("dynamodb.TransactWriteItems") + 1
    assert not differs(hour, failing(hour, failure, number))
