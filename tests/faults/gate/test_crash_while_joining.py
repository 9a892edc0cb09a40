"""Any AWS call behind a request of joins fails in any way: what is acknowledged is in the log.

What is not acknowledged may be repeated; the log then equals that of requests in which nothing failed.
"""

import os
import random
from collections.abc import Iterator

import pytest

from tests.faults.gate.ways import WAYS
from tests.faults.gate.wire import Call, Worker
from tests.faults.gate.world import FIRST_STEP, PERIOD, World

pytestmark = pytest.mark.filterwarnings("ignore:No application metrics to publish")

ONE_IN = 1 if os.environ.get("FAULTS") == "all" else 3
DIES = {"dies-before", "dies-after", "half-done-dies"}
chance = random.Random(4)
PLACES = tuple((name, bytes([i])) for i in range(7) for name in ("two", "one"))
BATCH = [(chance.choice(PLACES), chance.randrange(8)) for _ in range(90)]  # some of them twice


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with World() as world:
        world.set_time(FIRST_STEP * PERIOD + 7.0)
        empty = world.save()
        world.request_joins(BATCH, Worker())
        world.undisturbed = world.stored("StepLog")
        world.beginning = empty
        world.restore(empty)
        worker = Worker()
        assert world.request_joins(BATCH, worker) == [True] * len(BATCH)
        assert world.stored("StepLog") == world.undisturbed
        world.calls = worker.calls
        yield world


def test_a_batch_is_several_calls_and_names_some_joins_twice(world):
    assert world.calls.count("dynamodb.BatchWriteItem") >= 3
    assert len(world.undisturbed) < len(BATCH)


def in_the_log(world: World) -> list[bool]:
    """For each join of the batch whether its row is stored."""
    stored = world.stored("StepLog")
    rows = [world.row_key(*join) for join in BATCH]
    return [row in stored for row in rows]


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_a_batch_whose_calls_fail_acknowledges_only_joins_that_are_in_the_log(world, way, record_property):
    points = 0
    for number, operation in enumerate(world.calls, 1):
        if not way.applies_to(operation) or (number + WAYS.index(way)) % ONE_IN:
            continue
        points += 1
        world.restore(world.beginning)
        began = world.true_time()
        fails = way.at(number, operation, world.pass_time)
        acknowledged = world.request_joins(BATCH, Worker(fails))
        assert fails.met
        where = f"call {number} ({operation})"
        assert (acknowledged is None) == (way.name in DIES), where
        assert world.true_time() - began < 10, where
        acknowledged = acknowledged or [False] * len(BATCH)
        logged = in_the_log(world)
        assert all(stored for stored, told in zip(logged, acknowledged, strict=True) if told), where
        again = [join for join, told in zip(BATCH, acknowledged, strict=True) if not told]
        if again:
            assert world.request_joins(again, Worker()) == [True] * len(again)
        assert world.stored("StepLog") == world.undisturbed, where
    record_property("fault_points", points)
    assert points


def test_a_join_requested_before_the_end_of_a_step_and_written_after_it_counts_in_that_step(world):
    world.restore(world.beginning)
    world.set_time((FIRST_STEP + 1) * PERIOD - 0.5)

    def late(call: Call) -> object:
        if call.operation == "dynamodb.BatchWriteItem" and call.attempt == 1 and call.number < 5:
            world.pass_time(1.0)
        return call.send()

    assert world.request_joins(BATCH, Worker(late)) == [True] * len(BATCH)
    assert world.true_time() > (FIRST_STEP + 1) * PERIOD
    assert world.stored("StepLog") == world.undisturbed
