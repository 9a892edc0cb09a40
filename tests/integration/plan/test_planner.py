"""The planner: its laws meet the target, and its figures are those of the exact law."""

import json
from dataclasses import replace
from fractions import Fraction
from functools import cache
from typing import Any

import numpy as np
import pytest

from kanon.gate.mechanism.bounds import guarantee
from kanon.gate.mechanism.exact_law import false_after_silence, first_crossing
from kanon.gate.mechanism.parameters import CrossingRestart, InvalidParametersError, Parameters, usual_epoch
from kanon.gate.parts import PADDING, Part, encode
from kanon.gate.types import read_types
from kanon.noise.bound import Bound
from kanon.plan import planner
from kanon.plan.planner import Plan, Target, decimal_text, profile_plan, restart_as_json
from tests.exact_law import first_crossing_exact
from tests.unit.examples import ONE_SIDED, SMALL

best_plan, compare = cache(planner.best_plan), cache(planner.compare)
"""A plan takes a third of a second, and several tests look at the same one."""

GOAL = Target(50, 168, 3600, Fraction(3), Fraction(1, 100_000))
CONFIDENCE = Fraction(99, 100)


def watched(parameters: Parameters) -> Bound:
    """What is proved against an observer who watches for a year: what the planner aims at."""
    return guarantee(parameters).watched


def width(plan: Plan) -> int:
    return plan.zone[1] - plan.zone[0]


@pytest.mark.parametrize(
    ("change", "at_most"),
    [
        ({"window": 24}, 8),
        ({"window": 168}, 9),
        ({"window": 720}, 10),
        ({"window": 24, "restart": "grid"}, 11),
        ({"window": 168, "restart": "grid"}, 12),
        ({"window": 720, "restart": "grid"}, 13),
        ({"epsilon": Fraction("2.25"), "delta": Fraction("9.2e-7")}, 11),
        ({"window": 24, "epsilon": Fraction(1)}, 22),
        ({"k": 1000, "window": 720, "epsilon": Fraction("0.5"), "delta": Fraction("1e-6")}, 55),
        ({"k": 20, "epsilon": Fraction(4), "delta": Fraction("1e-4")}, 6),
    ],
)
def test_every_plan_meets_its_target_with_a_narrow_zone(change: dict[str, Any], at_most: int) -> None:
    target, on_grid = replace(GOAL, **change), "restart" in change
    plan = best_plan(target)
    assert watched(plan.parameters).epsilon == target.epsilon
    assert watched(plan.parameters).delta <= target.delta
    assert on_grid or plan.proved.watched_sets.delta <= target.delta
    assert plan.parameters.k == target.k
    assert plan.parameters.never_true_below >= 1
    assert (plan.parameters.restart is None) == on_grid
    assert width(plan) <= at_most


@pytest.mark.parametrize(("window", "at_most", "least"), [(24, 8, 4), (168, 9, 5), (720, 10, 5)])
def test_the_crossing_profile_reaches_its_goals(window: int, at_most: int, least: int) -> None:
    """Zone, delay, delta for many sets watched for a year, and members kept."""
    target = replace(GOAL, window=window)
    plan = profile_of("crossing", window)
    proved = plan.proved
    assert proved.interval_aware.epsilon == 3
    assert proved.watched_sets.delta <= Fraction(1, 1_000_000)
    assert target.least_width == least <= width(plan) <= at_most
    assert plan.delay_at_zone <= 0.12
    assert plan.parameters.members_kept <= 70


@pytest.mark.parametrize("window", [24, 168, 720])
def test_the_returning_profile_costs_a_year_of_joins_at_most_0_41_times_as_much(window: int) -> None:
    one, returning = profile_of("crossing", window), profile_of("returning", window)
    assert width(returning) == width(one)
    assert returning.proved.interval_aware.epsilon == 3
    assert returning.proved.rejoining[-1][1].epsilon <= Fraction(41, 100) * one.proved.rejoining[-1][1].epsilon


def profile_of(name: str, window: int) -> Plan:
    return next(plan for plan in compare(replace(GOAL, window=window)) if plan.name == name)


def test_a_plan_for_a_year_of_joins_meets_its_target_with_a_longer_hold() -> None:
    target = replace(GOAL, epsilon=Fraction(51, 2), unit="year")
    plan = best_plan(target)
    (days, year), restart = plan.proved.rejoining[-1], plan.parameters.restart
    assert days == 365
    assert year.epsilon <= target.epsilon
    assert year.delta <= GOAL.delta
    assert restart is not None
    assert restart.hold > 168
    assert width(plan) <= 9


@pytest.mark.parametrize(("window", "epoch"), [(24, 26), (168, 26), (720, 13)])
def test_of_equal_zones_a_plan_takes_the_epoch_with_the_fewest_partial_and_late_answers(
    window: int, epoch: int
) -> None:
    plan = best_plan(replace(GOAL, window=window))
    assert plan.parameters.restart == CrossingRestart(window, epoch * window)
    longest = usual_epoch(window, GOAL.period) // window
    for windows in {min(each, longest) for each in planner.EPOCHS}:
        other = Plan("other", replace(plan.parameters, restart=CrossingRestart(window, windows * window)))
        assert other.zone == plan.zone
        assert windows == epoch or plan.partial_share + plan.late < other.partial_share + other.late


def test_a_plan_for_a_year_of_joins_takes_the_epoch_with_the_smallest_zone() -> None:
    """Shorter epochs let more searches begin, so each may cost less."""
    target = replace(GOAL, epsilon=Fraction(51, 2), unit="year")
    plan = best_plan(target)
    assert plan.parameters.restart == CrossingRestart(4 * 168, 53 * 168)
    for windows in (13, 26):
        shorter = replace(plan.parameters, restart=CrossingRestart(4 * 168, windows * 168))
        assert not target.covers(guarantee(shorter))


def test_the_next_smaller_truncation_misses_delta() -> None:
    plan = best_plan(GOAL)
    configuration = plan.as_json()["laws"]
    for role in ("threshold", "query"):
        laws = json.loads(json.dumps(configuration))
        laws[role]["truncation"] -= 1
        document = json.dumps({"t": {**plan.document, "laws": laws}})
        assert guarantee(read_types(document, 3600)["t"].parameters).watched_sets.delta > GOAL.delta


def test_a_target_no_law_can_meet_says_what_to_raise() -> None:
    with pytest.raises(InvalidParametersError, match="raise k, epsilon or delta"):
        best_plan(replace(GOAL, epsilon=Fraction(1, 2)))
    with pytest.raises(InvalidParametersError, match="raise k, epsilon or delta"):
        best_plan(replace(GOAL, k=5))


def test_the_laws_of_a_plan_can_configure_a_type() -> None:
    for plan in (*compare(GOAL), profile_plan("sharp", replace(GOAL, delta=Fraction(1, 10**8)))):
        told = plan.as_json()
        restart = plan.parameters.restart
        more = {} if restart is None else restart_as_json(restart)
        document = json.dumps({"t": {"k": told["k"], "window": told["window"], "laws": told["laws"], **more}})
        assert read_types(json.dumps(told["types"]), 3600)["fledge"].parameters == plan.parameters
        configured = read_types(document, 3600)["t"].parameters
        assert configured.threshold_law == plan.parameters.threshold_law
        assert configured.query_law == plan.parameters.query_law
        assert configured.fingerprint == plan.parameters.fingerprint


def test_the_json_of_a_plan_holds_what_an_operator_must_know() -> None:
    told = json.loads(json.dumps(profile_plan("published", GOAL).as_json()))
    assert told["bounds"]["paper"] == {"epsilon": 3.0, "delta": pytest.approx(2.716e-6, rel=1e-3)}
    assert told["bounds"]["intervalAware"] == {"epsilon": 2.25, "delta": pytest.approx(9.169e-7, rel=1e-3)}
    assert (told["neverTrueBelow"], told["surelyTrueFrom"], told["membersKept"]) == (1, 99, 99)
    assert told["zone99"] == [35, 57]
    assert told["laws"]["threshold"] == {"shape": "two-sided", "epsilon": "0.75", "truncation": 25}
    assert told["distinctTokensAtK"] == pytest.approx(49.98, abs=0.01)
    assert told["curve"][0]["expectedDelay"] is None
    assert told["curve"][-1] == {
        "count": 99,
        "trueAtOnce": 1.0,
        "trueWithinInstance": 1.0,
        "expectedDelay": pytest.approx(0, abs=1e-12),
    }


@pytest.mark.parametrize(
    ("window", "name", "zone"),
    [
        (168, "published", (35, 57)),
        (168, "balanced-2", (39, 55)),
        (168, "sharp-2", (42, 54)),
        (720, "published", (34, 57)),
        (720, "balanced-2", (37, 55)),
        (720, "sharp-2", (41, 54)),
    ],
)
def test_the_profiles_have_the_stated_zones(window: int, name: str, zone: tuple[int, int]) -> None:
    plan = next(p for p in compare(replace(GOAL, window=window)) if p.name == name)
    assert plan.zone == zone


@pytest.mark.parametrize("name", ["published", "sharp-2"])
def test_a_zone_is_right_in_exact_rationals(name: str) -> None:
    plan = next(p for p in compare(replace(GOAL, window=24)) if p.name == name)
    false, true = plan.zone

    def never(count: int) -> Fraction:
        return first_crossing_exact(plan.parameters, [count] * 24)[-1]

    def at_once(count: int) -> Fraction:
        return first_crossing_exact(plan.parameters, [count])[0]

    assert never(false) >= CONFIDENCE > never(false + 1)
    assert at_once(true) >= CONFIDENCE > at_once(true - 1)


def test_the_curve_is_the_exact_law_of_a_constant_count() -> None:
    plan = Plan("small", SMALL)
    for count, once, within in zip(plan.counts, plan.true_at_once, plan.true_within_instance, strict=True):
        law = first_crossing(SMALL, [count] * SMALL.window)
        assert once == pytest.approx(law[0], abs=1e-14)
        assert within == pytest.approx(1 - law[-1], abs=1e-14)


def chained(law: np.ndarray, length: int, lost: int) -> float:
    """The expected delay from a random step of a search of ``length`` steps; a silent one costs ``lost`` steps more."""
    expected = 0.0
    for begin in range(length):
        left, waited = 1.0, 0
        for steps in (length - begin, *[length] * 20_000):
            expected += left * sum((waited + j) * law[j] for j in range(steps)) / length
            left *= 1 - law[:steps].sum()
            waited += steps + lost
            if left < 1e-15:
                break
    return expected


RESTARTED = [replace(SMALL, restart=CrossingRestart(hold, 15)) for hold in (6, 8)]


@pytest.mark.parametrize("parameters", [SMALL, ONE_SIDED, *RESTARTED])
def test_the_expected_delay_equals_that_of_a_chain_of_instances_or_of_searches(parameters: Parameters) -> None:
    """Against a sum over what happens, one by one, until nothing is left to happen."""
    plan, w, restart = Plan("small", parameters), parameters.window, parameters.restart
    length, lost = (w, 0) if restart is None else (restart.epoch, w - 1)
    for count, delay in zip(plan.counts, plan.expected_delay, strict=True):
        law = first_crossing(parameters, [count] * length)
        if law[-1] > 1 - 1e-12:
            assert delay == np.inf
            continue
        assert delay == pytest.approx(chained(law, length, lost), rel=1e-6, abs=1e-12)


@pytest.mark.parametrize("parameters", RESTARTED)
def test_the_late_answers_equal_those_of_a_chain_of_searches(parameters: Parameters) -> None:
    assert parameters.restart is not None
    hold, epoch = parameters.restart.hold, parameters.restart.epoch

    def late(count: int, higher: int, begin: int) -> Fraction:
        """From a search that begins so many steps before the last one."""
        law = first_crossing_exact(parameters, [count] * begin + [higher])
        later = (law[j] * late(count, higher, begin - j - hold) for j in range(begin) if begin - j - hold >= 0)
        return law[-1] + sum(later, Fraction(0))

    low, high = Plan("small", parameters).zone
    for count in range(low - 2, high):
        exact = late(count, high, epoch - 1)
        assert false_after_silence(parameters, count, high) == pytest.approx(float(exact), rel=1e-9, abs=1e-12)


def test_the_delay_falls_and_the_curves_rise_with_the_count() -> None:
    plan = best_plan(GOAL)
    assert np.all(np.diff(plan.true_at_once) >= -1e-15)
    assert np.all(np.diff(plan.true_within_instance) >= -1e-15)
    finite = plan.expected_delay[np.isfinite(plan.expected_delay)]
    assert np.all(np.diff(finite) <= 1e-12)
    assert finite[-1] == pytest.approx(0, abs=1e-12)


def test_a_profile_widens_its_laws_for_a_smaller_delta_and_a_longer_window() -> None:
    usual = profile_plan("sharp", GOAL).parameters
    for harder in (replace(GOAL, delta=Fraction(1, 10**8)), replace(GOAL, window=8760)):
        wider = profile_plan("sharp", harder).parameters
        assert watched(wider).delta <= harder.delta
        assert wider.query_law.truncation > usual.query_law.truncation
        assert wider.query_law.epsilon == usual.query_law.epsilon


def test_a_profile_that_misses_the_target_is_refused() -> None:
    with pytest.raises(InvalidParametersError, match=r"profile published gives \(2.25, 1.06e-6\).*plan without one"):
        profile_plan("published", replace(GOAL, epsilon=Fraction(2)))
    with pytest.raises(InvalidParametersError, match="profile must be one of"):
        profile_plan("blunt", GOAL)


def test_a_comparison_leaves_out_profiles_that_are_too_wide_for_k() -> None:
    wide = ["published", "balanced-2"]
    narrow = ["crossing", "returning"], ["sharp-2", "planned"]
    assert [plan.name for plan in compare(GOAL)] == [*narrow[0], *wide, *narrow[1]]
    assert [plan.name for plan in compare(replace(GOAL, k=20))] == [*narrow[0], *narrow[1]]


def test_a_large_k_gets_the_client_bits_its_members_need() -> None:
    plan = best_plan(replace(GOAL, k=10_000))
    assert plan.parameters.client_bits == 17
    assert 2**17 >= 8 * plan.parameters.members_kept > 2**16


@pytest.mark.parametrize("k", [50, 10_000])
def test_the_size_of_a_set_equals_its_size_in_a_part(k: int) -> None:
    plan, sets = best_plan(replace(GOAL, k=k)), 200
    kept, bits = plan.parameters.members_kept, plan.parameters.client_bits
    members = np.full(sets * kept, 2**bits - 1)
    keys, columns = np.array([b"%032d" % n for n in range(sets)], "S32"), np.full((5, sets), 7)
    part = Part.of(
        7, keys, columns[0].astype(np.uint8), np.full(sets, kept), members, members * 0, columns[:2].T, *columns[3:]
    )
    assert 0 < len(encode(part, 7)[0]) - sets * plan.bytes_per_set < PADDING + 200


def test_epsilon_is_written_as_the_exact_decimal() -> None:
    assert decimal_text(Fraction(9, 10)) == "0.9"
    assert decimal_text(Fraction("0.0605")) == "0.0605"
    assert decimal_text(Fraction(3)) == "3"
    with pytest.raises(ValueError, match="no finite decimal"):
        decimal_text(Fraction(1, 3))
