"""The harness is only worth what it catches: the service with one mistake planted must show a difference.

Each mistake is a wrong order, a missing condition or a forgotten care that rule 8 forbids.
"""

import random
from collections.abc import Iterator
from contextlib import suppress
from types import SimpleNamespace
from unittest.mock import patch

import pytest
from botocore.exceptions import BotoCoreError, ClientError

from kanon import aws
from kanon.gate.evaluation import Evaluation, _each
from kanon.gate.storage.control import Control
from kanon.gate.storage.members import Members
from kanon.gate.storage.step_log import Row, StepLog
from tests.faults.gate.test_crash_at_every_call import LAST_CALLS, Hour, Rival, SlowUntil, assert_equal
from tests.faults.gate.ways import QUEUE_WAYS, WAYS
from tests.faults.gate.world import World

pytestmark = pytest.mark.filterwarnings("ignore:No application metrics to publish")


def wake_ups(self, slot, decided) -> None:
    self.log.put_wake_ups(
        Row(e.after.wake_up, slot, e.touched.set_key, None, e.touched.type_name, self._expiry(e.after.wake_up))
        for e in decided
        if e.after.wake_up is not None and e.after.wake_up != e.before.wake_up
    )


def crossed(decided):
    return [e for e in decided if e.after.crossings != e.before.crossings]


def members_before_statuses(self, slot, decided, writers) -> None:
    wake_ups(self, slot, decided)
    _each(writers, self._write_members, decided)
    _each(writers, self._write_status, crossed(decided))


def wake_ups_last(self, slot, decided, writers) -> None:
    _each(writers, self._write_status, crossed(decided))
    _each(writers, self._write_members, decided)
    wake_ups(self, slot, decided)


def mark_before_horizon(self, slot, through, step, now, leaving=None) -> int:
    self.control.advance(slot, through, step, leaving)
    self.statuses.move_horizon(slot, step, self.schedule.visible_from(now))
    return step


def wake_ups_not_taken_are_forgotten(self, rows) -> None:
    self.put_all(rows)


def lease_is_for_ever(real):
    return lambda self, slot, holder, now, until: real(self, slot, holder, now, now + 10**6)


def lease_of_ones_own_is_not_known(real):
    def update(self, name, update, condition, values, **more):
        if name.startswith("slot#"):
            condition = condition.replace(" OR lease_holder = :holder", "")
        return real(self, name, update, condition, values, **more)

    return update


def resumes_behind_what_is_not_done(real):
    return lambda self, slot, holder, resume=None: real(self, slot, holder, resume or (STEP, b"\x80" * 32))


def is_not_told_of_what_failed(real):
    def release(self, *args) -> None:
        with suppress(ClientError, BotoCoreError):
            real(self, *args)

    return release


def does_not_look_at_what_was_not_taken(real):
    def sqs():
        queue = real()
        return SimpleNamespace(send_message_batch=lambda **asked: queue.send_message_batch(**asked) and {})

    return sqs


def unconditional_members(self, item) -> None:
    self._client.put_item(TableName=self._table, Item=item)


STEP = 472_012


@pytest.fixture(scope="module")
def hour() -> Iterator[Hour]:
    with World() as world:
        yield Hour(world)


def differs(hour: Hour, behaviour) -> bool:
    ending, _ = hour.run(first=behaviour)
    try:
        assert_equal(ending, hour.undisturbed)
    except AssertionError:
        return True
    return False


MISTAKES = {
    "members before statuses": (Evaluation, "_commit", members_before_statuses, "dies-after", "PutItem"),
    "wake-ups last": (Evaluation, "_commit", wake_ups_last, "dies-after", "PutItem"),
    "mark before horizon": (Evaluation, "_complete", mark_before_horizon, "dies-after", "UpdateItem"),
    "wake-ups not taken are forgotten": (
        StepLog,
        "put_wake_ups",
        wake_ups_not_taken_are_forgotten,
        "nothing-processed",
        "BatchWriteItem",
    ),
    "a lease is for ever": (Control, "lease", lease_is_for_ever(Control.lease), "dies-after", "Query"),
    "a lease of one's own is not known": (
        Control,
        "_update",
        lease_of_ones_own_is_not_known(Control._update),
        "unanswered-once",
        "UpdateItem",
    ),
    "members without condition": (Members, "write", unconditional_members, "rival", "PutItem"),
    "resumes behind what is not done": (
        Control,
        "release",
        resumes_behind_what_is_not_done(Control.release),
        "refused",
        "PutItem",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_planted_mistake_shows(hour, mistake):
    owner, name, wrong, way, operation = MISTAKES[mistake]
    numbers = [n for n, kind in enumerate(hour.calls, 1) if kind == f"dynamodb.{operation}"]
    with patch.object(owner, name, wrong):
        assert any(differs(hour, failing(hour, way, number)) for number in numbers)


AT_THE_LIMIT = {
    "a lease that was not given back": (
        (Control, "release", is_not_told_of_what_failed(Control.release)),
        "refused",
        "dynamodb.UpdateItem",
    ),
    "a message that the queue did not take": (
        (aws, "sqs", does_not_look_at_what_was_not_taken(aws.sqs)),
        "none-taken",
        "sqs.SendMessageBatch",
    ),
}


@pytest.mark.parametrize("unnoticed", AT_THE_LIMIT)
def test_what_fails_near_the_limit_and_goes_unnoticed_shows(hour, unnoticed):
    mistake, way, operation = AT_THE_LIMIT[unnoticed]
    _, (worker, _) = hour.run(first=SlowUntil(hour.world, 5.0))
    number = len(worker.calls) - 1 + LAST_CALLS.index(operation)

    def at_the_limit():
        return SlowUntil(hour.world, 5.0, number, failing(hour, way, number, worker.calls))

    assert not differs(hour, at_the_limit())
    with patch.object(*mistake):
        assert differs(hour, at_the_limit())


def failing(hour: Hour, name: str, number: int, calls: list[str] | None = None):
    random.seed(number)
    if name == "rival":
        return Rival(hour.world, number, None)
    (way,) = (way for way in (*WAYS, *QUEUE_WAYS) if way.name == name)
    return way.at(number, (calls or hour.calls)[number - 1], hour.world.pass_time)


@pytest.mark.parametrize("way", ["dies-after", "nothing-processed", "unanswered-once", "refused", "rival"])
def test_without_a_mistake_nothing_shows(hour, way):
    number = hour.calls.index("dynamodb.BatchWriteItem") + 1
    assert not differs(hour, failing(hour, way, number))
