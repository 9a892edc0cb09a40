"""Two independent libraries as oracles: privacy loss distributions of dp-accounting, samples of opendp."""

import math
from collections import Counter
from fractions import Fraction

import numpy as np
import opendp.prelude as dp
import pytest
from dp_accounting.pld import privacy_loss_distribution
from scipy.stats import chisquare

from kanon.gate.mechanism.exact_law import first_crossing
from kanon.gate.mechanism.parameters import Parameters, profile
from kanon.noise.laws import Law, one_sided, two_sided
from tests.divergence import hockey_stick, two_instances

dp.enable_features("contrib")

FALSE_ALARM = 1e-9
"""opendp takes no seed: a right table fails one of its tests once in so many runs."""


def as_pmf(law: np.ndarray) -> dict[int, float]:
    return {outcome: math.log(p) for outcome, p in enumerate(law.ravel()) if p > 0}


def theirs(p: np.ndarray, q: np.ndarray, epsilon: float, *, pessimistic: bool) -> float:
    """Their delta for p against q, rounded to the safe or to the unsafe side."""
    loss = privacy_loss_distribution.from_two_probability_mass_functions(
        as_pmf(q), as_pmf(p), pessimistic_estimate=pessimistic, value_discretization_interval=1e-5, symmetric=False
    )
    # Without ``symmetric`` they report the larger of both directions; ours is computed likewise.
    return float(loss.get_delta_for_epsilon(epsilon))


@pytest.mark.parametrize("name", ["published", "sharp"])
@pytest.mark.parametrize("epsilon", [0.5, 1.0, 1.4])
def test_the_hockey_stick_of_an_instance_agrees_with_dp_accounting(name: str, epsilon: float) -> None:
    parameters = Parameters(50, 24, 3600, *profile(name, 24))
    counts = np.full(24, 47)
    more = counts + (np.arange(24) < 9)
    p, q = first_crossing(parameters, counts), first_crossing(parameters, more)
    ours = max(hockey_stick(p, q, epsilon), hockey_stick(q, p, epsilon))
    assert theirs(p, q, epsilon, pessimistic=False) - 1e-12 <= ours <= theirs(p, q, epsilon, pessimistic=True) + 1e-12
    assert ours == pytest.approx(theirs(p, q, epsilon, pessimistic=True), rel=1e-2, abs=1e-9)


def test_the_joint_law_of_two_instances_agrees_with_their_composition() -> None:
    parameters = Parameters(50, 8, 3600, *profile("published", 8))
    first, second = np.full(8, 46), np.full(8, 48)
    first_more, second_more = first + (np.arange(8) >= 3), second + (np.arange(8) < 3)

    def loss(
        counts: np.ndarray, more: np.ndarray, *, pessimistic: bool
    ) -> privacy_loss_distribution.PrivacyLossDistribution:
        return privacy_loss_distribution.from_two_probability_mass_functions(
            as_pmf(first_crossing(parameters, more)),
            as_pmf(first_crossing(parameters, counts)),
            pessimistic_estimate=pessimistic,
            value_discretization_interval=1e-5,
            symmetric=False,
        )

    p, q = two_instances(parameters, first, second), two_instances(parameters, first_more, second_more)
    for epsilon in (0.3, 0.8, 1.2):
        ours = max(hockey_stick(p, q, epsilon), hockey_stick(q, p, epsilon))
        low, high = (
            loss(first, first_more, pessimistic=side).compose(loss(second, second_more, pessimistic=side))
            for side in (False, True)
        )
        assert low.get_delta_for_epsilon(epsilon) - 1e-10 <= ours <= high.get_delta_for_epsilon(epsilon) + 1e-10


@pytest.mark.parametrize(
    "law",
    [
        two_sided(Fraction(3, 4), 25),
        two_sided(Fraction(1), 3),
        one_sided(Fraction(6, 5), 14),
        one_sided(Fraction(9, 10), 2),
    ],
    ids=lambda law: f"{law.shape} {float(law.epsilon):g} {law.truncation}",
)
def test_opendps_geometric_noise_conditioned_on_the_outcomes_of_a_law_has_its_table(law: Law) -> None:
    number = 30_000
    sampler = dp.m.make_geometric(
        dp.vector_domain(dp.atom_domain(T=int)), dp.l1_distance(T=int), scale=1 / float(law.epsilon)
    )
    seen = Counter(x for x in sampler([0] * number) if law.min <= x <= law.max)
    kept = seen.total()
    assert kept > number / 3
    cells = [x for x in range(law.min, law.max + 1) if kept * law.probability(x) >= 10]
    expected = [float(kept * law.probability(x)) for x in cells]
    observed = [seen[x] for x in cells]
    if len(cells) < law.max - law.min + 1:
        expected.append(kept - sum(expected))
        observed.append(kept - sum(observed))
    assert chisquare(observed, expected, sum_check=False).pvalue > FALSE_ALARM
