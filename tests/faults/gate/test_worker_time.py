"""What a worker does with its time: stops before its end, goes on from there, takes what closes meanwhile."""

import json

import pytest

from tests.faults.gate.ways import unanswered
from tests.faults.gate.wire import Worker
from tests.faults.gate.world import FIRST_STEP, PERIOD, SCHEDULE_OFFSET, World

pytestmark = pytest.mark.filterwarnings("ignore:No application metrics to publish")


@pytest.fixture
def world():
    with World(sets_a_chunk=2) as world:
        yield world


def mark(world) -> int:
    return int(world.stored("Control")["slot#0",]["evaluated_through"]["N"])


def slow(world, seconds):
    """A behaviour: every call takes so long."""

    def behaviour(call):
        response = call.send()
        world.pass_time(seconds)
        return response

    return behaviour


def test_a_worker_out_of_time_stops_between_empty_steps_and_hands_the_rest_over(world):
    world.set_time((FIRST_STEP + 140) * PERIOD + SCHEDULE_OFFSET)
    worker = Worker(slow(world, 1.0))
    assert world.evaluate(world.cold_start(), '{"slot": 0, "hop": 3}', worker)
    assert not worker.dead
    assert FIRST_STEP + 60 < mark(world) < FIRST_STEP + 110
    assert "lease_until" not in world.stored("Control")["slot#0",]
    assert [json.loads(body) for body in world.sent()] == [{"slot": 0, "hop": 4}]


def test_a_worker_out_of_time_stops_inside_a_step_and_the_next_one_resumes_after_its_last_set(world):
    for place in world.sets:
        world.join(place, range(9), FIRST_STEP * PERIOD + 5)
    world.set_time((FIRST_STEP + 1) * PERIOD + SCHEDULE_OFFSET)
    first = Worker(slow(world, 3.0))
    assert world.evaluate(world.cold_start(), '{"slot": 0, "hop": 0}', first)
    assert not first.dead
    done = len(world.stored("Members"))
    assert 2 <= done < len(world.sets)
    assert done % world.sets_a_chunk == 0
    assert mark(world) == FIRST_STEP - 1
    (message,) = world.sent()
    second = Worker()
    assert world.evaluate(world.cold_start(), message, second)
    assert second.calls.count("dynamodb.PutItem") == len(world.sets) - done
    assert mark(world) == FIRST_STEP


def test_workers_that_make_no_progress_stop_after_a_hundred_handovers(world):
    world.set_time((FIRST_STEP + 140) * PERIOD + SCHEDULE_OFFSET)
    assert world.evaluate(world.cold_start(), '{"slot": 0, "hop": 100}', Worker(slow(world, 1.0)))
    assert world.sent() == []


def test_a_step_that_closes_during_a_run_is_evaluated_by_it(world):
    world.set_time((FIRST_STEP + 2) * PERIOD + 90.0)  # half a minute before the second step closes
    world.join(world.sets[0], range(9), FIRST_STEP * PERIOD + 5)
    assert world.evaluate(world.cold_start(), '{"slot": 0, "hop": 0}', Worker(slow(world, 4.0)))
    assert mark(world) == FIRST_STEP + 1


def test_a_worker_keeps_its_lease_when_the_response_that_granted_it_is_lost(world):
    world.set_time((FIRST_STEP + 1) * PERIOD + SCHEDULE_OFFSET)

    def lease_unanswered(call):
        if "SET lease_until" in str(call.body) and call.attempt == 1:
            return unanswered(call, world.pass_time)
        return call.send()

    assert world.evaluate(world.cold_start(), '{"slot": 0, "hop": 0}', Worker(lease_unanswered))
    assert mark(world) == FIRST_STEP


def test_a_message_for_a_slot_that_is_leased_is_acknowledged(world):
    world.set_time((FIRST_STEP + 1) * PERIOD + SCHEDULE_OFFSET)
    control = world.stack.storage.tables["Control"]
    world.dynamodb.update_item(
        TableName=control,
        Key={"name": {"S": "slot#0"}},
        UpdateExpression="SET lease_until = :until, lease_holder = :other",
        ExpressionAttributeValues={":until": {"N": str(world.true_time() + 10)}, ":other": {"S": "other"}},
    )
    worker = Worker()
    assert world.evaluate(world.cold_start(), '{"slot": 0, "hop": 0}', worker)
    assert "dynamodb.Query" not in worker.calls
    assert mark(world) == FIRST_STEP - 1
    world.pass_time(11)
    assert world.evaluate(world.cold_start(), '{"slot": 0, "hop": 0}', Worker())
    assert mark(world) == FIRST_STEP
