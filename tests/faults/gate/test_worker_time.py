"""Workers near their time limit: they stop between steps before it, and evaluate steps that close meanwhile."""

import json

import pytest

from tests.faults.fault_injector import Worker
from tests.faults.gate.simulated_stack import FIRST_STEP, PERIOD, SCHEDULE_OFFSET, SimulatedStack


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


def test_workers_that_make_no_progress_stop_after_a_hundred_handovers(simulation):
    simulation.set_time((FIRST_STEP + 140) * PERIOD + SCHEDULE_OFFSET)
    assert simulation.evaluate(simulation.cold_start(), '{"slot": 0, "hop": 100}', Worker(slow(simulation, 1.0)))
    assert simulation.sent() == []


def test_a_step_that_closes_during_a_run_is_evaluated_by_it(simulation):
    simulation.set_time((FIRST_STEP + 2) * PERIOD + 90.0)  # half a minute before the second step closes
    simulation.join(simulation.sets[0], range(9), FIRST_STEP * PERIOD + 5)
    assert simulation.evaluate(simulation.cold_start(), '{"slot": 0, "hop": 0}', Worker(slow(simulation, 3.2)))
    assert mark(simulation) == FIRST_STEP + 1


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
