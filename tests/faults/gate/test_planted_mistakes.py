"""The fault tests must detect mistakes: the service with one planted mistake must show a difference.

Each mistake is a wrong order of writes, a missing condition or a forgotten check (docs/architecture.md, rule 8).
Each is planted beside its control: the right behaviour, planted through the same helper. With the same fault, the
control shows no difference. Without a fault the mistake shows no difference. So the difference comes from the mistake,
and not from an error in the code that plants it.
"""

import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest.mock import patch

import pytest
from botocore.exceptions import BotoCoreError, ClientError
from kanon.dynamo.statements import execute_all, replace
from kanon.gate.storage.members import OPTIONAL, UNLESS_EVALUATED, Members

from kanon import aws
from kanon.dynamo.conditions import unless_refused
from kanon.errors import ThrottledError
from kanon.gate.evaluation import Evaluation
from kanon.gate.mechanism.columns import NEVER
from kanon.gate.storage.aws.control import Control
from kanon.gate.storage.aws.step_log import StepLog
from tests.faults.failures import FAILURES, QUEUE_FAILURES
from tests.faults.gate.simulated_stack import SimulatedStack
from tests.faults.gate.test_crash_at_every_call import LAST_CALLS, STOPS, Hour, Rival, SlowUntil, assert_equal

pytestmark = pytest.mark.filterwarnings("ignore:No application metrics to publish")

Function = Callable[..., Any]
STEP = 472_012


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
    """A commit that writes in this order, each kind complete before the next."""

    def commit(self, step, decided, writers) -> None:
        write = {
            "wake-ups": lambda: self.log.put_wake_ups(row for d in decided for row in self._wake_ups(d)),
            "statuses": lambda: [self._write_status(status) for d in decided for status in self._statuses(step, d)],
            "members": lambda: self.members.write(step, [self._update(step, d) for d in decided], writers),
        }
        for kind in order:
            write[kind]()

    return commit


def complete_in_order(*order: str) -> Function:
    """The completion of a step that writes in this order."""

    def complete(self, run, step, now, *, leaving=False) -> None:
        write = {
            "horizon": lambda: self.statuses.move_horizon(run.slot, step, self.schedule.visible_from(now)),
            "mark": lambda: self.control.advance(run.slot, run.through, step, run.holder if leaving else None),
        }
        for name in order:
            if name == "mark":
                self.members.stamp(run.slot, step)
            write[name]()
        run.through, run.idle, run.leased = step, 0, not leaving

    return complete


def put_wake_ups(*, checked: bool) -> Function:
    """Puts wake-ups; ``checked``: unprocessed ones are an error."""

    def put(self, rows) -> None:
        if self.put_all(rows) and checked:
            raise ThrottledError("planted")

    return put


def lease_longer(seconds: float) -> Function:
    """Takes a lease that ends ``seconds`` later."""
    real = Control.lease
    return lambda self, slot, holder, now, until: real(self, slot, holder, now, until + seconds)


def update_slot_without(clause: str) -> Function:
    """Updates Control; the condition of a slot lacks this clause."""
    real = Control._update

    def update(self, name, update, condition, values, **more):
        if name.startswith("slot#"):
            condition = condition.replace(clause, "")
        return real(self, name, update, condition, values, **more)

    return update


def write_members(*, expected: bool = True, repeated: bool = True, **condition: str) -> Function:
    """Writes the states of sets.

    ``expected``: only in place of the read item; ``repeated``: a refused item is put, with this condition.
    """

    def write(self, changes) -> None:
        statements = [
            self._statement(item, stored)
            if expected or stored == NEVER
            else replace(self._table, item, "set_key", [n for n in OPTIONAL if n not in item], {})
            for item, stored in changes
        ]
        refused, left = execute_all(self._client, statements)
        if left:
            raise ThrottledError("planted")
        for item in (changes[number][0] for number in refused) if repeated else ():
            values = {"ExpressionAttributeValues": {":step": item["evaluated"]}} if condition else {}
            unless_refused(self._client.put_item, TableName=self._table, Item=item, **condition, **values)

    return write


def release_resuming_at(default: tuple[int, bytes] | None) -> Function:
    """Returns a lease; a run that stopped between two steps resumes here."""
    real = Control.release
    return lambda self, slot, holder, resume=None: real(self, slot, holder, resume or default)


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


COMMIT = commit_in_order("wake-ups", "statuses", "members")
WRITE = write_members(ConditionExpression=UNLESS_EVALUATED)
COMPLETE = complete_in_order("horizon", "mark")

MISTAKES = {
    "members are written before statuses": Mistake(
        Evaluation,
        "_commit",
        COMMIT,
        commit_in_order("wake-ups", "members", "statuses"),
        "dies-after",
        "BatchExecuteStatement",
    ),
    "wake-ups are written last": Mistake(
        Evaluation,
        "_commit",
        COMMIT,
        commit_in_order("statuses", "members", "wake-ups"),
        "dies-after",
        "BatchExecuteStatement",
    ),
    "the mark moves before the horizon": Mistake(
        Evaluation, "_complete", COMPLETE, complete_in_order("mark", "horizon"), "dies-after", "UpdateItem"
    ),
    "wake-ups that were not taken are forgotten": Mistake(
        StepLog,
        "put_wake_ups",
        put_wake_ups(checked=True),
        put_wake_ups(checked=False),
        "nothing-processed",
        "BatchWriteItem",
    ),
    "a lease never ends": Mistake(Control, "lease", lease_longer(0), lease_longer(10**6), "dies-after", "Query"),
    "a worker may not take its own lease again": Mistake(
        Control,
        "_update",
        update_slot_without("no such clause"),
        update_slot_without(" OR lease_holder = :holder"),
        "unanswered-once",
        "UpdateItem",
    ),
    "members are updated whatever is stored": Mistake(
        Members, "_write", WRITE, write_members(expected=False), "rival", "BatchExecuteStatement"
    ),
    "what is refused is put without a condition": Mistake(
        Members, "_write", WRITE, write_members(), "rival", "BatchExecuteStatement"
    ),
    "a refused statement means that the work is done": Mistake(
        Members, "_write", WRITE, write_members(repeated=False), "expired", "BatchExecuteStatement"
    ),
    "a run resumes after sets that are not evaluated": Mistake(
        Control,
        "release",
        release_resuming_at(None),
        release_resuming_at((STEP, b"\x80" * 32)),
        "refused",
        "BatchExecuteStatement",
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


# Whether they show a difference


@pytest.fixture(scope="module")
def hour() -> Iterator[Hour]:
    with SimulatedStack() as simulation:
        yield Hour(simulation)


def differs(hour: Hour, behaviour: Any) -> bool:
    """Whether an hour whose first worker meets this behaviour ends differently from an undisturbed one."""
    ending, _ = hour.run(first=behaviour)
    try:
        assert_equal(ending, hour.undisturbed)
    except AssertionError:
        return True
    return False


def failing(hour: Hour, name: str, number: int, calls: list[str] | None = None) -> Any:
    """The behaviour that fails at the ``number``-th call."""
    random.seed(number)
    if name == "rival":
        return Rival(hour.simulation, number, None)
    (failure,) = (failure for failure in (*FAILURES, *QUEUE_FAILURES) if failure.name == name)
    return failure.at(number, (calls or hour.calls)[number - 1], hour.simulation.pass_time)


def calls_of(calls: list[str], operation: str) -> list[int]:
    """The numbers of the calls of this kind."""
    return [number for number, kind in enumerate(calls, 1) if kind == f"dynamodb.{operation}"]


@pytest.fixture(scope="module")
def shows_at(hour: Hour) -> Callable[[str], int | None]:
    """The call of its kind whose failure shows a planted mistake; None if there is none."""

    @cache
    def place_of_call(mistake: str) -> int | None:
        planted = MISTAKES[mistake]
        with patch.object(planted.owner, planted.name, planted.wrong):
            _, (worker,) = hour.run()  # a wrong order gives the calls other numbers
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
    number = calls_of(hour.calls, planted.operation)[place]
    with patch.object(planted.owner, planted.name, planted.right):
        assert not differs(hour, failing(hour, planted.fault, number))


@pytest.mark.parametrize("mistake", MISTAKES | AT_THE_LIMIT)
def test_a_planted_mistake_changes_nothing_without_a_fault(hour, mistake):
    planted = (MISTAKES | AT_THE_LIMIT)[mistake]
    with patch.object(planted.owner, planted.name, planted.wrong):
        ending, workers = hour.run()
    assert len(workers) == 1  # no invocation failed
    statements = "dynamodb.BatchExecuteStatement"
    assert workers[0].calls.count(statements) == hour.calls.count(statements)
    assert_equal(ending, hour.undisturbed)


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


@pytest.mark.parametrize("failure", ["dies-after", "nothing-processed", "unanswered-once", "refused", "rival"])
def test_without_a_planted_mistake_no_fault_is_found(hour, failure):
    number = hour.calls.index("dynamodb.BatchWriteItem") + 1
    assert not differs(hour, failing(hour, failure, number))
