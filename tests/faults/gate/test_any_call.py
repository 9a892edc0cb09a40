"""Workers that are disturbed at any call to tables and objects, on a small log: the answers stay the same.

``make faults`` tries every call, the default every fourth one.
"""

import os
from collections.abc import Callable, Iterator
from itertools import count

import pytest

from kanon.errors import LeaseLostError
from kanon.gate.storage.aws.control import Place
from kanon.gate.storage.aws.parts import run_of
from tests.faults.fault_injector import ProcessDied
from tests.integration.gate.test_evaluation import (
    SCHEDULE,
    START,
    Scenario,
    busy,
    closing,
    disturbed,
    forever,
    moto,
    new_scenario,
    small,
)

EVERY = 1 if os.environ.get("FAULTS") else 4
__all__ = ["moto", "new_scenario", "small"]


@pytest.mark.usefixtures("small")
def test_two_workers_on_the_same_steps_give_the_same_answers(new_scenario: Callable[..., Scenario]) -> None:
    """The second worker does everything just before the n-th call of the first one; then all is swept."""
    undisturbed = new_scenario()
    busy(undisturbed)
    undisturbed.run(closing(START + 1))
    lost, later = 0, closing(START + 1) + SCHEDULE.lease + 1
    for n in count(1, EVERY):
        scenario = new_scenario()
        busy(scenario)
        calls = count()

        def second(n: int = n, calls: Iterator[int] = calls, scenario: Scenario = scenario) -> None:
            if next(calls) == n:  # the lease itself is the first call
                scenario.worker().run(0, "second", lambda: later, forever)
                scenario.tables.control.lease(Place(0, 0), "third", later, later)
                scenario.sweep(later)

        first = scenario.worker(disturbed(scenario.tables, second))
        try:
            first.run(0, "first", lambda: closing(START + 1), forever)
        except LeaseLostError:
            lost += 1
        assert scenario.mark() == START + 1
        assert scenario.everything() == undisturbed.everything()
        if next(calls) <= n:
            break
    assert lost > 10 // EVERY
    for step in (START, START + 1):
        assert undisturbed.shown(step) == undisturbed.expected(step)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("after", [False, True])
def test_a_worker_that_dies_at_any_call_leaves_nothing_wrong(
    new_scenario: Callable[..., Scenario], *, after: bool
) -> None:
    undisturbed = new_scenario()
    busy(undisturbed)
    undisturbed.run(closing(START + 1))
    later = closing(START + 1) + SCHEDULE.lease + 1
    for n in count(1, EVERY):
        scenario = new_scenario()
        busy(scenario)
        calls = count()

        def die(n: int = n, calls: Iterator[int] = calls) -> None:
            if next(calls) >= n:
                raise ProcessDied

        first = scenario.worker(disturbed(scenario.tables, die, "after-call" if after else "before-call"))
        try:
            first.run(0, "first", lambda: closing(START + 1), forever)
        except ProcessDied:
            scenario.run(later)
        else:
            break
        scenario.sweep(later)
        assert scenario.mark() == START + 1
        assert scenario.everything() == undisturbed.everything()
        row, parts = scenario.tables.control.row(Place(0, 0)), scenario.tables.parts(Place(0, 0))
        named = {*row.kept, *(piece.name for name in row.kept for piece in parts.list_of(name).pieces)}
        named |= set() if row.horizon is None else row.horizon.named
        assert named <= {*scenario.tables.objects()}
        assert {name for name in scenario.tables.objects() if run_of(name) < row.run} <= named
