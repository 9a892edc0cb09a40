"""The sampler of reports' noise: its digits, its thresholds and its distance from the exact distribution."""

from fractions import Fraction
from itertools import product

import numpy as np
import pytest

from kanon.noise.exact import exp_bounds
from kanon.reports.job import DELTA_CAP, PrivacyParameters
from kanon.reports.noise import PRECISION, TIE_BITS, DiscreteLaplace, PartitionTape

EPSILONS = [Fraction(64), Fraction(10), Fraction(1), Fraction(1, 1000)]


def digit_bounds(a, i):
    """Rational bounds of ``1 / (1 + e**(a 2^i))``."""
    low, high = exp_bounds(a * 2**i, 4 * PRECISION)
    return 1 / (1 + high), 1 / (1 + low)


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_every_threshold_is_the_rounded_down_probability_of_its_digit(epsilon):
    law = DiscreteLaplace(epsilon / 65_536)
    for i, threshold in enumerate(law.thresholds):
        low, high = digit_bounds(law.a, i)
        assert Fraction(threshold, 2**PRECISION) <= low
        assert high < Fraction(threshold + 1, 2**PRECISION)


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_a_draw_is_within_2_to_the_minus_249_of_the_exact_distribution(epsilon):
    law = DiscreteLaplace(epsilon / 65_536)
    low, _ = exp_bounds(law.a * 2**law.digits, 4 * PRECISION)
    cut = 2 / low  # P(G >= 2^K) = e**(-a 2^K), for each of the two numbers
    rounding = Fraction(2 * law.digits, 2**PRECISION)
    assert cut + rounding < Fraction(1, 2**249)
    conditioned = 2 * (cut + rounding) / Fraction(9, 10)
    assert 65_536 * (cut + rounding) < Fraction(1, 2**233)
    assert 65_536 * conditioned < Fraction(1, 2**232)


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_noise_is_within_the_threshold_with_a_probability_of_nine_tenths(epsilon):
    parameters = PrivacyParameters("discover", epsilon, min(DELTA_CAP, epsilon / 100))
    noise = DiscreteLaplace.of(parameters)
    beyond = 2 / exp_bounds(noise.a * (parameters.threshold + 1))[0]  # P(|X| > tau) <= 2 q^(tau+1) / (1 + q)
    assert beyond / (1 + 1 / exp_bounds(noise.a)[1]) < Fraction(1, 10)


@pytest.mark.parametrize(("epsilon", "digits"), [(64, 18), (10, 21), (1, 24)])
def test_the_number_of_digits_is_the_smallest_sufficient_one(epsilon, digits):
    law = DiscreteLaplace(Fraction(epsilon, 65_536))
    assert law.digits == digits
    assert exp_bounds(law.a * 2 ** (digits - 1), 1024)[1] <= 2**PRECISION < exp_bounds(law.a * 2**digits, 1024)[0]


@pytest.mark.parametrize("q", [Fraction(1, 2), Fraction(2, 3), Fraction(9, 10)])
def test_independent_digits_make_a_geometric_number(q):
    k = 4
    ones = [q ** (2**i) / (1 + q ** (2**i)) for i in range(k)]  # 1 / (1 + e**(a 2^i)) with q = e**-a
    for number in range(2**k):
        probability = Fraction(1)
        for i, one in enumerate(ones):
            probability *= one if number >> i & 1 else 1 - one
        assert probability == (1 - q) * q**number / (1 - q ** (2**k))


@pytest.mark.parametrize("q", [Fraction(1, 2), Fraction(4, 5)])
def test_the_difference_of_two_geometric_numbers_is_discrete_laplace(q):
    k = 6
    geometric = [q**g for g in range(2**k)]
    total = sum(geometric)
    for x in range(8):
        probability = sum(geometric[g] * geometric[g + x] for g in range(2**k - x)) / total**2
        exact = (1 - q) / (1 + q) * q**x
        assert abs(probability - exact) <= 4 * q ** (2**k)


def with_thresholds(thresholds, most=None):
    law = DiscreteLaplace(Fraction(1), most)
    law.__dict__["thresholds"] = thresholds
    return law


def test_every_pattern_of_digits_gives_its_number():
    law = with_thresholds((1 << TIE_BITS,) * 3)  # a digit is 1 if and only if its word is 0
    patterns = list(product((0, 1), repeat=6))
    words = np.array([[0 if digit else 7 for digit in pattern] for pattern in patterns], np.uint64)
    numbers = law._numbers(PartitionTape(bytes(32)), 0, words)
    for (a, b, c, d, e, f), number in zip(patterns, numbers.tolist(), strict=True):
        assert number == (a + 2 * b + 4 * c) - (d + 2 * e + 4 * f)


def test_a_tie_is_decided_by_192_more_bits_of_the_same_word(monkeypatch):
    top, rest = 5, 1 << 191
    law = with_thresholds(((top << TIE_BITS) + rest,) * 2)
    words = np.array([[4, 5, 6, 5]], np.uint64)
    asked = []

    def tie(tape, key, attempt, word):
        asked.append((key, attempt, word))
        return rest - 1 if word == 1 else rest

    monkeypatch.setattr(PartitionTape, "tie", tie)
    assert law._numbers(PartitionTape(bytes(32)), 9, words, attempt=2).tolist() == [1 + 2]
    assert asked == [(9, 2, 1), (9, 2, 3)]


def test_conditioning_keeps_the_ratios_of_the_remaining_outcomes():
    """Draw again until it fits: every outcome within the limit keeps its share; clamping would add to the ends."""
    law = with_thresholds((1 << TIE_BITS + 62, 1 << TIE_BITS + 61), most=1)  # digits of 1/4 and 1/8
    tape = PartitionTape(bytes(range(32)))
    free, bound = with_thresholds(law.thresholds).draw(tape, 4096), law.draw(tape, 4096)
    within = abs(free) <= 1
    assert (bound[within] == free[within]).all()
    assert abs(bound).max() == 1
    redrawn = bound[~within]
    assert 0 < (redrawn == 0).sum() < len(redrawn)
