"""Workers near their time limit: they stop before it, the next one continues, and steps that close meanwhile are
evaluated."""

import json

import pytest

from kanon.gate.storage.aws.control import Place
from tests.faults.failures import unanswered
from tests.faults.fault_injector import Worker
from tests.faults.gate.simulated_stack import FIRST_STEP, PERIOD, SCHEDULE_OFFSET, SimulatedStack

pytestmark = pytest.mark.filterwarnings("ignore:No application metrics to publish")

PLACE = Place(0, 0)


@pytest.fixture
def simulation():
    with SimulatedStack(parameters={"OutageAllowance": "604800"}) as simulation:  # 140 steps behind
        yield simulation


def mark(simulation) -> int:
    return int(simulation.stored("Control")["slot#0#0",]["evaluated_through"]["N"])


def slow(simulation, seconds):
    """A behaviour: every call takes so long."""

    def behaviour(call):
        response = call.send()
        simulation.pass_time(seconds)
        return response

    return behaviour


def test_a_worker_out_of_time_stops_between_empty_steps_and_hands_the_rest_over(simulation):
    simulation.set_time((FIRST_STEP + 140) * PERIOD + SCHEDULE_OFFSET)
    worker = Worker(slow(simulation, 1.0))
    assert simulation.evaluate(simulation.cold_start(), '{"slot": 0, "hop": 3}', worker)
    assert not worker.dead
    assert FIRST_STEP + 60 < mark(simulation) < FIRST_STEP + 110
    assert "lease_until" not in simulation.stored("Control")["slot#0#0",]
    assert [json.loads(body) for body in simulation.sent()] == [{"slot": 0, "hop": 4}]


def test_a_worker_out_of_time_stops_inside_a_step_and_the_next_one_resumes_after_its_last_range(simulation):
    for place in simulation.sets:
        simulation.join(place, range(9), FIRST_STEP * PERIOD + 5)
    simulation.set_time((FIRST_STEP + 1) * PERIOD + SCHEDULE_OFFSET)
    first = Worker(slow(simulation, 2.4))
    assert simulation.evaluate(simulation.cold_start(), '{"slot": 0, "hop": 0}', first)
    assert not first.dead
    ranges = len(simulation.sets) * 9 // simulation.joins_a_range
    progress = simulation.control.row(PLACE).progress
    done = len(simulation.parts(PLACE).list_of(progress.draft).pieces)
    assert 2 <= done < ranges
    assert mark(simulation) == FIRST_STEP - 1
    (message,) = simulation.sent()
    second = Worker()
    assert simulation.evaluate(simulation.cold_start(), message, second)
    assert sum(len(part) for part in simulation.states().values()) == len(simulation.sets)
    assert ranges - done <= second.calls.count("s3.PutObject") <= 2 * (ranges - done) + 1  # parts, and lists of them
    assert mark(simulation) == FIRST_STEP
    assert simulation.unreferenced() == set()


def test_workers_that_make_no_progress_stop_after_a_hundred_handovers(simulation):
    simulation.set_time((FIRST_STEP + 140) * PERIOD + SCHEDULE_OFFSET)
    assert simulation.evaluate(simulation.cold_start(), '{"slot": 0, "hop": 100}', Worker(slow(simulation, 1.0)))
    assert simulation.sent() == []


def test_a_step_that_closes_during_a_run_is_evaluated_by_it(simulation):
    simulation.set_time((FIRST_STEP + 2) * PERIOD + 90.0)  # half a minute before the second step closes
    simulation.join(simulation.sets[0], range(9), FIRST_STEP * PERIOD + 5)
    assert simulation.evaluate(simulation.cold_start(), '{"slot": 0, "hop": 0}', Worker(slow(simulation, 3.2)))
    assert mark(simulation) == FIRST_STEP + 1


def test_a_worker_keeps_its_lease_when_the_response_that_granted_it_is_lost(simulation):
    simulation.set_time((FIRST_STEP + 1) * PERIOD + SCHEDULE_OFFSET)

    def lease_unanswered(call):
        if "SET lease_until" in str(call.body) and call.attempt == 1:
            return unanswered(call, simulation.pass_time)
        return call.send()

    assert simulation.evaluate(simulation.cold_start(), '{"slot": 0, "hop": 0}', Worker(lease_unanswered))
    assert mark(simulation) == FIRST_STEP


def test_a_message_for_a_slot_that_is_leased_is_acknowledged(simulation):
    simulation.set_time((FIRST_STEP + 1) * PERIOD + SCHEDULE_OFFSET)
    control = simulation.stack.storage.tables["Control"]
    simulation.dynamodb.update_item(
        TableName=control,
        Key={"name": {"S": "slot#0#0"}},
        UpdateExpression="SET lease_until = :until, lease_holder = :other",
        ExpressionAttributeValues={":until": {"N": str(simulation.true_time() + 10)}, ":other": {"S": "other"}},
    )
    worker = Worker()
    assert simulation.evaluate(simulation.cold_start(), '{"slot": 0, "hop": 0}', worker)
    assert "dynamodb.Query" not in worker.calls
    assert mark(simulation) == FIRST_STEP - 1
    simulation.pass_time(11)
    assert simulation.evaluate(simulation.cold_start(), '{"slot": 0, "hop": 0}', Worker())
    assert mark(simulation) == FIRST_STEP
