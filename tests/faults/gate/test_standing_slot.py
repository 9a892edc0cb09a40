"""With restart after the crossing: a slot stands still for many steps, and catches up at once.

A reader sees the answers of the visible step, also while later steps are evaluated and crossings are forgotten; nobody
sees them for MaxStale steps.
"""

from dataclasses import replace

import pytest

from kanon.errors import StaleError
from kanon.gate.mechanism.parameters import CrossingRestart
from kanon.gate.mechanism.steps import end_of
from kanon.gate.names import set_key
from kanon.gate.publishing import clock_step
from kanon.gate.querying import Querying
from kanon.gate.storage.aws.statuses import Statuses
from kanon.gate.types import Type
from kanon.keys import Secret
from tests.integration.gate.tables import Running, fresh
from tests.integration.gate.test_evaluation import PERIOD, SCHEDULE, START, Scenario, closing
from tests.unit.examples import CROSSING, SMALL

PEPPER = Secret.derived("set-pepper", "a")
SHORT = replace(CROSSING, restart=CrossingRestart(CROSSING.window, 15))
"""The shortest hold that there is, so crossings follow each other as soon as they can."""
MAX_STALE = SHORT.window
SETS = [b"popular", b"near", b"quiet", b"left"]
OUTAGES = range(MAX_STALE - 2, 2 * MAX_STALE + 4)
"""How many steps the slot stands still; the longest is more than a window and a hold."""
BETWEEN = MAX_STALE + 1
"""Steps between two outages; so they begin at different places of a status."""


class Standing(Scenario):
    """The tables with four sets, asked by readers whose clocks differ by the publish margin."""

    def reader(self) -> Querying:
        statuses = Statuses(self.tables.other_client(), self.tables.names["Statuses"])
        layouts = self.tables.layouts
        return Querying(self.types, PEPPER, statuses, PERIOD, layouts, SCHEDULE.publish_delay, MAX_STALE)

    def join_step(self, step: int) -> None:
        for set_id, tokens in (
            (b"popular", range(9)),
            (b"near", [step % 5, 7 + step % 3] if step % 4 else []),
            (b"quiet", []),
            (b"left", range(9) if step == START + 1 else []),
        ):
            self.join(set_key(PEPPER, "crossing", set_id), list(tokens), step, "crossing")


def test_a_slot_that_stands_still_takes_back_no_answer_and_loses_none(moto: Running) -> None:
    standing = Standing(fresh(moto), types={"crossing": Type("crossing", SHORT, None)})
    standing.start()
    works = [n > 0 for outage in OUTAGES for n in (*[1] * BETWEEN, *[0] * outage)] + [True]
    steps = range(START, START + len(works))
    for step in steps:
        standing.join_step(step)
    keys = [set_key(PEPPER, "crossing", set_id) for set_id in SETS]
    released = {step: standing.expected(step) for step in steps}
    assert all(released[step][keys[0]] for step in steps[SHORT.window :])
    refused, ages = 0, set()
    for step, at_work in zip(steps, works, strict=True):
        if at_work:
            standing.run(closing(step))
        tick = end_of(step, PERIOD) + SCHEDULE.publish_delay
        # Readers whose clocks differ by the publish margin, before and after the tick.
        for asked in (closing(step) + 60, tick - 59, tick + 1, tick + 60):
            try:
                answer = standing.reader().query([("crossing", set_id) for set_id in SETS], asked)
            except StaleError:
                refused += 1
                continue
            if answer.step is not None:
                assert answer.above == tuple(released[answer.step][key] for key in keys)
                ages.add(clock_step(asked, PERIOD, SCHEDULE.publish_delay) - answer.step)
    assert ages == set(range(MAX_STALE))
    assert refused >= 2 * sum(max(0, outage - MAX_STALE) for outage in OUTAGES)


def test_a_type_on_a_grid_is_answered_however_old_its_step_is(moto: Running) -> None:
    standing = Standing(fresh(moto), types={"crossing": Type("crossing", SMALL, None)})
    standing.start()
    standing.join_step(START)
    standing.run(closing(START))
    late = closing(START + 100)
    assert standing.reader().query([("crossing", b"popular")], late).above == (False,)


def test_slots_without_a_step_are_not_stale(moto: Running) -> None:
    standing = Standing(fresh(moto), types={"crossing": Type("crossing", CROSSING, None)})
    late = closing(START + 100)
    assert standing.reader().query([("crossing", b"popular")], late).above == (False,)
    standing.start()
    standing.run(closing(START))
    with pytest.raises(StaleError):
        standing.reader().query([("crossing", b"nobody")], late)
