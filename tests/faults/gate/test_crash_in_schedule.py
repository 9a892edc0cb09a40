"""Every AWS call of the scheduled event fails in every possible way: every slot still gets its message.

Lambda repeats an asynchronous invocation twice. The event of the next hour repairs failures that last longer.
"""

from collections.abc import Iterator

import pytest

from tests.faults.failures import FAILURES, QUEUE_FAILURES
from tests.faults.gate.simulated_stack import PERIOD, REPETITIONS, SCHEDULE_OFFSET, START, SimulatedStack
from tests.faults.gate.test_crash_at_every_call import ONE_IN

SLOTS = 16
MESSAGES = [f'{{"slot":{slot},"hop":0}}' for slot in range(SLOTS)]
LASTING = ("operation", "outage")
CALLS = ["sqs.SendMessageBatch"] * 2 + ["dynamodb.GetItem"] * SLOTS
EVENT_FAILURES = [failure for failure in (*FAILURES, *QUEUE_FAILURES) if any(map(failure.applies_to, CALLS))]


@pytest.fixture(scope="module")
def simulation() -> Iterator[SimulatedStack]:
    with SimulatedStack(slots=SLOTS) as simulation:
        simulation.set_time(START + PERIOD + SCHEDULE_OFFSET)
        simulation.beginning = simulation.save()
        yield simulation


def test_the_scheduled_event_sends_one_message_per_slot_and_reads_every_mark(simulation):
    (worker,) = simulation.run_schedule()
    assert worker.succeeded
    assert worker.calls == CALLS
    assert sorted(simulation.sent()) == sorted(MESSAGES)


@pytest.mark.parametrize("failure", EVENT_FAILURES, ids=str)
def test_every_slot_gets_its_message_if_any_call_of_the_scheduled_event_fails(simulation, failure, record_property):
    possible = [n for n, operation in enumerate(CALLS, 1) if failure.applies_to(operation)]
    numbers = possible[EVENT_FAILURES.index(failure) % min(ONE_IN, len(possible)) :: ONE_IN]
    for number in numbers:
        simulation.restore(simulation.beginning)
        fails = [failure.at(number, CALLS[number - 1], simulation.pass_time) for _ in range(1 + len(REPETITIONS))]
        workers = simulation.run_schedule(*(fails if failure.lasts in LASTING else fails[:1]))
        where = f"call {number} ({CALLS[number - 1]}), {[worker.calls for worker in workers]}"
        assert fails[0].met, where
        if not workers[-1].succeeded:
            assert failure.lasts in LASTING, where
            assert all(fail.met for fail in fails), where
            simulation.sent()
            simulation.set_time(START + 2 * PERIOD + SCHEDULE_OFFSET)
            (worker,) = simulation.run_schedule()
            assert worker.succeeded, where
        assert set(simulation.sent()) == set(MESSAGES), where
    record_property("fault_points", len(numbers))
    assert numbers


def test_a_batch_of_messages_that_is_accepted_in_part_is_sent_again_completely(simulation):
    """The answer is not an error: the failed messages are named only in its body."""
    simulation.restore(simulation.beginning)
    (failure,) = (failure for failure in QUEUE_FAILURES if failure.name == "half-not-taken")
    first, second = simulation.run_schedule(failure.at(1, CALLS[0], simulation.pass_time))
    assert not first.succeeded
    assert first.calls == CALLS[:1]
    assert second.succeeded
    assert second.calls == CALLS
    assert sorted(simulation.sent()) == sorted(MESSAGES + MESSAGES[5:10])
