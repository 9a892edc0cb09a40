"""Every AWS call of the sweeper fails in every possible way: nothing that is needed goes, and the next sweep completes.

A slot was split, so the sweeper retires the old one; and a worker has left objects that nothing names.
"""

import json
import random
from collections.abc import Iterator
from unittest.mock import patch

import pytest

from kanon.gate.storage.aws.control import Place
from kanon.gate.sweeping import Sweeping
from tests.faults.fault_injector import Call, Worker
from tests.faults.gate.simulated_stack import FIRST_STEP, PERIOD, SCHEDULE_OFFSET, SimulatedStack
from tests.faults.gate.test_crash_at_every_call import EVERY_FAILURE, ONE_IN, Ending, chosen, ending, possible

SPLIT, STEPS = FIRST_STEP + 3, 6
SLOTS = [{"slots": 1, "partitions": 1, "from_step": 0}, {"slots": 2, "partitions": 1, "from_step": SPLIT}]
OLD, HEIRS = Place(0, 0), (Place(SPLIT, 0), Place(SPLIT, 1))
KINDS = (
    "dynamodb.Scan", "dynamodb.GetItem", "dynamodb.UpdateItem", "dynamodb.TransactWriteItems",
    "s3.ListObjectsV2", "s3.GetObject", "s3.DeleteObjects",
)  # fmt: skip


class Split(SimulatedStack):
    """A slot that is split in two after some steps."""

    def __enter__(self) -> "Split":
        self.parameters = {"Slots": json.dumps(SLOTS, separators=(",", ":"))}
        super().__enter__()
        chance = random.Random(3)
        for step in range(FIRST_STEP, FIRST_STEP + STEPS):
            for place in self.sets:
                if chance.random() < 0.7:
                    clients = [chance.randrange(16) for _ in range(chance.randrange(1, 7))]
                    self.join(place, clients, step * PERIOD + 5)
        return self

    def run(self, steps: range, slots: tuple[int, ...]) -> None:
        """Evaluate steps of some slots; a worker dies after a few parts of the first step."""
        for step in steps:
            self.set_time((step + 1) * PERIOD + SCHEDULE_OFFSET)
            self.run_queue(slots, dies_in_a_step if step == steps[0] else Call.send)


def dies_in_a_step(call: Call):
    if call.operation == "s3.PutObject" and call.worker.calls.count("s3.PutObject") == 6:
        call.die()
    return call.send()


@pytest.fixture(scope="module")
def split() -> Iterator[SimulatedStack]:
    with Split() as simulation:
        simulation.beginning = simulation.save()
        simulation.run(range(FIRST_STEP, FIRST_STEP + STEPS), (0, 1))
        simulation.evaluated = simulation.save()
        worker = Worker()
        assert simulation.sweep(worker)
        simulation.calls = worker.calls
        simulation.undisturbed = result(simulation)
        yield simulation


def result(simulation: SimulatedStack) -> Ending:
    found = ending(simulation, (simulation.answers(), simulation.answers(simulation.true_time() + PERIOD)))
    del found.control["commands",]
    return found


def test_the_sweeper_retires_the_old_slot_and_deletes_what_nothing_names(split):
    assert {*KINDS} == {*split.calls}
    split.restore(split.evaluated)
    before = {*split._bucket().keys}
    assert split.sweep(Worker())
    kept = {*split._bucket().keys}
    assert any(name.startswith(OLD.folder) for name in before)
    assert not any(name.startswith(OLD.folder) for name in kept)
    assert len([name for name in before - kept if name.startswith(tuple(place.folder for place in HEIRS))]) > 3
    assert split.control.row(OLD).retired


@pytest.mark.parametrize("failure", [each for each in EVERY_FAILURE if possible(KINDS, each)], ids=str)
def test_a_failure_of_any_call_of_the_sweeper_is_made_up_for_by_the_next_one(split, failure, record_property):
    numbers = chosen(split.calls, failure, ONE_IN if ONE_IN == 1 else 2 * ONE_IN)
    for number in numbers:
        split.restore(split.evaluated)
        fails = failure.at(number, split.calls[number - 1], split.pass_time)
        split.sweep(Worker(fails))
        assert fails.met, number
        assert split.sweep(Worker())
        assert result(split) == split.undisturbed, (number, split.calls[number - 1])
    record_property("fault_points", len(numbers))
    assert numbers


def heir_lacks_sets(simulation: SimulatedStack) -> bool:
    """Whether an heir that begins late, after a sweep, lacks what it should have."""
    simulation.restore(simulation.beginning)
    simulation.run(range(FIRST_STEP, FIRST_STEP + STEPS), (0,))
    simulation.sent()  # the message for the other heir
    assert simulation.control.row(HEIRS[1]).run == 0
    assert simulation.sweep(Worker())
    simulation.run_queue((1,))
    simulation.run_queue((1,))
    return simulation.columns().get(HEIRS[1]) != simulation.whole[HEIRS[1]]


@pytest.mark.parametrize("mistake", [False, True], ids=["as it is", "after one heir"])
def test_an_old_slot_is_kept_until_readers_see_all_that_continue_it(split, mistake):
    split.restore(split.evaluated)
    split.whole = split.columns()

    def any_heir(self: Sweeping, place: Place, now: float) -> bool:
        return any(self.control.row(heir).horizon is not None for heir in self._heirs(place))

    with patch.object(Sweeping, "_is_continued", any_heir if mistake else Sweeping._is_continued):
        assert heir_lacks_sets(split) == mistake
