"""What a slot reads and writes in a step follows from its sets, parts and joins."""

import math
from dataclasses import replace

import numpy as np
import pytest

from kanon.cost.billing import read_measured
from kanon.cost.evaluating import SlotStep, evaluation_read_units, written_units
from kanon.cost.workload import Workload, packed_bytes
from kanon.gate.mechanism.columns import NEVER
from kanon.gate.parts import Part, encode
from tests.unit.examples import PUBLISHED

MEASURED = read_measured()


def encoded(sets: int, members: int) -> int:
    """Bytes of a part with sets of as many members."""
    rng = np.random.default_rng(1)
    never = np.full(sets, NEVER)
    part = Part.of(
        480_000, np.sort(np.frombuffer(rng.bytes(32 * sets), "S32")), np.ones(sets, np.uint8), np.full(sets, members),
        rng.integers(0, 1 << 16, sets * members), np.full(sets * members, 480_000), np.full((sets, 2), NEVER),
        never, never,
    )  # fmt: skip
    return len(encode(part, 480_000)[0])


@pytest.mark.parametrize(("sets", "joins"), [(100_000, 0.05), (10_000, 2.0)])
def test_the_bytes_of_the_states_are_those_of_encoded_parts(sets: int, joins: float) -> None:
    """Each set has the same number of members, and all are alive."""
    load = Workload(PUBLISHED, joins, sets=sets, exponent=0.0, slots=1)
    members = min(PUBLISHED.members_kept, max(1, round(joins * 3600 * 720 / sets)))
    alive = round(load.alive)
    assert load.state_bytes == pytest.approx(encoded(alive, members), abs=1.1 * (1 << 16), rel=0.03)


def test_a_set_that_is_full_counts_its_members_once() -> None:
    full = Workload(PUBLISHED, 100.0, sets=10, exponent=0.0)
    assert full.members_alive == pytest.approx(10 * PUBLISHED.members_kept)
    assert full.members_touched == pytest.approx(10 * PUBLISHED.members_kept)
    assert full.popular == 10
    assert full.crossed_a_step == 10 / 720
    assert replace(full, crossed=3.0).crossed_a_step == 3


def test_parts_are_powers_of_two_of_at_most_16_mib() -> None:
    for sets in (1_000, 10**6, 10**8):
        load = Workload(PUBLISHED, 100.0, sets=sets, exponent=0.0, slots=1)
        step = SlotStep(load, MEASURED)
        assert step.parts & (step.parts - 1) == 0
        assert (load.alive * 53 + load.members_alive * 6) / step.parts <= 16 << 20


def test_the_units_of_a_step_equal_those_worked_out_by_hand() -> None:
    """Ten sets, touched each hour, in one part and range; all of them are popular, so 1 in 72 steps has a crossing."""
    load = Workload(PUBLISHED, 1.0, sets=10, exponent=0.0, slots=1)
    step, crossing = SlotStep(load, MEASURED), 10 / 720
    assert step.parts == 1
    assert step.ranges == pytest.approx(1, rel=1e-4)
    true_sets = -math.expm1(-crossing)
    assert (step.put, step.got) == pytest.approx((2 + true_sets, 3 + true_sets), rel=1e-4)
    fixed = 2 + 2 * 3
    assert written_units(load, MEASURED) == pytest.approx(
        3600 + fixed + 2 * crossing + 2 * crossing + 4 * crossing, rel=1e-4
    )
    assert evaluation_read_units(load) == pytest.approx(3600 * packed_bytes(1) / 4096 + 4 + 16)


def test_many_crossings_go_99_in_a_call_and_each_range_has_calls_of_its_own() -> None:
    load = Workload(PUBLISHED, 1.0, sets=10, exponent=0.0, slots=1, crossed=9_900.0)
    without = replace(load, crossed=0.0)
    more = SlotStep(load, MEASURED).written - SlotStep(without, MEASURED).written
    assert more == pytest.approx(2 + 2 * 9_900 + 4 * 100)


def test_only_parts_with_joins_are_rewritten() -> None:
    alike = Workload(PUBLISHED, 1_000.0, batch=500, sets=10**9, exponent=0.0)
    seldom = replace(alike, touched=1_600.0)
    step = SlotStep(seldom, MEASURED)
    assert step.parts == 256
    assert step.put == pytest.approx(2 * 256 * -math.expm1(-100 / 256), rel=1e-6)
    assert SlotStep(alike, MEASURED).put == pytest.approx(512)


def test_the_bucket_holds_the_manifests_that_are_kept_and_what_the_daily_sweep_has_not_deleted() -> None:
    alike = Workload(PUBLISHED, 1_000.0, batch=500, sets=10**9, exponent=0.0)
    # Every part is rewritten each hour: now, two before, seven days, and half a day that waits.
    assert SlotStep(alike, MEASURED).stored == pytest.approx((1 + 2 + 7 + 12) * alike.state_bytes, rel=0.02)
    still = replace(alike, touched=0.0)
    assert SlotStep(still, MEASURED).stored == pytest.approx(still.state_bytes, rel=0.02)


def test_a_popular_set_makes_one_slot_busier() -> None:
    one = SlotStep(Workload(PUBLISHED, 1_000.0, batch=500, sets=1), MEASURED)
    alike = SlotStep(Workload(PUBLISHED, 1_000.0, batch=500, sets=10**6, exponent=0.0), MEASURED)
    assert one.busiest == 3_600_000
    assert alike.busiest == pytest.approx(225_000, rel=1e-3)
    assert one.joins == alike.joins == 225_000
    assert one._reading(one.busiest) > 10 * alike._reading(alike.busiest)
