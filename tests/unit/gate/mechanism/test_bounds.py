"""What is proved about a type, against the closed forms and against hand-made examples."""

import math
import subprocess
import sys
from fractions import Fraction
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kanon.gate.mechanism.bounds import (
    all_joins,
    distinct_tokens,
    guarantee,
    interval_aware,
    met_by_one_join,
    of_runs,
    over_generations,
    paper,
    rejoining,
    watching,
)
from kanon.gate.mechanism.parameters import CrossingRestart, Parameters, most_searches
from kanon.noise.bound import Bound, posterior
from kanon.noise.exact import round_up, written_up
from kanon.noise.laws import one_sided, two_sided
from kanon.noise.words import TOTAL
from tests.unit.examples import ONE_SIDED, of_profile

PUBLISHED = of_profile("published", 168)


@pytest.mark.parametrize(("window", "delta"), [(168, 1.743e-6), (720, 7.435e-6)])
def test_the_papers_bound_with_25_for_both_noises_has_the_stated_value(window: int, delta: float) -> None:
    law = two_sided(Fraction(3, 4), 25)
    bound = paper(Parameters(51, window, 3600, law, law))
    assert bound is not None
    assert float(bound.delta) == pytest.approx(delta, rel=5e-4)


def test_the_papers_bound_does_not_apply_to_a_one_sided_law() -> None:
    assert paper(of_profile("sharp", 168)) is None
    assert paper(ONE_SIDED) is None


def test_the_interval_aware_bound_never_exceeds_the_papers() -> None:
    for name in ("published", "balanced"):
        for window in (2, 24, 168, 720):
            ours, theirs = interval_aware(of_profile(name, window)), paper(of_profile(name, window))
            assert theirs is not None
            assert ours.epsilon < theirs.epsilon
            assert ours.delta < theirs.delta


def test_one_join_is_the_shortest_case_of_rejoining() -> None:
    for name in ("published", "balanced", "sharp"):
        parameters = of_profile(name, 168)
        assert rejoining(parameters, 1) == interval_aware(parameters)
        assert watching(parameters, 1) == interval_aware(parameters)


def test_one_join_costs_at_most_the_bound_at_every_phase_and_some_phase_reaches_it() -> None:
    for name in ("published", "sharp"):
        parameters = of_profile(name, 24)
        one = interval_aware(parameters)
        costs = [all_joins(parameters, [1000], phase) for phase in range(24)]
        assert max(cost.epsilon for cost in costs) == one.epsilon
        assert max(cost.delta for cost in costs) == one.delta


def test_a_join_at_the_start_of_an_instance_affects_only_that_instance_and_costs_no_query_epsilon() -> None:
    d1, d2 = PUBLISHED.threshold_law.shift_delta, PUBLISHED.query_law.tail_delta
    assert all_joins(PUBLISHED, [168 * 5 + 7], phase=7) == Bound(Fraction(3, 4), max(d1, 168 * d2))


def test_rejoining_covers_every_phase_and_every_pattern_without_gaps() -> None:
    parameters = of_profile("sharp", 24)
    for steps in (1, 2, 24, 25, 26, 49, 100):
        worst = rejoining(parameters, steps)
        for joined in (range(500, 500 + steps), {*range(500, 500 + steps, 24), 499 + steps}):
            costs = [all_joins(parameters, joined, phase) for phase in range(24)]
            assert max(cost.epsilon for cost in costs) <= worst.epsilon
            assert max(cost.delta for cost in costs) <= worst.delta
            assert max(cost.epsilon for cost in costs) == worst.epsilon


def test_separate_runs_pay_the_query_epsilon_each() -> None:
    # Steps 2..5 and 10..13 of w = 4, phase 0: instances 0, 1 and 2, 3, each run begins in one and ends in the next.
    laws = (ONE_SIDED.threshold_law, ONE_SIDED.query_law)
    cost = all_joins(ONE_SIDED, [2, 10], phase=0)
    d1, d2 = laws[0].shift_delta, laws[1].tail_delta
    assert cost.epsilon == 4 * laws[0].epsilon + 2 * laws[1].epsilon
    assert cost.delta == max(4 * d1 + 4 * d2, 8 * d2)


def test_an_empty_sequence_of_joins_costs_nothing() -> None:
    assert all_joins(PUBLISHED, [], phase=0) == Bound(Fraction(0), Fraction(0))


def test_choosing_the_step_by_the_answers_costs_the_threshold_delta_once_more_per_instance() -> None:
    d1 = PUBLISHED.threshold_law.shift_delta
    sharp = of_profile("sharp", 168)
    assert watching(PUBLISHED, 49 * 168 + 1).delta - watching(PUBLISHED, 49 * 168).delta == 0
    assert watching(PUBLISHED, 49 * 168 + 2).delta - watching(PUBLISHED, 49 * 168 + 1).delta == d1
    assert watching(sharp, 51 * 168 + 1).delta == interval_aware(sharp).delta + 51 * sharp.threshold_law.shift_delta


def test_choosing_the_set_by_the_answers_costs_the_threshold_delta_once_more_per_instance_of_each() -> None:
    d1 = PUBLISHED.threshold_law.shift_delta
    year = 8760
    more = watching(PUBLISHED, year, 100).delta - watching(PUBLISHED, year).delta
    assert more == 99 * 54 * d1
    assert guarantee(of_profile("sharp", 168)).watched_sets.delta == 1  # no protection


def test_a_change_of_the_log_costs_one_more_threshold_noise_and_a_query_noise_if_members_were_replaced() -> None:
    e1, e2 = PUBLISHED.threshold_law.epsilon, PUBLISHED.query_law.epsilon
    d1, d2 = PUBLISHED.threshold_law.shift_delta, PUBLISHED.query_law.tail_delta
    assert over_generations(PUBLISHED, 0) == interval_aware(PUBLISHED)
    assert over_generations(PUBLISHED, 1) == Bound(3 * e1 + e2, 3 * d1 + 167 * d2)
    assert over_generations(PUBLISHED, 1, forgotten=1) == Bound(3 * e1 + 2 * e2, 3 * d1 + 334 * d2)
    assert over_generations(PUBLISHED, 3, forgotten=2) == Bound(5 * e1 + 3 * e2, 5 * d1 + 501 * d2)
    adding = Parameters(50, 24, 3600, two_sided(Fraction(1, 4), 20), two_sided(Fraction(2), 8))
    assert over_generations(adding, 1).epsilon == 6


@pytest.mark.parametrize(
    ("from_steps", "met"),
    [
        ([], []),
        ([100], [{100}]),
        ([100, 122], [{100, 122}, {122}]),
        ([100, 123], [{100}, {123}]),
        ([90, 100, 110, 130], [{90, 100, 110}, {100, 110}, {110, 130}, {130}]),
    ],
)
def test_one_join_counts_the_key_changes_within_its_window(from_steps: list[int], met: list[set[int]]) -> None:
    """By trying every join: with a window of 24 it shows at 24 steps, and a change at the first cuts nothing off."""
    assert met_by_one_join(from_steps, 24) == met
    tried = [{g for g in from_steps if s < g <= s + 23} for s in range(50, 150)]
    assert max(map(len, tried)) == max(map(len, met), default=0)
    assert all(found in tried for found in met)


def test_the_costs_of_sets_add_up() -> None:
    assert interval_aware(PUBLISHED).times(4) == Bound(9, 4 * interval_aware(PUBLISHED).delta)


@pytest.mark.parametrize(("epsilon", "percent"), [("3", 69), ("2.25", 51)])
def test_a_belief_of_ten_percent_grows_as_stated(epsilon: str, percent: int) -> None:
    reached = posterior(Fraction(1, 10), Fraction(epsilon))
    e = math.exp(float(Fraction(epsilon)))
    assert float(reached) == pytest.approx(e * 0.1 / (1 + (e - 1) * 0.1))
    assert round(100 * float(reached)) == percent


def test_distinct_tokens_are_a_little_fewer_than_clients() -> None:
    assert float(distinct_tokens(50, 16)) == pytest.approx(49.981, abs=1e-3)
    assert distinct_tokens(1, 8) == 1
    # 50 tokens of 8 bits take about 56 clients.
    assert distinct_tokens(55, 8) < 50 < distinct_tokens(57, 8)


@pytest.mark.parametrize("x", [Fraction(1, 3), Fraction(2, 3), Fraction(39, 10), Fraction(9, 4), Fraction(1, 10**7)])
def test_rounding_goes_up_by_little(x: Fraction) -> None:
    rounded = round_up(x)
    assert Fraction(repr(rounded)) >= x
    assert Fraction(math.nextafter(rounded, 0)) < x


@given(st.fractions(min_value=Fraction(1, 10**9), max_value=1000), st.integers(1, 9))
def test_the_last_digit_of_a_figure_is_rounded_up(x: Fraction, digits: int) -> None:
    written = Fraction(written_up(x, digits))
    assert x <= written < x * (1 + Fraction(1, 10 ** (digits - 1)))


@pytest.mark.parametrize(
    ("epsilon", "delta", "written"),
    [
        ("2.25", "3.92001e-6", "(2.25, 3.93e-6)"),
        ("42", "1e-5", "(42, 1.00e-5)"),
        ("2.2500001", "9.991e-6", "(2.25001, 1.00e-5)"),
    ],
)
def test_a_bound_is_written_with_at_least_what_is_proved(epsilon: str, delta: str, written: str) -> None:
    assert str(Bound(Fraction(epsilon), Fraction(delta))) == written


def test_deltas_are_never_rounded_down() -> None:
    law = PUBLISHED.threshold_law
    worst = max(law.weight(u) - law.weight(u + 1) * math.exp(0.75) for u in range(law.min, law.max + 1)) / TOTAL
    assert float(law.shift_delta) >= worst


def test_bounds_are_computed_without_numpy() -> None:
    code = "import sys, kanon.gate.mechanism.bounds; sys.exit('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def crossing(hold: int = 1, epoch: int = 53) -> Parameters:
    """w = 168, with hold and epoch in windows."""
    laws = one_sided(Fraction(163, 100), 18), one_sided(Fraction(137, 100), 17)
    return Parameters(50, 168, 3600, *laws, restart=CrossingRestart(168 * hold, 168 * epoch))


def test_with_restart_after_the_crossing_one_join_pays_each_noise_once() -> None:
    parameters = crossing()
    d1, d2 = parameters.threshold_law.shift_delta, parameters.query_law.tail_delta
    searches = 53 + 1 + 1  # one a window can begin before the step, one after it, and one more at an epoch's end
    assert interval_aware(parameters) == Bound(Fraction(3), searches * d1 + (53 * 168 - 1) * d2)
    assert paper(parameters) is None
    longer = crossing(hold=4)
    one, three = interval_aware(longer), over_generations(longer, 3)
    assert three == Bound(one.epsilon, one.delta + 3 * d1)  # at most one search more for each
    assert watching(parameters, 1, 7).delta - watching(parameters, 1).delta == 6 * searches * d1


@pytest.mark.parametrize(
    ("hold", "epoch", "epsilon"), [(1, 53, "91.02"), (2, 53, "48.64"), (4, 53, "27.45"), (4, 13, "32.34")]
)
def test_a_longer_hold_makes_a_year_of_joins_cheaper(hold: int, epoch: int, epsilon: str) -> None:
    assert rejoining(crossing(hold, epoch), 8760).epsilon == Fraction(epsilon)


@pytest.mark.parametrize("hold", [6, 7, 15])
@pytest.mark.parametrize("epoch", [7, 9, 20])
def test_no_search_more_can_begin_than_is_said(hold: int, epoch: int) -> None:
    """By walking through every way in which searches can follow each other, from every phase."""
    restart = CrossingRestart(hold, epoch)

    @cache
    def most(begin: int, end: int) -> int:
        """Of the searches that begin from ``begin``, itself one, before ``end``."""
        if begin >= end:
            return 0
        last = begin - begin % epoch + epoch - 1
        after = [*(j + hold for j in range(begin, last + 1)), last + 1]
        return 1 + max(most(at, end) for at in after)

    tight = 0
    for steps in range(1, 60):
        found = max(most(begin, begin + steps) for begin in range(epoch))
        assert found <= most_searches(restart, steps)
        tight += found == most_searches(restart, steps)
    assert tight > 20


def test_the_runs_of_a_client_are_found_from_its_joins() -> None:
    parameters = crossing()
    restart = parameters.restart
    assert restart is not None
    for joined, lengths in (([5], [168]), ([5, 173, 400], [336, 168]), (range(5, 900), [895 + 167])):
        assert all_joins(parameters, joined, phase=3) == of_runs(parameters, restart, lengths)
    assert all_joins(parameters, [], phase=0) == Bound(Fraction(0), Fraction(0))
