"""The lag of evaluation in CloudWatch, also of a stuck slot, which cannot report its own."""

import time
from collections.abc import Callable, Iterator

import pytest

from kanon.client import Client, Join, encoded
from kanon.local import Stack
from tests.conftest import START
from tests.integration.gate.doctor_view import metrics
from tests.snapshot import Snapshot

HOUR = 3600
SLOTS = 4
LAG = ("StepsBehind", "PublishLag")


@pytest.fixture(scope="module")
def used_stack() -> Iterator[Snapshot[None]]:
    with Stack({"Slots": str(SLOTS)}, start=START) as stack:
        yield Snapshot(used(stack), None)


@pytest.fixture
def stack(used_stack: Snapshot[None]) -> Stack:
    """Four slots with a few sets each, after three hours in time."""
    used_stack.restore()
    return used_stack.stack


def used(stack: Stack) -> Stack:
    """The stack after three hours in use."""
    for _ in range(3):
        join(stack)
        stack.advance(HOUR)
    return stack


def join(stack: Stack) -> None:
    Client(stack.request).join_many(Join("fledge", encoded(b"%03d" % n), "a") for n in range(40))


def told(stack: Stack) -> dict[str, list[float]]:
    """The emitted values of an hour, sorted."""
    before = {name: len(metrics(stack, name)) for name in LAG}
    stack.advance(HOUR)
    return {name: sorted(metrics(stack, name)[before[name] :]) for name in LAG}


def spoil_parts(stack: Stack) -> None:
    """Let the parts of one slot be of no known format: it stops."""
    client, bucket = stack.session.client("s3"), stack.storage.buckets["StatesBucket"]
    for item in client.list_objects_v2(Bucket=bucket, Prefix="0/0/")["Contents"]:
        client.put_object(Bucket=bucket, Key=item["Key"], Body=b"\x02")


def test_each_slot_reports_once_per_step_that_it_is_on_time(stack: Stack) -> None:
    join(stack)
    assert told(stack) == {"StepsBehind": [0] * SLOTS, "PublishLag": [0] * SLOTS}


def test_a_stopped_slot_is_reported_as_behind_and_late_while_the_others_are_on_time(stack: Stack) -> None:
    spoil_parts(stack)
    join(stack)
    in_time = [0.0] * (SLOTS - 1)
    assert told(stack) == {"StepsBehind": [*in_time, 0], "PublishLag": in_time}  # its tick is yet to come
    for hours in (1, 2, 3):
        assert told(stack) == {"StepsBehind": [*in_time, hours], "PublishLag": [*in_time, hours * HOUR]}


def test_slots_without_a_secret_are_reported_as_behind_and_late(new_stack: Callable[..., Stack]) -> None:
    stack = used(new_stack({"Slots": str(SLOTS)}))
    secret = str(stack.template.resolve({"Ref": "NoiseKey"}))
    stack.session.client("secretsmanager").delete_secret(SecretId=secret, ForceDeleteWithoutRecovery=True)
    stack.restart("evaluate")
    assert told(stack) == {"StepsBehind": [0] * SLOTS, "PublishLag": []}
    assert told(stack) == {"StepsBehind": [1] * SLOTS, "PublishLag": [HOUR] * SLOTS}
    assert sum(metrics(stack, "SlotsFailed")) >= SLOTS


def test_steps_that_are_caught_up_report_how_late_they_are(stack: Stack) -> None:
    stack.clock.set(stack.clock.now() + 2 * HOUR)  # the schedule did not fire
    assert told(stack) == {"StepsBehind": [2] * SLOTS, "PublishLag": [2 * HOUR] * 2 * SLOTS}
    assert told(stack) == {"StepsBehind": [0] * SLOTS, "PublishLag": [0] * SLOTS}


def test_a_worker_that_hands_over_does_not_report_an_incomplete_step(
    new_stack: Callable[..., Stack],
) -> None:
    stack = new_stack()
    join(stack)
    stack.advance(HOUR)
    join(stack)
    stack.clock.set(stack.clock.now() + HOUR)
    before = metrics(stack, "PublishLag")
    record = {"messageId": "m", "body": '{"slot": 0}', "eventSource": "aws:sqs", "receiptHandle": "r"}
    assert stack.invoke("evaluate", {"Records": [record]}, timeout=1) == {"batchItemFailures": []}
    assert metrics(stack, "PublishLag") == before
    stack.run_queues()
    assert len(metrics(stack, "PublishLag")) == len(before) + 1


def test_a_slot_that_was_never_evaluated_is_reported_as_behind_but_not_late(new_stack: Callable[..., Stack]) -> None:
    stack = new_stack({"Slots": str(SLOTS)})
    first = told(stack)
    assert first == {"StepsBehind": [1] * SLOTS, "PublishLag": [0] * SLOTS}
    assert told(stack) == {"StepsBehind": [0] * SLOTS, "PublishLag": [0] * SLOTS}


def test_a_new_stack_reads_no_step_before_its_own() -> None:
    """The emulator makes tables by the clock of the machine, so the stack starts then."""
    with Stack({"OutageAllowance": "604800"}, start=time.time()) as stack:
        stack.advance(2 * 3600)
        assert 0 < stack.meter.read["evaluate"] < 100  # a week has 168 steps of one page each
