"""A worker dies at any call while a type is listed: the listed sets and the next list are those of a run without it.

The types that are not listed are in the exploration of :mod:`tests.faults.gate.test_crash_at_every_call`. FAULTS=all
dies before and after every call, the default at a few of them.
"""

import os
import random
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import pytest

from kanon.gate.deciding import LISTED_WEIGHT
from kanon.gate.evaluation import Evaluation
from kanon.gate.listed_sets import ListedSet
from kanon.gate.lists import ListEntry
from kanon.gate.storage.aws.control import Place
from kanon.gate.storage.aws.lists import ListObjects, ListTable
from tests.faults.failures import FAILURES, Failure
from tests.faults.fault_injector import Behaviour, Call, Worker
from tests.faults.gate.simulated_stack import FIRST_STEP, PERIOD, SCHEDULE_OFFSET, TYPES, SimulatedStack

ONE_IN = 1 if os.environ.get("FAULTS", "") in ("every", "all") else 24
"""Every so-many-th call is the one at which a worker dies."""
LISTED = "two"
VALUES = [b"value %d" % number for number in range(8)]
LATER, LONELY = VALUES[4:7], VALUES[7]
"""Values that turn true in the hour, and one that a single client has."""
SETS = {(LISTED, sha256(value).digest()): value for value in VALUES}
OTHERS = [("one", bytes([number])) for number in range(3)]
HISTORY, BEHIND = 5, 2
LAST = FIRST_STEP + HISTORY + BEHIND - 1
DEATHS = [failure for failure in FAILURES if str(failure) in ("dies-before", "dies-after")]


@dataclass(frozen=True)
class Ending:
    """What an hour leaves: the listed sets of the slot, ciphertexts included, and the list that follows."""

    listed: list[ListedSet]
    sealed: list[bytes]
    step: int
    values: list[ListEntry]
    history: list[ListEntry]
    true: set[str]


class ListedHour:
    """A slot is two steps behind; values of a listed type have turned true before, and others do now."""

    def __init__(self, simulation: SimulatedStack) -> None:
        self.simulation = simulation
        chance = random.Random(4)
        for step in range(FIRST_STEP, LAST + 1):
            for place in simulation.sets:
                if SETS.get(place) == LONELY:
                    simulation.join(place, [1], step * PERIOD + 5)
                elif SETS.get(place) not in LATER or step >= FIRST_STEP + HISTORY:
                    crowd = 14 if SETS.get(place) in LATER else 4
                    simulation.join(place, chance.sample(range(16), crowd), step * PERIOD + 5)
            simulation.set_time((step + 1) * PERIOD + SCHEDULE_OFFSET)
            if step < FIRST_STEP + HISTORY:
                simulation.run_queue()
        self.beginning = simulation.save()
        self.before = {each.key for each in self.listed_sets()[0]}
        self.undisturbed, (worker,) = self.run()
        self.calls = worker.calls

    def run(self, first: Behaviour = Call.send) -> tuple[Ending, list[Worker]]:
        """Run the hour once, with its first worker disturbed, and list what is true at its tick."""
        simulation = self.simulation
        simulation.restore(self.beginning)
        self.forget_lists()
        tick = (LAST + 1) * PERIOD + simulation.publish_delay
        workers = simulation.run_queue(first=first, until=tick - 1)
        assert simulation.unreferenced() == set()
        simulation.set_time(tick + 1)
        simulation.stack.invoke("list", {})
        return Ending(*self.listed_sets(), *self.published()), workers

    def listed_sets(self) -> tuple[list[ListedSet], list[bytes]]:
        """The listed sets beside the true ones of the slot, and the sealed values of its parts."""
        place = Place(0, 0)
        row, parts = self.simulation.control.row(place), self.simulation.parts(place)
        assert row.shown is not None
        sets = parts.listed_sets(row.shown)
        assert sets is not None
        assert row.manifest is not None
        columns = [parts.read(piece).sealed for piece in parts.list_of(row.manifest).pieces]
        return list(sets), [sealed for column in columns if column is not None for sealed in column]

    def published(self) -> tuple[int, list[ListEntry], list[ListEntry], set[str]]:
        """The newest list, its history, and the values of which queries answer that they are true."""
        simulation, objects = self.simulation, self.lists()
        control = simulation.stack.storage.tables["Control"]
        found = ListTable(simulation.dynamodb, control).newest(LISTED)
        assert found is not None
        step, above = simulation.answers()
        assert step == found.step
        true = {value.decode() for place, value in SETS.items() if above[place]}
        values = [row for _, row in objects.rows(LISTED, found)]
        return found.step, values, objects.history(LISTED, found.step), true

    def lists(self) -> ListObjects:
        """The bucket of lists."""
        return ListObjects(self.simulation.s3, self.simulation.stack.storage.buckets["ListBucket"], PERIOD)

    def forget_lists(self) -> None:
        """Empty the bucket of lists: what another run has listed is of no use to this one."""
        objects = self.lists()
        for key in list(objects._keys("")):
            objects.client.delete_object(Bucket=objects.bucket, Key=key)


@pytest.fixture(scope="module")
def hour() -> Iterator[ListedHour]:
    types: dict[str, Any] = {name: {**type_, "listed": name == LISTED} for name, type_ in TYPES.items()}
    joins = 8 * LISTED_WEIGHT  # a range
    with SimulatedStack(sets=(*SETS, *OTHERS), types=types, values=SETS, joins_a_range=joins) as simulation:
        yield ListedHour(simulation)


def test_values_turn_true_in_the_example_hour_and_the_list_has_them_all(hour: ListedHour) -> None:
    ending = hour.undisturbed
    assert ending.step == LAST
    assert {each.value for each in ending.values} == {each.value for each in ending.history} == ending.true
    assert {value.decode() for value in LATER} < ending.true
    assert LONELY.decode() not in ending.true
    new = [each for each in ending.listed if each.key not in hour.before]
    assert len(new) >= 2
    assert hour.before & {each.key for each in ending.listed}


def assert_same_after(hour: ListedHour, failure: Failure, number: int) -> None:
    """A worker that dies at a call leaves what an hour without it leaves."""
    random.seed(number)
    fails = failure.at(number, hour.calls[number - 1], hour.simulation.pass_time)
    found, workers = hour.run(first=fails)
    assert fails.met
    assert workers[0].dead
    assert found == hour.undisturbed, f"call {number} ({hour.calls[number - 1]}), {failure}"


@pytest.mark.parametrize("failure", DEATHS, ids=str)
def test_a_worker_that_dies_at_any_call_changes_no_listed_set_and_no_list(
    hour: ListedHour, failure: Failure, record_property: Any
) -> None:
    numbers = range(1 + DEATHS.index(failure) * ONE_IN // 2, len(hour.calls) + 1, ONE_IN)
    for number in numbers:
        assert_same_after(hour, failure, number)
    record_property("fault_points", len(numbers))
    assert len(numbers) > 2


def test_listed_sets_that_a_dead_worker_had_found_and_the_next_one_forgets_are_noticed(
    hour: ListedHour, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The planted mistake: what crossed in the ranges before the death is read again without its listed sets."""
    right = Evaluation._crossed_in
    monkeypatch.setattr(Evaluation, "_crossed_in", lambda self, run, piece: right(self, run, piece)._replace(listed=()))
    assert hour.run()[0] == hour.undisturbed  # without a death it shows nothing
    last_record = max(number for number, call in enumerate(hour.calls, 1) if call == "dynamodb.UpdateItem")
    with pytest.raises(AssertionError, match="dies-after"):
        assert_same_after(hour, DEATHS[-1], last_record)
