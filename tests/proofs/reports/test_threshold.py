"""Theorem T and the paper's threshold, enumerated in rationals: every outcome of small histograms.

The noise has a rational ratio q here, so that every probability is a rational number; the threshold and the
comparison are the product's own code. ``e**(epsilon V / bound)`` is ``q**-V``.
"""

from dataclasses import dataclass
from fractions import Fraction
from itertools import product

import numpy as np
import pytest

from kanon.reports.histogram import Histogram
from kanon.reports.job import paper, sharp
from kanon.reports.noise import Noised

RATIOS = [Fraction(1, 3), Fraction(1, 2), Fraction(2, 3), Fraction(3, 4), Fraction(4, 5)]
DELTAS = [Fraction(1, 5), Fraction(1, 20), Fraction(1, 100)]


def powers(q):
    return lambda n, bits: (q**-n, q**-n)


@dataclass(frozen=True)
class Noise:
    """The discrete Laplace distribution conditioned on ``|x| <= tau``, as integer weights."""

    q: Fraction
    tau: int

    def weight(self, x):
        top, bottom = self.q.numerator, self.q.denominator
        return top ** abs(x) * bottom ** (self.tau - abs(x)) if abs(x) <= self.tau else 0

    @property
    def total(self):
        return sum(self.weight(x) for x in range(-self.tau, self.tau + 1))


_KEY = np.frombuffer(bytes(15) + b"\1", "S16")


def shown(total, x, tau):
    """What is released of one key: its noisy sum, or ``None``; decided by the product's code."""
    metrics = Noised(Histogram(_KEY, np.array([total])), np.array([x]), tau).release().metrics
    return int(metrics[0]) if len(metrics) else None


class Outcomes:
    """Weights of everything that can be shown of one key, by its sum; a sum of 0 is no key and shows nothing."""

    def __init__(self, q, tau):
        self.noise, self.known = Noise(q, tau), {}

    def of(self, total):
        if total not in self.known:
            weights = {}
            for x in range(-self.noise.tau, self.noise.tau + 1):
                outcome = shown(total, x, self.noise.tau) if total else None
                weights[outcome] = weights.get(outcome, 0) + self.noise.weight(x)
            self.known[total] = weights
        return self.known[total]


def excess(outcomes, here, there, q, value):
    """``sum over outcomes of max(0, P(o) - q**-value P'(o))``: the delta that is needed at epsilon V / bound."""
    first, second = ([outcomes.of(total) for total in sums] for sums in (here, there))
    top, bottom = q.numerator**value, q.denominator**value
    found = 0
    for outcome in product(*first):
        p = p_other = 1
        for key, shown_of_key in enumerate(outcome):
            p *= first[key][shown_of_key]
            p_other *= second[key].get(shown_of_key, 0)
        found += max(0, p * top - p_other * bottom)
    return Fraction(found, top * outcomes.noise.total ** len(here))


def changes(bound, keys):
    """Contributions of one unit to a few keys, each at least 1, at most ``bound`` in all."""
    for count in range(1, keys + 1):
        yield from (v for v in product(range(1, bound + 1), repeat=count) if sum(v) <= bound)


def bases(count, most):
    yield from product(range(most + 1), repeat=count)


def check(bound, q, delta, keys, most):
    """Theorem T for every change and base; the largest excess over what it allows, and how many pairs."""
    outcomes = Outcomes(q, sharp(powers(q), delta, bound))
    largest, pairs = Fraction(0), 0
    for v in changes(bound, keys):
        allowed = delta * sum(v) / bound
        for base in bases(len(v), most):
            more = tuple(map(sum, zip(base, v, strict=True)))
            for here, there in ((base, more), (more, base)):
                needed = excess(outcomes, here, there, q, sum(v))
                assert needed <= allowed, (bound, q, delta, v, base)
                largest, pairs = max(largest, needed / allowed), pairs + 1
    return largest, pairs


@pytest.mark.parametrize("q", [Fraction(1, 2), Fraction(3, 4)])
def test_discovery_needs_no_more_than_its_share_of_delta(q):
    for bound, delta in product((1, 2, 3), (Fraction(1, 5), Fraction(1, 20))):
        largest, pairs = check(bound, q, delta, keys=2, most=1)
        assert pairs >= 4
        assert largest <= 1


@pytest.mark.prove
@pytest.mark.parametrize("delta", DELTAS)
@pytest.mark.parametrize("q", RATIOS)
def test_discovery_needs_no_more_than_its_share_of_delta_for_every_small_case(q, delta):
    for bound in range(1, 6):
        largest, pairs = check(bound, q, delta, keys=3, most=2)
        print(f"bound {bound}, q {q}, delta {delta}: {pairs} pairs, at most {float(largest):.4f} of delta's share")


@pytest.mark.parametrize(("q", "delta", "bound"), list(product(RATIOS, DELTAS, (2, 5))))
def test_a_threshold_that_is_one_smaller_is_refuted(q, delta, bound):
    tau = sharp(powers(q), delta, bound)
    assert tau > bound
    assert excess(Outcomes(q, tau), (bound,), (0,), q, bound) <= delta
    assert excess(Outcomes(q, tau - 1), (bound,), (0,), q, bound) > delta


@pytest.mark.parametrize(("q", "delta"), list(product(RATIOS[:3], DELTAS[:2])))
def test_showing_keys_at_the_threshold_is_refuted(q, delta, monkeypatch):
    tau = sharp(powers(q), delta, 2)
    release = Noised.release
    monkeypatch.setattr(Noised, "release", lambda noised: release(Noised(noised.exact, noised.noise, tau - 1)))
    assert excess(Outcomes(q, tau), (2,), (0,), q, 2) > delta


@pytest.mark.parametrize("sparsity", [1, 2])
@pytest.mark.parametrize("q", [Fraction(1, 2), Fraction(2, 3)])
def test_the_papers_threshold_holds_for_units_of_few_keys(q, sparsity):
    bound, delta = 3, Fraction(1, 20)
    tau = paper(powers(q), delta, bound, sparsity)
    assert tau >= sharp(powers(q), delta, bound)
    outcomes = Outcomes(q, tau)
    for v in changes(bound, sparsity):
        for base in bases(len(v), 1):
            more = tuple(map(sum, zip(base, v, strict=True)))
            for here, there in ((base, more), (more, base)):
                assert excess(outcomes, here, there, q, bound) <= delta


@pytest.mark.prove
@pytest.mark.parametrize("delta", DELTAS)
@pytest.mark.parametrize("q", RATIOS)
def test_the_papers_threshold_holds_for_units_of_few_keys_for_every_small_case(q, delta):
    for bound, sparsity in product(range(1, 6), (1, 2, 3)):
        outcomes = Outcomes(q, paper(powers(q), delta, bound, sparsity))
        for v in changes(bound, sparsity):
            for base in bases(len(v), 1):
                more = tuple(map(sum, zip(base, v, strict=True)))
                for here, there in ((base, more), (more, base)):
                    assert excess(outcomes, here, there, q, bound) <= delta


@pytest.mark.parametrize(("q", "delta", "bound"), list(product(RATIOS, DELTAS, (1, 2, 5))))
def test_the_formula_of_the_proof_is_the_chance_to_pass(q, delta, bound):
    tau = sharp(powers(q), delta, bound)
    noise = Noise(q, tau)
    for v in range(bound + 1):
        passing = Fraction(sum(noise.weight(x) for x in range(tau - v + 1, tau + 1)), noise.total)
        assert passing == q ** (tau - v + 1) * (1 - q**v) / (1 + q - 2 * q ** (tau + 1))


def test_two_units_of_one_person_can_cost_more_than_twice_delta():
    """Group privacy: at twice the epsilon two units need ``delta (1 + e**epsilon)``, and one key reaches it."""
    q, bound, delta = Fraction(1, 2), 2, Fraction(1, 100)
    outcomes = Outcomes(q, sharp(powers(q), delta, bound))
    one = excess(outcomes, (bound,), (0,), q, bound)
    assert excess(outcomes, (2 * bound,), (0,), q, 2 * bound) == one * (1 + q**-bound) > 2 * one
