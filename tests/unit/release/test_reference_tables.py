"""Tables 4.4 and 4.5 and figure 4.10 of the thesis, from its mechanism built of our parts, and from ours.

The group counts are those of TPC-H at scale factor 1 (``make tpch`` makes the data and checks them). The thesis splits
a budget in two: Laplace noise for the count, and a threshold for it. Sources: Desfontaines 2020, section 4.3.
"""

import json
import math
from fractions import Fraction
from itertools import accumulate
from typing import Any

import pytest

from kanon.noise.laws import Law, two_sided
from kanon.noise.words import TOTAL
from kanon.release.aggregate_noise import NoisyTotal, Quantile
from kanon.release.selection import counted_selection, optimal_selection
from tests.paths import ROOT

COUNTS: dict[str, Any] = json.loads((ROOT / "tests" / "vectors" / "tpch.json").read_text())
EPSILON = Fraction(1, 10)
CUSTOMERS, SUPPLIERS = (Fraction(n ** (-0.1 * math.log(n))) for n in (150_000, 10_000))
"""``n ** (-epsilon ln n)``, the thesis's delta for n users."""
MOST_ROWS = 373
"""The most rows of a supplier, as the thesis says; the data have 357 in a group."""


def median(law: Law) -> float:
    """The median of ``|X|``, by interpolation within a step."""
    tail = [2 * (TOTAL - law.cumulative[x - law.min]) / TOTAL for x in range(law.max)]  # P(|X| > x)
    above = next(x for x, p in enumerate(tail) if p <= 0.5)
    before = tail[above - 1]
    return above - 0.5 + (before - 0.5) / (before - tail[above])


def threshold(epsilon: Fraction, delta: Fraction) -> float:
    """The thesis's tau for one group: a lone user passes it with probability delta."""
    return 1 - math.log(2 * float(delta)) / float(epsilon)


def suppressed(users: int, epsilon: Fraction, tau: float) -> float:
    """P(n + X < tau) with the thesis's Laplace noise."""
    gap = float(epsilon) * (tau - users)
    return 1 - math.exp(-gap) / 2 if gap > 0 else math.exp(gap) / 2


def suppressed_on_integers(users: int, law: Law, tau: float) -> float:
    """The same with the integer law: n + X < tau, so n + X <= ceil(tau) - 1."""
    most = math.ceil(tau) - 1 - users
    return float(most >= law.max) if not law.min <= most < law.max else law.cumulative[most - law.min] / TOTAL


def q13() -> list[int]:
    return [users for _, users in COUNTS["Q13"]["users"]]


def test_the_counts_equal_those_of_the_benchmark() -> None:
    assert (COUNTS["Q1"]["rows"], COUNTS["Q1"]["users"]) == (1_478_493, 10_000)
    assert len(q13()) == 42
    assert sum(q13()) == 150_000
    assert sum(groups for _, groups in COUNTS["Q16"]["groups_by_users"]) == 18_314
    assert COUNTS["Q21"]["groups"] == 411


def test_q1_count_has_the_error_of_the_thesis() -> None:
    total = NoisyTotal(MOST_ROWS, EPSILON)
    error = median(total.law) * float(total.grid) / COUNTS["Q1"]["rows"]
    assert error == pytest.approx(0.0017487, rel=2e-4)


def test_q1_average_has_the_error_of_the_thesis() -> None:
    total = NoisyTotal(50_000, EPSILON / 2)  # half of the budget for the sum, bounds 0 to 100,000
    error = median(total.law) * float(total.grid) / COUNTS["Q1"]["users"] / COUNTS["Q1"]["average"]
    assert error == pytest.approx(0.0018111, rel=2e-4)


def test_q1_count_with_one_row_a_user_loses_nearly_all() -> None:
    assert 1 - COUNTS["Q1"]["users"] / COUNTS["Q1"]["rows"] == pytest.approx(0.993236, abs=5e-7)


def test_q1_median_is_at_most_3_4e_4_off_in_the_median() -> None:
    """The law of the drawn edge, exactly: no sample is drawn."""
    cells, highest = 4096, 100_000
    histogram = [(cell, users) for cell, users in COUNTS["Q1"]["medians"]]
    weights = Quantile(Fraction(1, 2), cells, EPSILON).weights(histogram)
    half = next(cell for (cell, _), below in zip(histogram, accumulate(n for _, n in histogram), strict=True)
                if 2 * below >= COUNTS["Q1"]["users"])  # fmt: skip
    truth = (half + 0.5) * highest / cells
    errors = sorted((abs(edge * highest / cells - truth) / truth, weight) for edge, weight in enumerate(weights))
    reached = accumulate(weight for _, weight in errors)
    middle = next(error for (error, _), so_far in zip(errors, reached, strict=True) if 2 * so_far >= sum(weights))
    assert middle <= 3.4e-4


def test_q13_loses_as_many_groups_as_in_the_thesis_and_fewer_with_ours() -> None:
    tau = threshold(EPSILON / 2, CUSTOMERS)
    thesis = [suppressed(users, EPSILON / 2, tau) for users in q13()]
    assert sum(thesis) / 42 == pytest.approx(0.30832, abs=5e-6)
    law = two_sided(EPSILON / 2, 700)
    assert sum(suppressed_on_integers(users, law, tau) for users in q13()) / 42 == pytest.approx(0.30832, abs=3e-4)
    errors = sorted(median(law) / users for users in q13())
    assert (errors[20] + errors[21]) / 2 == pytest.approx(0.00687, rel=2e-3)  # simulated there
    rule = counted_selection(EPSILON, CUSTOMERS)
    ours = [suppressed_on_integers(users, rule.law, rule.law.truncation + 1) for users in q13()]
    assert rule.law.truncation == 113
    assert sum(ours) / 42 <= 0.2398


def test_q16_loses_nearly_all_groups_after_sampling_five_a_supplier() -> None:
    """A group of n suppliers passes with e^(epsilon (n - 1)) times the probability of one, for tau is far away."""
    sampled = COUNTS["Q16"]["sampled"]
    epsilon = float(EPSILON) / (2 * 5)
    one = 1 - (1 - float(SUPPLIERS)) ** (1 / 5)
    passed = one * math.exp(-epsilon) * (sampled["moment"] - sampled["none_left"])
    assert 1 - passed == pytest.approx(0.9999606, abs=5e-8)


def test_q21_keeps_only_a_share_delta_of_its_groups() -> None:
    """Each supplier is a group of one user."""
    assert suppressed(1, EPSILON / 2, threshold(EPSILON / 2, SUPPLIERS)) == pytest.approx(0.999793, abs=5e-7)


FIGURE = {2: (0.223, 0.145), 4: (0.281, 0.213), 6: (0.308, 0.239), 8: (0.314, 0.278), 10: (0.355, 0.287)}


@pytest.mark.parametrize("exponent", FIGURE)
def test_figure_4_10_is_reproduced(exponent: int) -> None:
    delta = Fraction(1, 10**exponent)
    thesis = sum(suppressed(n, EPSILON / 2, threshold(EPSILON / 2, delta)) for n in q13()) / 42
    weights = optimal_selection(EPSILON, delta).weights
    optimal = sum(1 - weights[min(n, len(weights) - 1)] / TOTAL for n in q13()) / 42
    assert (thesis, optimal) == (
        pytest.approx(FIGURE[exponent][0], abs=1e-3),
        pytest.approx(FIGURE[exponent][1], abs=6e-4),
    )
