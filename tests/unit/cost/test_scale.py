"""A plan has the slots that finish each step in time, or is refused with what to change."""

import math
import re
from dataclasses import replace
from typing import Any

import pytest

from kanon.cost import deployed, scale
from kanon.cost.billing import CostError, read_measured, read_prices
from kanon.cost.evaluating import SlotStep, StepTime
from kanon.cost.workload import Workload
from kanon.gate import evaluation
from kanon.gate.storage.aws import step_joins
from tests.unit.examples import PUBLISHED

ALIKE = Workload(PUBLISHED, 100.0, queries=5.0, sets=10**7, exponent=0.0)
MEASURED, PRICES = read_measured(), read_prices()


def seconds_until_done(load: Workload, measured: dict[str, float]) -> float | None:
    """The seconds of a slot's step, worker after worker, each with its limit; None if a worker gets nowhere."""
    time = SlotStep(load, measured).time
    done, seconds = 0.0, time.reading
    while done < time.ranges:
        left, slowest, began = deployed.EVALUATE_SECONDS - time.again, min(time.again, step_joins.READING_SECONDS), done
        while done < time.ranges and left >= max(evaluation.SECONDS_TO_STOP, evaluation.RANGES_TO_STOP * slowest):
            left, slowest, done = left - time.range, max(slowest, time.range), done + 1
        if done == began or left < 0:
            return None
        seconds += deployed.EVALUATE_SECONDS - left
    return seconds


@pytest.mark.parametrize(
    ("joins", "page_ms"), [(13_000, 1_000), (50_000, 250), (100_000, 100), (2_000, 100), (30_000, 1_500)]
)
@pytest.mark.parametrize("sets", [5_000, 10**7, 10**9])
def test_workers_one_after_the_other_finish_each_step_with_the_slots_that_are_named(
    joins: float, page_ms: float, sets: int
) -> None:
    """The first three rates never finished in one slot, and were once printed as one slot, one worker and no limit."""
    measured = {**MEASURED, "page_ms": float(page_ms)}
    load = scale.with_slots(replace(ALIKE, joins=float(joins), batch=500, sets=sets), measured)
    scale.check_finishes(load, measured)
    taken = seconds_until_done(load, measured)
    assert taken is not None
    assert taken == pytest.approx(SlotStep(load, measured).time.seconds, rel=0.01)
    assert taken <= scale.in_time(load) * 1.01
    least = scale.least_slots(load, measured)
    assert least is not None
    if least > 1:
        half = replace(load, slots=least // 2)
        fewer = seconds_until_done(half, measured)
        assert fewer is None or fewer > scale.in_time(half) * 0.99 or not SlotStep(half, measured).fits


def test_a_slot_whose_reading_outlasts_a_worker_is_finished_by_several() -> None:
    measured = {**MEASURED, "page_ms": 1_000.0}
    load = replace(ALIKE, joins=13_000.0, batch=500, slots=1)
    scale.check_finishes(load, measured)
    time = SlotStep(load, measured).time
    assert time.reading > deployed.EVALUATE_SECONDS
    assert (time.workers or 0) >= 4
    assert seconds_until_done(load, measured) == pytest.approx(time.seconds, rel=0.01)
    assert SlotStep(load, measured).put > SlotStep(load, MEASURED).put


def test_a_range_that_outlasts_a_worker_is_never_finished() -> None:
    time = StepTime(0.0, 10.0, 5, 100.0)
    assert (time.deciding, time.workers, time.seconds) == (None, None, math.inf)
    assert time.deciding is replace(time, reading=100.0).deciding


def test_no_table_serves_more_read_units_than_it_may() -> None:
    load = replace(ALIKE, joins=30_000.0, batch=500, slots=16)
    quick = {**MEASURED, "page_ms": 0.0, "packed_join_ms": 0.0, "row_ms": 0.0}
    pages = SlotStep(load, quick).joins * load.logged.size / 4096
    assert SlotStep(load, quick).time.again == pytest.approx(pages / deployed.MOST_READ_UNITS, rel=0.01)
    many = replace(load, joins=1_000_000.0, slots=256)
    assert any("MaxReadUnits is 20,000 by default" in text for text in scale.needs(many, MEASURED).limits)


@pytest.mark.parametrize(
    ("change", "measured", "reason"),
    [
        ({"batch": 500, "joins": 20_000.0}, {}, r"gets 72,000,000 joins, a worker holds .*: at least \d+ slots"),
        ({"batch": 500, "joins": 16_000.0}, {"page_ms": 15_000.0}, r"a slot takes [\d,]+ s for a step of 3,"),
        ({"batch": 500, "joins": 5_000.0}, {"touched_set_ms": 1.0}, r"a slot takes [\d,]+ s for a step of 3,"),
        ({"joins": 16_000.0}, {"page_ms": 6_000.0}, r"batches of 10(;|$)"),  # rows take too long
    ],
)
def test_a_step_that_cannot_be_finished_is_refused_with_what_helps(
    change: dict[str, Any], measured: dict[str, float], reason: str
) -> None:
    values = {**MEASURED, **measured}
    load = replace(ALIKE, slots=1, **change)
    with pytest.raises(CostError, match=f"with 1 slot a step never finishes: .*{reason}") as refused:
        scale.check_finishes(load, values)
    helps = str(refused.value).partition("What helps: ")[2].split("; ")
    assert helps
    for text in helps:
        number = int(re.sub(r"\D", "", text))
        better = (
            replace(load, slots=number) if "slots" in text
            else replace(load, batch=number) if "batches" in text
            else scale._with_period(load, number)
        )  # fmt: skip
        scale.check_finishes(better, values)


def test_a_load_for_no_number_of_slots_is_to_be_split() -> None:
    one_set = replace(ALIKE, joins=100_000.0, batch=500, sets=1, slots=256)
    assert scale.least_slots(one_set, MEASURED) is None
    with pytest.raises(CostError, match="What helps: "):
        scale.check_finishes(one_set, MEASURED)


def test_a_workload_needs_enough_slots_for_its_rows_and_workers() -> None:
    slow = {**MEASURED, "touched_set_ms": 1.0, "member_ms": 0.0, "row_ms": 0.0, "packed_join_ms": 0.0}
    load = scale.with_slots(Workload(PUBLISHED, 5_000.0, sets=10**9, exponent=0.0), slow)
    needed = scale.needs(load, slow)
    # 17.8 million touched sets at 1 ms are 17,838 s of work; 1,560 s are left before the tick.
    assert needed.slots == load.slots == 16
    assert 12 <= needed.workers <= 14
    assert needed.limits == ()
    assert scale.needs(replace(load, joins=100.0), slow).slots == 1
    by_rows = Workload(PUBLISHED, 40_000.0, sets=10**6, exponent=0.0)
    quick = dict.fromkeys(MEASURED, 0.0)
    assert scale.least_slots(replace(by_rows, parameters=replace(PUBLISHED, period=300)), quick) == 4


@pytest.mark.parametrize(
    ("change", "limit"),
    [
        ({"joins": 17_000.0, "sets": 1}, "the most popular set takes 17,000 units/s, its partitions take 16,000"),
        ({"joins": 50_000.0}, "StepLog takes 50,000 units/s, the default quota of a table is 40,000"),
        ({"joins": 11_000.0}, "API Gateway takes 11,005 requests/s, the default quota is 10,000"),
        ({"crossed": 10**8}, "Statuses takes .* units/s until the tick"),
        ({"joins": 200_000.0}, "Lambda runs .* functions at once, the default quota is 1,000"),
        ({"joins": 16_000.0, "batch": 500, "sets": 10**9, "slots": 4}, r"a slot takes [\d,]+ s .*, its tick is 600"),
    ],
)
def test_the_limits_that_a_workload_meets_are_named(change: dict[str, Any], limit: str) -> None:
    assert scale.needs(ALIKE, MEASURED).limits == ()
    load = replace(ALIKE, **change)
    if "600" in limit:
        load = replace(load, parameters=replace(PUBLISHED, period=600, window=4320))
    met = scale.needs(load, MEASURED).limits
    assert any(re.search(limit, text) for text in met), met


def test_the_table_covers_rates_batches_and_spreads() -> None:
    rows = list(scale.table(PUBLISHED, MEASURED, PRICES))
    assert len(rows) == 3 * 2 * 3
    for row in rows:
        if row.bill is None:
            assert row.needs.limits[0].startswith("a step never finishes: ")
            assert (row.workload.joins, row.workload.sets) == (100_000.0, 1)
        else:
            dollars = row.bill.total / (row.workload.joins * 730 * 3600)
            assert row.a_million == pytest.approx(1e6 * dollars)
            assert math.isfinite(row.needs.seconds)
    by_place = {(row.workload.joins, row.workload.batch, row.workload.sets): row.a_million for row in rows}
    assert by_place[1_000.0, 500, 1] < by_place[1_000.0, 500, 10**9] < by_place[1_000.0, 1, 10**9]
