"""When answers change: at ticks only, for a whole slot at once, and never back within an instance."""

import json
from datetime import UTC, datetime

import pytest

from kanon.gate.mechanism.steps import phase_of
from kanon.local.stack import Stack
from tests.e2e.gate.oracle import Oracle
from tests.snapshot import Snapshot

START = datetime(2026, 3, 1, tzinfo=UTC).timestamp()
HOUR = 3600
TICK = HOUR + 1800  # of a step, seconds after its beginning
CROWD = [f"c{n}" for n in range(150)]  # more than M = 99: crosses with any noise
WINDOW = 24
TYPES = {"fledge": {"k": 50, "window": WINDOW, "profile": "published"}}


@pytest.fixture(scope="module")
def unused_stack():
    """A stack that nobody has used yet."""
    with Stack({"Types": json.dumps(TYPES)}, start=START, seed=3) as stack:
        yield Snapshot(stack, Oracle(stack))


@pytest.fixture
def oracle(unused_stack):
    return unused_stack.restore()


@pytest.fixture
def stack(oracle):
    return oracle.stack


def crowd(set_id):
    return [("fledge", set_id, client) for client in CROWD]


def turns_after(oracle, set_id):
    """Steps from now to the beginning of the set's next instance."""
    oracle.watch("fledge", set_id)
    phase = phase_of(oracle._keys["fledge", set_id], WINDOW, "hash")
    oracle.forget()
    return next(n for n in range(1, WINDOW + 1) if (oracle.now_step + n - phase) % WINDOW == 0)


def test_a_crossing_is_invisible_before_its_tick_and_visible_from_it_on(stack, oracle):
    oracle.join_all(crowd(b"ad"))
    for second in (TICK - HOUR, HOUR + 179, HOUR + 200, TICK - 1):
        stack.advance_to(START + second)
        stack.restart("query")  # nothing may depend on the memory of an environment
        assert oracle.answers() == {("fledge", b"ad"): False}
    stack.advance_to(START + TICK)
    assert oracle.answers() == {("fledge", b"ad"): True}


def test_a_late_step_becomes_visible_at_a_tick_for_all_sets_at_once(stack, oracle):
    sets = [bytes([n]) for n in range(5) if turns_after(oracle, bytes([n])) > 2]
    assert len(sets) > 2
    for set_id in sets:
        oracle.join_all(crowd(set_id))
    stack.clock.set(START + TICK + 600)  # the schedule did not fire: the tick of the step has passed
    assert not any(oracle.answers().values())
    stack.tick()
    for second in (600, 1200, HOUR - 1):
        stack.clock.set(START + TICK + second)
        stack.restart("query")
        assert not any(oracle.answers().values())
    stack.clock.set(START + TICK + HOUR)
    assert all(oracle.answers().values())


def test_a_step_written_just_before_its_tick_waits_for_the_next_one(stack, oracle):
    oracle.join_all(crowd(b"ad"))
    stack.clock.set(START + TICK - 30)  # nearer than the publish margin
    stack.tick()
    stack.clock.set(START + TICK)
    assert not any(oracle.answers().values())
    stack.clock.set(START + TICK + HOUR)
    assert all(oracle.answers().values())


def test_a_popular_set_stays_true_when_a_new_instance_starts(stack, oracle):
    set_id = b"popular"
    oracle.watch("fledge", set_id)
    seen = []
    for hour in range(2 * WINDOW + 3):
        oracle.join_all(crowd(set_id)) if hour % 6 == 0 else None
        for second in (HOUR + 200, TICK - 1, TICK):
            stack.advance_to(START + hour * HOUR + second)
            seen.append(oracle.answers()["fledge", set_id])
        oracle.pass_step()
    first = seen.index(True)
    assert first == 2
    assert all(seen[first:])


def test_a_status_that_is_not_renewed_ends_with_its_instance(stack, oracle):
    set_id = b"brief"
    oracle.join_all(crowd(set_id))
    stack.advance_to(START + TICK)
    assert oracle.answers()["fledge", set_id]
    turns = oracle.now_step + turns_after(oracle, set_id)
    oracle.watch("fledge", set_id)
    stack.clock.set(turns * HOUR + TICK - 1)  # evaluation has stopped
    assert oracle.answers()["fledge", set_id]
    stack.clock.set(turns * HOUR + TICK)
    assert not oracle.answers()["fledge", set_id]


def test_after_three_days_without_evaluation_the_answers_are_exact_again():
    parameters = {"Types": json.dumps(TYPES), "OutageAllowance": str(7 * 24 * HOUR)}
    with Stack(parameters, start=START, seed=3) as stack:
        oracle, expected = Oracle(stack), {}
        for hour in range(72):
            stack.clock.set(START + hour * HOUR)
            oracle.join_all([("fledge", bytes([n]), f"c{hour * 3 + m}") for n in range(6) for m in range(2 * n)])
            expected = oracle.pass_step()
        stack.clock.set(START + 72 * HOUR + 300)
        stack.tick()
        stack.clock.set(START + 71 * HOUR + TICK)
        assert oracle.answers(oracle.now_step - 1) == expected
        assert {True, False} == set(expected.values())
        for _ in range(WINDOW):
            assert oracle.finish_step() == 0


def test_a_message_for_a_slot_that_does_not_exist_is_refused_and_writes_nothing(stack):
    before = stack.meter.written["evaluate"]
    record = {"messageId": "1", "body": '{"slot": 1, "hop": 0}', "eventSource": "aws:sqs", "attributes": {}}
    assert stack.invoke("evaluate", {"Records": [record]}) == {"batchItemFailures": [{"itemIdentifier": "1"}]}
    assert stack.meter.written["evaluate"] == before
