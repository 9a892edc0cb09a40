"""Any AWS call of the schedule's event fails in any way: every slot gets its message nevertheless.

Lambda repeats an asynchronous invocation twice. What outlasts that is made up for by the next hour's event.
"""

from collections.abc import Iterator

import pytest

from tests.faults.gate.test_crash_at_every_call import ONE_IN
from tests.faults.gate.ways import QUEUE_WAYS, WAYS
from tests.faults.gate.world import PERIOD, REPETITIONS, SCHEDULE_OFFSET, START, World

pytestmark = pytest.mark.filterwarnings("ignore:No application metrics to publish")

SLOTS = 16
MESSAGES = [f'{{"slot":{slot},"hop":0}}' for slot in range(SLOTS)]
LASTING = ("operation", "outage")
CALLS = ["sqs.SendMessageBatch"] * 2 + ["dynamodb.GetItem"] * SLOTS
EVENT_WAYS = [way for way in (*WAYS, *QUEUE_WAYS) if any(map(way.applies_to, CALLS))]


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with World(slots=SLOTS) as world:
        world.set_time(START + PERIOD + SCHEDULE_OFFSET)
        world.beginning = world.save()
        yield world


def test_the_scheduled_event_sends_one_message_per_slot_and_reads_every_mark(world):
    (worker,) = world.run_schedule()
    assert worker.succeeded
    assert worker.calls == CALLS
    assert sorted(world.sent()) == sorted(MESSAGES)


@pytest.mark.parametrize("way", EVENT_WAYS, ids=str)
def test_every_slot_gets_its_message_although_any_call_of_the_scheduled_event_fails(world, way, record_property):
    possible = [n for n, operation in enumerate(CALLS, 1) if way.applies_to(operation)]
    numbers = possible[EVENT_WAYS.index(way) % min(ONE_IN, len(possible)) :: ONE_IN]
    for number in numbers:
        world.restore(world.beginning)
        fails = [way.at(number, CALLS[number - 1], world.pass_time) for _ in range(1 + len(REPETITIONS))]
        workers = world.run_schedule(*(fails if way.lasts in LASTING else fails[:1]))
        where = f"call {number} ({CALLS[number - 1]}), {[worker.calls for worker in workers]}"
        assert fails[0].met, where
        if not workers[-1].succeeded:
            assert way.lasts in LASTING, where
            assert all(fail.met for fail in fails), where
            world.sent()
            world.set_time(START + 2 * PERIOD + SCHEDULE_OFFSET)
            (worker,) = world.run_schedule()
            assert worker.succeeded, where
        assert set(world.sent()) == set(MESSAGES), where
    record_property("fault_points", len(numbers))
    assert numbers


def test_a_batch_of_messages_that_is_accepted_in_part_is_sent_again_completely(world):
    """The answer is no error: only who reads it knows."""
    world.restore(world.beginning)
    (way,) = (way for way in QUEUE_WAYS if way.name == "half-not-taken")
    first, second = world.run_schedule(way.at(1, CALLS[0], world.pass_time))
    assert not first.succeeded
    assert first.calls == CALLS[:1]
    assert second.succeeded
    assert second.calls == CALLS
    assert sorted(world.sent()) == sorted(MESSAGES + MESSAGES[5:10])
