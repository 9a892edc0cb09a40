"""Small budgets end to end: encrypted reports and their null twins through the whole job, with the exact distribution
of the released values, from the integers of the sampler. R1 and Theorem T, with the sampler's own rounding."""

from collections import defaultdict
from dataclasses import replace
from fractions import Fraction
from itertools import product

import numpy as np
import pytest

from kanon.noise.exact import exp_bounds
from kanon.reports.histogram import Histogram
from kanon.reports.job import PrivacyParameters
from kanon.reports.noise import PRECISION, DiscreteLaplace, Noised
from tests.unit.reports import made

SHIFT = 300
"""Bits of the probabilities below: dyadic, rounded by less than 2^-290 in all."""


def geometric(law, most):
    """``P(G = g)`` for g up to ``most``, from the thresholds, and the mass beyond."""
    one = 1 << SHIFT
    ones = [threshold << SHIFT >> PRECISION for threshold in law.thresholds]
    weights = []
    for g in range(most + 1):
        weight = one
        for i, probability in enumerate(ones):
            weight = weight * (probability if g >> i & 1 else one - probability) >> SHIFT
        weights.append(weight)
    return weights


def noise_of(parameters, most):
    """``P(x)`` of the drawn noise for ``|x| <= most``, as rationals, conditioned as the product does."""
    law = DiscreteLaplace.of(parameters)
    g = geometric(law, 4 * most + 64)
    weights = {x: sum(g[i] * g[i + abs(x)] for i in range(len(g) - abs(x))) for x in range(-most, most + 1)}
    total = sum(weights.values()) if parameters.threshold is not None else 1 << 2 * SHIFT
    return {x: Fraction(weight, total) for x, weight in weights.items()}


def releases(sums, parameters, noise):
    """The distribution of what is released, for exact sums of one or two keys."""
    found = defaultdict(Fraction)
    for draws in product(noise.items(), repeat=len(sums.keys)):
        xs = np.array([x for x, _ in draws], np.int64)
        release = Noised(sums, xs, parameters.threshold).release()
        probability = Fraction(1)
        for _, p in draws:
            probability *= p
        found[release.keys.tobytes(), release.metrics.tobytes()] += probability
    return found


def sums_of(folder, reports, parameters, domain):
    folder.mkdir()
    outcome = made.run(
        folder, reports, parameters=parameters, domain=domain,
        rules=replace(made.RULES, contribution_bound=parameters.contribution_bound),
    )  # fmt: skip
    return outcome, Histogram(outcome.partitions[0].exact.keys, outcome.partitions[0].exact.sums)


def needed(here, there, epsilon):
    """The delta that ``(epsilon, delta)`` needs, rounded up."""
    low, _ = exp_bounds(epsilon)
    return sum(
        (max(Fraction(0), p - low * there.get(outcome, Fraction(0))) for outcome, p in here.items()), Fraction(0)
    )


SMALL = Fraction(1, 2**200)
CASES = [((2,), ()), ((2, 1), ()), ((1, 1), ((1, 1),)), ((2,), ((1, 1),))]
"""What the unit contributes to keys 1 and 2, and what others do."""


@pytest.mark.parametrize(("unit", "others"), CASES)
def test_jobs_that_discover_keys_keep_their_budget_end_to_end(unit, others, tmp_path):
    parameters = PrivacyParameters("discover", Fraction(6), Fraction(1, 10**5), contribution_bound=3)
    check(unit, others, parameters, None, parameters.threshold, tmp_path)


@pytest.mark.parametrize(("unit", "others"), CASES)
def test_jobs_with_declared_keys_keep_their_budget_end_to_end(unit, others, tmp_path):
    parameters = PrivacyParameters("declared", Fraction(6), contribution_bound=3)
    check(unit, others, parameters, (1, 2), 10, tmp_path)


def check(unit, others, parameters, domain, most, tmp_path):
    rest = [made.report([pair], number) for number, pair in enumerate(others, 10)]
    pairs = [(key, value) for key, value in enumerate(unit, 1)]
    with_it, here = sums_of(tmp_path / "with", [made.report(pairs, 1), *rest], parameters, domain)
    null, there = sums_of(tmp_path / "null", [made.report([], 1), *rest], parameters, domain)
    assert (with_it.units, with_it.errors, with_it.accepted) == (null.units, null.errors, null.accepted)
    noise = noise_of(parameters, most)
    share = Fraction(sum(unit), parameters.contribution_bound)
    # Declared keys have noise without an end: outcomes are compared as far as both sides' tables reach.
    inner = most if parameters.mode == "discover" else most - sum(unit)
    compared = {x: p for x, p in noise.items() if abs(x) <= inner}
    for one, other in ((here, there), (there, here)):
        p, p_other = releases(one, parameters, compared), releases(other, parameters, noise)
        assert needed(p, p_other, share * parameters.epsilon) <= share * parameters.delta + SMALL
        if parameters.mode == "declared" and one is not there:  # a little less epsilon is not enough
            assert needed(p, p_other, share * parameters.epsilon * Fraction(9, 10)) > SMALL
