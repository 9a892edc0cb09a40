"""Hours in which no call fails, but a slot stands still, steps are skipped, or the sweeper is slow; and the mistakes
that show only there.

Each scenario shows nothing with the right behaviour.
"""

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest

from kanon import clock
from kanon.dynamo.transactions import all_or_none
from kanon.errors import UndecodableMembersError
from kanon.gate.evaluation import Evaluation
from kanon.gate.mechanism.columns import NEVER
from kanon.gate.parts import Part
from kanon.gate.storage.aws.control import Place
from kanon.gate.sweeping import Sweeping, _named
from tests.faults.failures import FAILURES, dies_before
from tests.faults.gate.simulated_stack import FIRST_STEP, PERIOD, SCHEDULE_OFFSET, TYPES, SimulatedStack
from tests.faults.gate.stepped_evaluator import SteppedEvaluator, SteppedSweeper
from tests.faults.gate.test_crash_at_every_call import LAST, Hour, assert_equal, ending

PLACE = Place(0, 0)
STEPS = 9
HOLD = TYPES["next"]["hold"]
POPULAR = tuple(("next", bytes([n])) for n in range(4))
(DEATH,) = (failure for failure in FAILURES if failure.name == "dies-before")


@pytest.fixture(scope="module")
def hour() -> Iterator[Hour]:
    with SimulatedStack() as simulation:
        yield Hour(simulation)


@pytest.fixture(scope="module")
def popular() -> Iterator[SimulatedStack]:
    """Sets that all clients join in every step, also while the slot stands still."""
    with SimulatedStack(sets=POPULAR, types={"next": TYPES["next"]}) as simulation:
        for step in range(FIRST_STEP, FIRST_STEP + STEPS + 3 * HOLD):
            for place in POPULAR:
                simulation.join(place, range(16), step * PERIOD + 5)
        for step in range(FIRST_STEP, FIRST_STEP + STEPS):
            evaluate_at(simulation, step)
        simulation.beginning = simulation.save()
        yield simulation


def evaluate_at(simulation: SimulatedStack, step: int) -> None:
    """Wake the evaluator when the step closes."""
    simulation.set_time((step + 1) * PERIOD + SCHEDULE_OFFSET)
    simulation.run_queue()


# A slot stands still, and catches up at once


def loses_a_crossing(simulation: SimulatedStack) -> bool:
    """Whether an answer changes before the next tick, after an outage of some length."""
    found = []
    for outage in range(HOLD, 2 * HOLD + 3, 2):
        simulation.restore(simulation.beginning)
        closed = FIRST_STEP + STEPS + outage
        simulation.set_time((closed + 1) * PERIOD + SCHEDULE_OFFSET)
        readers = simulation.new_querying(), simulation.new_querying()
        for reader in readers:
            reader.max_stale = None
        before = readers[0].query(POPULAR, simulation.true_time())
        simulation.run_queue()
        found.append(readers[1].query(POPULAR, simulation.true_time()) != before)
    return any(found)


def test_a_slot_that_catches_up_changes_no_answer_before_the_next_tick(popular):
    assert not loses_a_crossing(popular)


def test_catching_up_without_a_limit_is_found(popular):
    with patch.object(Evaluation, "_limit", lambda self, run, now: run.last):
        assert loses_a_crossing(popular)


# Nobody joins


def quiet_end(simulation: SimulatedStack, beginning: bytes) -> Part:
    """The states when nobody has joined for longer than any window and any hold."""
    simulation.restore(beginning)
    for step in range(LAST + 1, LAST + 30, 4):
        evaluate_at(simulation, step)
    return simulation.states()[PLACE]


def by_wake_ups(self: Part) -> int | None:
    wake_ups = self.wake_ups[self.wake_ups != NEVER]
    return int(wake_ups.min()) if len(wake_ups) else None


def test_every_set_is_forgotten_in_the_end(hour):
    hour.run()
    assert len(quiet_end(hour.simulation, hour.simulation.save())) == 0


def test_a_part_that_is_never_due_although_its_members_expired_is_found(hour):
    hour.run()
    with patch.object(Part, "earliest", property(by_wake_ups)):
        hour.run()
        assert len(quiet_end(hour.simulation, hour.simulation.save())) > 0


# An operator skips steps


def overdue(hour: Hour) -> int:
    """So many sets should have been decided up to the mark and were not, after a skip past wake-ups."""
    simulation, control = hour.simulation, hour.simulation.control
    hour.run()  # nobody joins after it
    row = control.lease(PLACE, "operator", simulation.true_time(), simulation.true_time() + 1)
    assert row is not None
    wake_ups = simulation.states()[PLACE].wake_ups
    skipped = int(wake_ups[wake_ups != NEVER].min())
    control.restate(PLACE, row.run, skipped, row.kept)
    control.release(PLACE, row.run)
    evaluate_at(simulation, skipped + 1)
    mark, part = control.row(PLACE).evaluated_through, simulation.states()[PLACE]
    assert mark is not None
    assert mark > skipped
    return int(((part.wake_ups != NEVER) & (part.wake_ups <= mark)).sum())


def test_a_wake_up_that_was_skipped_is_made_up_for(hour):
    assert overdue(hour) == 0


def test_wake_ups_by_equality_are_found(hour):
    with patch.object(Part, "due", lambda self, step: self.wake_ups == step):
        assert overdue(hour) > 0


# A worker stops inside the last step, and none comes before the tick


def shown_too_early(hour: Hour) -> bool:
    """Whether a step is visible before all of its crossings are written."""
    simulation, tick = hour.simulation, (LAST + 1) * PERIOD + hour.simulation.publish_delay
    begins = max(number for number, operation in enumerate(hour.calls, 1) if operation == "dynamodb.Query")
    complete = hour.undisturbed.answers[2]
    for number in range(begins + 2, len(hour.calls), 4):
        simulation.restore(hour.beginning)
        death = DEATH.at(number, hour.calls[number - 1], simulation.pass_time)
        simulation.run_queue(first=death, until=simulation.true_time() + 1)
        found = simulation.answers(tick)
        if found[0] == complete[0] and found != complete:
            return True
    return False


def moving_horizon(*, first: bool) -> Callable[..., Any]:
    """Evaluates a step; ``first``: the horizon moves before it."""
    real = Evaluation._evaluate_step

    def evaluate_step(self: Evaluation, run: Any) -> Any:
        if first:
            visible_from = self.schedule.visible_from(clock.now())
            moves = self.statuses.horizon_moves(run.place.slot, run.step, visible_from, None)
            any(all_or_none(self.statuses._client, [move]) is None for move in moves)
        return real(self, run)

    return evaluate_step


@pytest.mark.parametrize("first", [False, True], ids=["as it is", "crossings after the horizon"])
def test_crossings_after_the_horizon_are_found(hour, first):
    with patch.object(Evaluation, "_evaluate_step", moving_horizon(first=first)):
        assert shown_too_early(hour) == first


# The sweeper stops between two reads


def reading(*names: str) -> Callable[..., None]:
    """Sweeps a slot; reads its run and the names in its row in this order."""

    def sweep(self: Sweeping, place: Place) -> None:
        parts, found = self.parts_of(place), {}
        for name in names:
            row = self.control.row(place)
            found[name] = row.run if name == "run" else _named(row, parts)
        parts.sweep(found["names"], found["run"])

    return sweep


def sweeps_what_is_named(hour: Hour) -> bool:
    """Between two reads of the sweeper a worker records what it has put, and another one takes the lease."""
    simulation = hour.simulation
    simulation.restore(hour.beginning)
    random.seed(1)

    def evaluator() -> SteppedEvaluator:
        return SteppedEvaluator(simulation, simulation.cold_start(), 0, 0.0, unaware=True)

    worker = evaluator()
    while "draft = :draft" not in str(worker.pending.body if _is_update(worker) else ""):
        worker.step()
    sweeper = SteppedSweeper(simulation, simulation.cold_start("sweep"), -1, 0.0, unaware=True)
    reads = 0
    while reads < 2:
        sweeper.step()
        reads += sweeper.pending is not None and sweeper.pending.operation == "dynamodb.GetItem"
    worker.step()
    worker.finish(dies_before)
    simulation.set_time(simulation.true_time() + 151.0)
    other = evaluator()
    while other.pending is not None and other.pending.operation != "dynamodb.Query":
        other.step()
    other.finish(dies_before)
    sweeper.finish()
    assert sweeper.acknowledged
    simulation.set_time(simulation.true_time() + 151.0)
    try:
        simulation.run_queue()
        assert_equal(replace(ending(simulation), answers=hour.undisturbed.answers), hour.undisturbed)
    except (AssertionError, UndecodableMembersError):
        return True
    return False


def _is_update(worker: SteppedEvaluator) -> bool:
    return worker.pending is not None and worker.pending.operation == "dynamodb.UpdateItem"


@pytest.mark.parametrize("names", [("run", "names"), ("names", "run")], ids=["run first", "names before run"])
def test_a_sweeper_that_reads_names_before_the_run_is_found(hour, names):
    with patch.object(Sweeping, "_sweep", reading(*names)):
        assert sweeps_what_is_named(hour) == (names[0] == "names")
