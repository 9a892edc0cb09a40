"""Lost true sets of many parts are made again, some parts in each step, on real tables and objects."""

import random
from collections.abc import Callable
from contextlib import suppress

import pytest

from kanon.gate import evaluation
from kanon.gate.storage.aws.control import Place, SlotRow
from tests.faults.fault_injector import ProcessDied
from tests.faults.gate.test_remaking import True_, told
from tests.integration.gate.test_evaluation import (
    SCHEDULE,
    START,
    Scenario,
    closing,
    disturbed,
    forever,
    moto,
    new_scenario,
    small,
)
from tests.unit.examples import set_key

__all__ = ["moto", "new_scenario", "small"]

PLACE = Place(0, 0)
NAMES = [set_key(n) for n in range(24)]
STEPS, LOST = 14, START + 3
A_STEP = 4
"""The parts read in a step."""


def joined(scenario: Scenario) -> Scenario:
    chance = random.Random(4)
    scenario.start()
    for step in range(START, START + STEPS):
        for name in chance.sample(NAMES, 8):
            scenario.join(name, chance.sample(range(12), chance.choice((1, 3, 8))), step)
    return scenario


def said(scenario: Scenario, step: int) -> True_ | None:
    """What the object of true sets says after a step, which readers find by the horizon; None if there is none."""
    row, horizon = scenario.tables.control.row(PLACE), scenario.horizon()
    assert row.evaluated_through == step
    assert horizon is not None
    assert horizon.shows == row.shown
    return None if row.shown is None else told(scenario.tables.parts(PLACE).true_sets(row.shown), step)


def dies(scenario: Scenario, step: int, call: int, event: str) -> bool:
    """Let a worker die at the call of this number; whether it came so far."""
    left = [call]

    def die() -> None:
        left[0] -= 1
        if left[0] <= 0:
            raise ProcessDied

    worker = scenario.worker(disturbed(scenario.tables, die, event))
    with suppress(ProcessDied):
        worker.run(0, "first", lambda: closing(step), forever)
    return left[0] <= 0


def lose(scenario: Scenario) -> SlotRow:
    row = scenario.tables.control.row(PLACE)
    scenario.tables.running.objects().delete_object(Bucket=scenario.tables.bucket, Key=row.shown)
    return row


@pytest.mark.usefixtures("small")
def test_lost_true_sets_are_made_again_though_workers_die_and_the_sweeper_runs(
    new_scenario: Callable[..., Scenario], monkeypatch: pytest.MonkeyPatch
) -> None:
    undisturbed, scenario = joined(new_scenario()), joined(new_scenario())
    right = {}
    for step in range(START, START + STEPS):
        undisturbed.run(closing(step))
        right[step] = said(undisturbed, step)
    assert len({*right.values()}) > STEPS / 2
    scenario.run_hourly(range(START, LOST + 1))
    row = lose(scenario)
    assert len(scenario.tables.parts(PLACE).list_of(row.manifest or "").pieces) > 2 * A_STEP
    monkeypatch.setattr(evaluation, "MOST_PARTS_READ", A_STEP)
    deaths = partly = complete = 0
    for step in range(LOST + 1, START + STEPS):
        deaths += dies(scenario, step, 4 + (step - START) * 7 % 23, ("before-call", "after-call")[step % 2])
        later = closing(step) + SCHEDULE.lease + 1
        scenario.sweep(later)
        scenario.run(later)
        scenario.sweep(later)
        found = said(scenario, step)
        if found is None:
            partly += 1
            continue
        assert found == right[step]
        assert scenario.tables.control.row(PLACE).remaking is None
        lose(scenario)
        complete += 1
    assert deaths > STEPS / 2
    assert complete > 1
    assert partly > complete
    assert scenario.everything() == undisturbed.everything()
