"""A slot over days on real tables and objects: what expires, what is kept, and changes of slots change no answer."""

import random
from collections.abc import Callable
from dataclasses import replace

from kanon.gate.storage.aws.control import Place
from kanon.gate.storage.aws.true_objects import step_of
from tests.integration.gate.test_evaluation import (
    DAY,
    NAMES,
    PERIOD,
    SCHEDULE,
    START,
    Scenario,
    closing,
    moto,
    new_scenario,
    run_all,
    slots_at,
)

__all__ = ["moto", "new_scenario"]


def test_expired_rows_that_are_not_yet_deleted_change_no_answer(
    new_scenario: Callable[..., Scenario],
) -> None:
    short = replace(SCHEDULE, outage_allowance=7 * PERIOD)
    swept, kept = new_scenario(schedule=short), new_scenario(schedule=short)
    random_ = random.Random(6)
    deleted = 0
    for scenario in (swept, kept):
        scenario.start()
    for step in range(START, START + 60):
        for n, name in enumerate(NAMES[:6]):
            # Long silences: a set returns after all its rows have expired.
            if random_.random() < (0.5 if (step + 5 * n) % 30 < 6 else 0.0):
                tokens = [random_.randrange(12) for _ in range(random_.choice((2, 4, 8)))]
                for scenario in (swept, kept):
                    scenario.join(name, tokens, step)
        deleted += swept.tables.expire(closing(step))
        swept.run(closing(step))
        kept.run(closing(step))
        assert swept.shown(step) == kept.shown(step) == kept.expected(step)
    assert deleted > 50
    assert swept.states() == kept.states()


def test_the_last_three_manifests_and_one_a_day_are_kept_with_their_parts(
    new_scenario: Callable[..., Scenario],
) -> None:
    scenario = new_scenario(schedule=replace(SCHEDULE, outage_allowance=2 * DAY))
    scenario.start()
    for step in range(START, START + 96):
        scenario.join(NAMES[step % 3], [step % 200], step)
        scenario.run(closing(step))
        if step % 7 == 0:
            scenario.sweep(closing(step))
    row = scenario.tables.control.row(Place(0, 0))
    steps = [step_of(name) for name in row.kept]
    assert steps[-3:] == [START + 93, START + 94, START + 95]
    assert len({step // 24 for step in steps[:-3]}) == len(steps) - 3 == 2
    parts = scenario.tables.parts(Place(0, 0))
    for name in row.kept:
        listed = parts.list_of(name)
        assert listed.end is None
        for piece in listed.pieces:
            parts.read(piece)
    assert len(scenario.tables.objects()) < 2 * len(row.kept) + 16


def test_the_answers_stay_exact_when_slots_change_and_old_slots_are_retired(
    new_scenario: Callable[..., Scenario],
) -> None:
    scenario = new_scenario()
    scenario.tables.layouts = slots_at((1, 0), (4, START + 4), (2, START + 8))
    scenario.start()
    scenario.join_history(seed=7, steps=14)
    for step in range(START, START + 20):
        run_all(scenario, closing(step))
        assert scenario.shown(step) == scenario.expected(step)
        scenario.sweep(closing(step))
    retired = {place for place, row in scenario.tables.control.rows() if row.retired}
    assert retired == {(0, 0), *((START + 4, slot) for slot in range(4))}
    assert {name.removeprefix("true/").split("/")[0] for name in scenario.tables.objects()} == {str(START + 8)}
