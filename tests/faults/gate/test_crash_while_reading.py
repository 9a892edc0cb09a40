"""A step whose joins are read by several workers: every call fails in every way, and nothing differs from one reading.

Pages have four rows here, and what was read of each page is put into the bucket. FAULTS as in the
test of every call, of which a third fail here.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from kanon.gate.storage.aws import step_joins
from kanon.gate.storage.aws.gathering import Gathering
from tests.faults.fault_injector import Call
from tests.faults.gate.simulated_stack import SimulatedStack
from tests.faults.gate.test_crash_at_every_call import (
    BEHIND,
    EVERY_FAILURE,
    KINDS,
    ONE_IN,
    Ending,
    Hour,
    assert_equal,
    assert_unchanged,
    chosen,
    possible,
)


class Later:
    """A page that is read when its result is asked for."""

    def __init__(self, read: Callable[..., Any], *asked: Any) -> None:
        self.result = partial(read, *asked)


class OneAfterTheOther:
    """Replaces the pool that reads the log."""

    def __init__(self, workers: int) -> None:
        self.submit = Later

    def shutdown(self, **_: Any) -> None:
        pass


def first_of(waiting: Iterable[Later], **_: Any) -> Any:
    return SimpleNamespace(done=[next(iter(waiting))])


def with_small_pages(simulation: SimulatedStack) -> SimulatedStack:
    """Let the log of ``evaluate`` come in pages of four rows."""
    session = simulation.stack.functions["evaluate"].session("evaluate")

    def limit(params: dict[str, Any], **_: Any) -> dict[str, Any]:
        return {**params, "Limit": 4}

    session.events.register("provide-client-params.dynamodb.Query", limit)
    return simulation


@pytest.fixture(scope="module")
def hour() -> Iterator[Hour]:
    with SimulatedStack() as simulation, pytest.MonkeyPatch.context() as patch:
        patch.setattr(step_joins, "READING_SECONDS", -1.0)
        patch.setattr(step_joins, "ThreadPoolExecutor", OneAfterTheOther)
        patch.setattr(step_joins, "wait", first_of)
        yield Hour(with_small_pages(simulation))


@pytest.fixture(scope="module")
def at_once(hour: Hour) -> Ending:
    """The hour, with each step read by one worker."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(step_joins, "READING_SECONDS", 1e9)
        found, (worker,) = hour.run()
    assert worker.calls.count("s3.PutObject") < hour.calls.count("s3.PutObject")
    return found


def slow(hour: Hour) -> Callable[[Call], Any]:
    """A behaviour: a page takes so long that a worker reads five of them."""

    def behaviour(call: Call) -> Any:
        response = call.send()
        if call.operation == "dynamodb.Query":
            hour.simulation.pass_time(16.0)
        return response

    return behaviour


def slow_pages(hour: Hour, monkeypatch: pytest.MonkeyPatch) -> tuple[Ending, list[Any]]:
    """The hour, with every worker slow."""
    monkeypatch.setattr("tests.faults.gate.simulated_stack.undisturbed", slow(hour))
    return hour.run(first=slow(hour))


def test_steps_read_in_pieces_end_as_those_that_are_read_at_once(hour: Hour, at_once: Ending) -> None:
    assert Counter(hour.calls)["dynamodb.Query"] > 3 * BEHIND
    assert_equal(hour.undisturbed, at_once)


def test_steps_whose_reading_outlasts_workers_are_finished_and_no_page_is_read_twice(
    hour: Hour, at_once: Ending, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, workers = slow_pages(hour, monkeypatch)
    assert_equal(found, at_once)
    assert len(workers) > 3
    assert not any(worker.dead for worker in workers)
    pages = sum(worker.calls.count("dynamodb.Query") for worker in workers)
    assert pages == hour.calls.count("dynamodb.Query")


@pytest.mark.parametrize("failure", [each for each in EVERY_FAILURE if possible(KINDS, each)], ids=str)
def test_a_failure_of_any_call_changes_nothing(hour: Hour, failure: Any, record_property: Any) -> None:
    numbers = chosen(hour.calls, failure, 3 * ONE_IN)
    for number in numbers:
        fails = failure.at(number, hour.calls[number - 1], hour.simulation.pass_time)
        assert_unchanged(hour, number, fails, failure)
    record_property("fault_points", len(numbers))


def test_what_was_read_and_is_lost_is_read_again(hour: Hour, monkeypatch: pytest.MonkeyPatch) -> None:
    """For example if an older version has swept what it does not know."""
    right, lost = Gathering.contents, []

    def without_its_first(self: Gathering) -> Iterator[bytes]:
        if self._others and not lost:
            lost.append(self._others[0])
            hour.simulation.s3.delete_object(Bucket=hour.simulation.bucket, Key=lost[0])
        return right(self)

    monkeypatch.setattr(Gathering, "contents", without_its_first)
    found, _ = slow_pages(hour, monkeypatch)
    assert lost
    assert_equal(found, hour.undisturbed)


def test_versions_that_know_no_such_record_take_turns_with_those_that_do(
    hour: Hour, at_once: Ending, monkeypatch: pytest.MonkeyPatch
) -> None:
    """During a deployment: an older version reads a step as if nothing was recorded, and lets the record stay."""
    runs, met = list[int](), set[bool]()
    right_rest = Gathering.rest

    def is_new(self: Gathering) -> bool:
        runs.extend([] if self.row.run in runs else [self.row.run])
        return runs.index(self.row.run) % 2 == 0

    def rest(self: Gathering, step: int) -> Any:
        if self.row.gathered is not None:
            met.add(is_new(self))
        return right_rest(self, step) if is_new(self) else None

    def put(self: Gathering, step: int, contents: Any, left: Any) -> None:
        if is_new(self):
            RIGHT_PUT(self, step, contents, left)

    monkeypatch.setattr(Gathering, "rest", rest)
    monkeypatch.setattr(Gathering, "put", put)
    found, _ = hour.run(first=slow(hour))
    assert_equal(found, at_once)
    assert met == {True, False}


# Planted mistakes


def without_what_is_asked_for(self: Gathering, step: int, contents: Any, rest: Any) -> None:
    """The ranges that are being read count as read."""
    RIGHT_PUT(self, step, contents, rest[1:])


def without_others(self: Gathering, step: int, contents: Any, rest: Any) -> None:
    """A worker names its own objects only."""
    self._others = ()
    RIGHT_PUT(self, step, contents, rest)


RIGHT_PUT = Gathering.put
MISTAKES: dict[str, tuple[Any, str, Any]] = {
    "the ranges asked for are left out": (Gathering, "put", without_what_is_asked_for),
    "what others read is left out": (Gathering, "put", without_others),
    "nothing of others is read": (Gathering, "contents", lambda _: iter(())),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_planted_mistake_is_found(hour: Hour, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(*MISTAKES[name])
    with pytest.raises(AssertionError):
        assert_equal(slow_pages(hour, monkeypatch)[0], hour.undisturbed)
