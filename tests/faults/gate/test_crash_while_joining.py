"""Every AWS call of a batch of joins fails in every possible way: acknowledged joins are in the log.

Unacknowledged joins may be repeated; the log then equals that of requests without failures.
"""

import os
import random
from collections.abc import Iterator

import pytest

from tests.faults.failures import FAILURES
from tests.faults.fault_injector import Call, Worker
from tests.faults.gate.simulated_stack import FIRST_STEP, PERIOD, SimulatedStack
from tests.faults.gate.test_crash_at_every_call import chosen

ONE_IN = 1 if os.environ.get("FAULTS") else 6
"""By default every 6th call is made to fail, a different selection for every way."""
DIES = {"dies-before", "dies-after", "half-done-dies"}
chance = random.Random(4)
PLACES = tuple((name, bytes([i])) for i in range(7) for name in ("two", "one"))
BATCH = [(chance.choice(PLACES), chance.randrange(8)) for _ in range(90)]  # some of them twice


FORMS = {"rows": "4", "packed items": '[{"slots":16,"partitions":4,"from_step":0}]'}
CALLS = ("secretsmanager.GetSecretValue", "dynamodb.UpdateItem", "dynamodb.BatchWriteItem")


@pytest.fixture(scope="module", params=FORMS.values(), ids=FORMS)
def simulation(request: pytest.FixtureRequest) -> Iterator[SimulatedStack]:
    with SimulatedStack(slots=4, parameters={"Slots": request.param}) as simulation:
        simulation.set_time(FIRST_STEP * PERIOD + 7.0)
        empty = simulation.save()
        simulation.request_joins(BATCH, Worker())
        simulation.undisturbed = simulation.logged()
        simulation.beginning = empty
        simulation.restore(empty)
        worker = Worker()
        assert simulation.request_joins(BATCH, worker) == [True] * len(BATCH)
        assert simulation.logged() == simulation.undisturbed
        simulation.calls = worker.calls
        yield simulation


def test_the_batch_needs_several_calls_and_repeats_some_joins(simulation):
    packed = simulation.layouts.at(FIRST_STEP).partitions is not None
    assert simulation.calls.count("dynamodb.BatchWriteItem") >= (1 if packed else 3)
    assert len(simulation.undisturbed) < len(BATCH)


def in_the_log(simulation: SimulatedStack) -> list[bool]:
    """For each join of the batch whether it is in the log."""
    logged = simulation.logged()
    return [simulation.row(*join) in logged for join in BATCH]


@pytest.mark.parametrize("failure", [each for each in FAILURES if any(map(each.applies_to, CALLS))], ids=str)
def test_a_batch_whose_calls_fail_acknowledges_only_joins_that_are_in_the_log(simulation, failure, record_property):
    numbers = chosen(simulation.calls, failure, ONE_IN)
    for number in numbers:
        operation = simulation.calls[number - 1]
        simulation.restore(simulation.beginning)
        began = simulation.true_time()
        fails = failure.at(number, operation, simulation.pass_time)
        acknowledged = simulation.request_joins(BATCH, Worker(fails))
        assert fails.met
        where = f"call {number} ({operation})"
        assert (acknowledged is None) == (failure.name in DIES), where
        assert simulation.true_time() - began < 10, where
        acknowledged = acknowledged or [False] * len(BATCH)
        logged = in_the_log(simulation)
        assert all(stored for stored, told in zip(logged, acknowledged, strict=True) if told), where
        again = [join for join, told in zip(BATCH, acknowledged, strict=True) if not told]
        if again:
            assert simulation.request_joins(again, Worker()) == [True] * len(again)
        assert simulation.logged() == simulation.undisturbed, where
    record_property("fault_points", len(numbers))
    assert numbers


def test_a_join_requested_before_the_end_of_a_step_and_written_after_it_counts_in_that_step(simulation):
    simulation.restore(simulation.beginning)
    simulation.set_time((FIRST_STEP + 1) * PERIOD - 0.5)

    def late(call: Call) -> object:
        if call.operation == "dynamodb.BatchWriteItem" and call.attempt == 1 and call.number < 5:
            simulation.pass_time(1.0)
        return call.send()

    assert simulation.request_joins(BATCH, Worker(late)) == [True] * len(BATCH)
    assert simulation.true_time() > (FIRST_STEP + 1) * PERIOD
    assert simulation.logged() == simulation.undisturbed
