"""Which groups are released: counted, optimal, Gaussian; against brute force and reference numbers."""

import json
import math
from fractions import Fraction

import pytest

from kanon.noise.exact import exp_bounds
from kanon.noise.laws import two_sided
from kanon.noise.words import TOTAL
from kanon.release.aggregate_noise import CERTAINTY, threshold_of_bins
from kanon.release.deltas import of_all, of_each
from kanon.release.errors import SpecificationError
from kanon.release.gaussian import gaussian_choice, noise_delta
from kanon.release.selection import CountedSelection, counted_selection, optimal_selection, widest
from kanon.release.widths import continuous_delta, continuous_thresholds
from tests.paths import SHARED

NUMBERS = SHARED / "vectors" / "release" / "numbers.json"
numbers = json.loads(NUMBERS.read_text()) if NUMBERS.exists() else None
needs_numbers = pytest.mark.skipif(numbers is None, reason="the reference numbers are not beside the checkout")
BUDGETS = ["1,1e-5", "0.1,1e-10", "0.1,1e-5", "3,1e-5", "0.5,1e-5", "2,1e-5"]


def budget(text):
    return tuple(Fraction(part) for part in text.split(","))


def brute_force(law):
    """The hockey-stick of m users against m + 1, outcome by outcome."""
    low, _ = exp_bounds(law.epsilon)
    top, bottom, most = low.numerator, low.denominator, law.truncation

    def outcomes(m):
        shown = {v: law.weight(v - m) for v in range(most + 1, m + most + 1)} if m else {}
        return {**shown, None: TOTAL - sum(shown.values())}

    worst = 0
    for m in range(2 * most + 2):
        fewer, more = outcomes(m), outcomes(m + 1)
        for p, q in ((fewer, more), (more, fewer)):
            keys = p.keys() | q.keys()
            worst = max(worst, sum(max(0, p.get(k, 0) * bottom - q.get(k, 0) * top) for k in keys))
    return Fraction(worst, bottom * TOTAL)


def test_counted_selection_at_one_and_a_hundred_thousandth_is_the_known_one():
    rule = counted_selection(Fraction(1), Fraction("1e-5"))
    assert rule.law.truncation == 11
    assert float(rule.delta) == 7.718211827602554e-6
    assert float(rule.law.probability(11)) == 7.718211827601503e-6
    assert rule.sure_from == 23


@pytest.mark.parametrize(("epsilon", "truncation"), [("1", 11), ("1/2", 3), ("2", 6), ("1/10", 60), ("3", 1)])
def test_the_delta_of_counted_selection_equals_the_largest_delta_of_one_outcome(epsilon, truncation):
    law = two_sided(Fraction(epsilon), truncation)
    assert CountedSelection(law).delta == brute_force(law)


@pytest.mark.parametrize("text", BUDGETS)
def test_the_truncation_is_the_smallest_that_fits(text):
    epsilon, delta = budget(text)
    law = counted_selection(epsilon, delta).law
    assert CountedSelection(law).delta <= delta < CountedSelection(two_sided(epsilon, law.truncation - 1)).delta


@needs_numbers
@pytest.mark.parametrize("text", BUDGETS)
def test_the_tables_of_selection_are_the_reference_tables(text):
    known = numbers["selection_integer_tables"]["values"][text]
    epsilon, delta = budget(text)
    counted, optimal = counted_selection(epsilon, delta), optimal_selection(epsilon, delta)
    assert counted.law.truncation == known["counted_truncation"]
    # The reference takes n = 0 where the table's rounding makes a larger n slightly worse.
    assert known["counted_delta"] <= float(counted.delta) <= known["counted_delta"] * (1 + 2e-7)
    assert optimal.digest == known["sha256"]
    assert optimal.sure_from == known["sure_from"]
    assert float(optimal.delta / delta) == known["worst_excess_over_delta"]


def crossing(weights):
    """The interpolated number of users at which a group is kept with probability one half."""
    n = next(i for i, weight in enumerate(weights) if weight >= TOTAL // 2)
    return n - 1 + (TOTAL / 2 - weights[n - 1]) / (weights[n] - weights[n - 1])


def tau(epsilon, delta, kappa=1):
    """The thesis's Laplace threshold (Theorem 12)."""
    return 1 - kappa / epsilon * math.log(2 * -math.expm1(math.log1p(-delta) / kappa))


@needs_numbers
@pytest.mark.parametrize("text", ["1,1e-05", "0.1,1e-10"])
def test_figure_4_18_is_reproduced(text):
    known = numbers["figures"]["values"]["fig4.18"][text]
    epsilon, delta = budget(text)
    weights = optimal_selection(epsilon, delta).weights
    for n, probability in known["pi"].items():
        assert weights[min(int(n), len(weights) - 1)] / TOTAL == pytest.approx(probability, rel=1e-4)
    assert crossing(weights) == pytest.approx(known["midpoint"], rel=1e-4)
    assert tau(float(epsilon), float(delta)) == pytest.approx(known["tau"], rel=1e-4)


@needs_numbers
def test_figure_4_19_is_reproduced():
    for point in numbers["figures"]["values"]["fig4.19"]:
        epsilon = Fraction(str(point["eps"]))
        weights = optimal_selection(epsilon, Fraction("1e-5")).weights
        assert crossing(weights) == pytest.approx(point["pi_opt"], rel=1e-4)
        assert tau(point["eps"], 1e-5) == pytest.approx(point["laplace"], rel=1e-4)


@needs_numbers
@pytest.mark.parametrize("epsilon", [".1", "1"])
def test_figure_4_20_is_reproduced(epsilon):
    for point in numbers["figures"]["values"][f"fig4.20 eps={epsilon}"]:
        weights = optimal_selection(Fraction(epsilon), Fraction(str(point["delta"]))).weights
        gap = tau(float(epsilon), point["delta"]) - crossing(weights)
        assert gap == pytest.approx(point["gap"], rel=1e-4)


@pytest.mark.slow
@needs_numbers
def test_figure_4_21_is_reproduced():
    for point in numbers["figures"]["values"]["fig4.21"]:
        kappa, delta = point["kappa"], Fraction("1e-5")
        weights = optimal_selection(Fraction("1.1") / kappa, of_each(delta, kappa)).weights
        assert crossing(weights) == pytest.approx(point["pi_opt"], rel=1e-4)
        assert tau(1.1, 1e-5, kappa) == pytest.approx(point["laplace"], rel=1e-4)
        assert min(continuous_thresholds(kappa, 1.1, 1e-5))[0] == pytest.approx(point["gaussian"], rel=1e-4)


@needs_numbers
def test_the_discrete_gaussian_needs_the_known_delta():
    for kappa, sigma, continuous, discrete in numbers["gaussian_exact"]["kappa_sigma_continuous_discrete"]:
        found = float(noise_delta(Fraction(str(sigma)) ** 2, kappa, Fraction("1.1")))
        assert found == pytest.approx(discrete, rel=1e-3)  # the reference gives sigma to 3 decimal places
        assert continuous_delta(sigma, kappa, 1.1) == pytest.approx(continuous, rel=1e-3)


@pytest.mark.parametrize("kappa", [1, 2, 5, 10])
def test_the_gaussian_choice_keeps_to_its_delta_with_the_lowest_threshold(kappa):
    choice = gaussian_choice(kappa, Fraction("1.1"), Fraction("1e-5"))
    rule = choice.selection
    assert choice.delta == choice.noise_delta + of_all(rule.delta, kappa) <= Fraction("1e-5")
    lower = type(rule)(rule.law, rule.threshold - 1)
    assert choice.noise_delta + of_all(lower.delta, kappa) > Fraction("1e-5")


@pytest.mark.parametrize("groups", [1, 2, 3, 10, 97])
@pytest.mark.parametrize("delta", ["1e-5", "1e-12", "0.3", "0"])
def test_the_delta_of_one_group_is_the_largest_that_composes_to_delta(groups, delta):
    share = of_each(Fraction(delta), groups)
    assert of_all(share, groups) <= Fraction(delta)
    if Fraction(delta):
        assert of_all(share + Fraction(1, 1 << 256), groups) > Fraction(delta)


@pytest.mark.parametrize("epsilon", ["1/200", "1/128", "1", "20"])
def test_the_widest_law_fits_into_a_table_and_a_wider_one_does_not(epsilon):
    law = widest(Fraction(epsilon))
    assert min(law.weights) >= 1
    with pytest.raises(ValueError, match="too large"):
        two_sided(Fraction(epsilon), law.truncation + 1)


@pytest.mark.parametrize("floor", [1, 2, 50])
def test_nothing_below_the_floor_is_ever_released(floor):
    rules = [
        counted_selection(Fraction(1), Fraction("1e-5"), floor),
        optimal_selection(Fraction(1), Fraction("1e-5"), floor),
        gaussian_choice(3, Fraction(1), Fraction("1e-5"), floor).selection,
    ]
    for rule in rules:
        assert rule.released(floor - 1, TOTAL - 1) is None
        assert rule.released(floor - 1, 0) is None
        assert rule.released(rule.sure_from, TOTAL - 1) is not None
        assert rule.released(rule.sure_from, 0) is not None
        assert None in {rule.released(rule.sure_from - 1, word) for word in (0, TOTAL - 1)}


def test_the_words_that_release_a_group_need_no_larger_table_for_a_higher_floor():
    few, many = (counted_selection(Fraction(1), Fraction("1e-5"), floor) for floor in (1, 10**6))
    assert few.least_words == many.least_words
    assert len(few.least_words) == few.sure_from + 1


@pytest.mark.parametrize(("epsilon", "delta"), [("0.0001", "1e-5"), ("1", "1e-30")])
def test_an_impossible_budget_is_refused(epsilon, delta):
    with pytest.raises(SpecificationError, match="no noise table of epsilon"):
        counted_selection(Fraction(epsilon), Fraction(delta))
    with pytest.raises(SpecificationError, match="--only groups takes epsilon"):
        optimal_selection(Fraction(epsilon), Fraction(delta))


@pytest.mark.parametrize("epsilon", ["0.004", "20.001", "50"])
def test_an_epsilon_that_no_table_holds_is_refused(epsilon):
    with pytest.raises(SpecificationError, match="a group is"):
        widest(Fraction(epsilon))


@needs_numbers
@pytest.mark.parametrize("epsilon", ["0.1", "1", "3"])
@pytest.mark.parametrize("bins", [64, 65, 128, 4096])
def test_the_threshold_of_automatic_bounds_is_the_continuous_one_up_to_a_user(epsilon, bins):
    known = numbers["figures"]["values"]["approx_bounds"][f"eps={epsilon},B={bins}"]
    law = widest(Fraction(epsilon))
    found = threshold_of_bins(law, bins, CERTAINTY)
    assert abs(found - known) < 1 + 0.01 * known

    def certainty(threshold):
        return Fraction(sum(law.weights[: threshold - law.min + 1]), TOTAL) ** (bins - 1)

    assert certainty(found) >= CERTAINTY > certainty(found - 1)
