"""The discrete Gaussian for users in many groups: its table, its exact delta, and the choice of its width.

``P(x) ~ exp(-x^2 / 2 v)`` on the integers, v the variance. If a user's rows shift the counts of kappa groups by one
each, the likelihood ratio depends only on the sum S of the kappa draws. So (docs/proofs/release.md, S3)

    delta = P(S <= c) - e^eps P(S <= c - kappa),   c = floor(kappa / 2 - eps v).

With fewer groups the delta is smaller: noise for the missing groups could be drawn without the data. The claimed delta
is that of the ideal distribution plus kappa (1 + e^eps) times the distance of the table from it.
"""

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

from kanon.noise.exact import exp_bounds
from kanon.noise.laws import Table
from kanon.noise.words import TOTAL, WORD_BITS
from kanon.release.deltas import of_all
from kanon.release.errors import SpecificationError
from kanon.release.selection import GaussianSelection
from kanon.release.widths import best_width

MOST_GROUPS = 100
_BITS = 256
_FINE_BITS = 112
_STEPS = 256
"""Widths are multiples of 1 / _STEPS."""


@dataclass(frozen=True)
class GaussianChoice:
    """The rule for kappa groups per user, and the delta of its noise and thresholds.

    Attributes:
        selection: the rule of one group.
        noise_delta: delta of the noise of all kappa groups.
        delta: delta of noise and thresholds of all kappa groups.
    """

    selection: GaussianSelection
    noise_delta: Fraction
    delta: Fraction


def _powers(variance: Fraction, bits: int) -> tuple[list[int], list[int]]:
    """``2**bits exp(-x^2 / 2v)`` for x = 0, 1, .. until it is below 1, rounded down and up."""
    one = 1 << bits
    low, high = exp_bounds(1 / (2 * variance), bits)
    floor, ceiling = int(one / high), -int(-one / low)
    downs, ups = [one], [one]
    # exp(-(x+1)^2/2v) = exp(-x^2/2v) q^(2x+1), q = exp(-1/2v)
    odd_down, odd_up = floor, ceiling
    while ups[-1] > 1:
        downs.append(downs[-1] * odd_down >> bits)
        ups.append(-(-ups[-1] * odd_up >> bits))
        odd_down = (odd_down * floor >> bits) * floor >> bits
        odd_up = -(-odd_up * ceiling >> bits)
        odd_up = -(-odd_up * ceiling >> bits)
        if ups[-1] == ups[-2]:  # rounding up never goes below 1
            break
    return downs, ups


@lru_cache(maxsize=64)
def _scaled(variance: Fraction, bits: int) -> tuple[int, ...]:
    """``floor(2**bits P(x))`` for x = 0, 1, .. while positive, with P normalised over all integers; never too large."""
    downs, ups = _powers(variance, _BITS)
    tail = 4 * len(ups)  # beyond the list the terms decrease faster than a geometric series
    total = 2 * sum(ups) - ups[0] + tail
    weights = [(down << bits) // total for down in downs]
    return tuple(weight for weight in weights if weight)


@lru_cache(maxsize=64)
def gaussian(variance: Fraction) -> Table:
    """The table of the discrete Gaussian: ``floor(2**64 P(x))`` beside 0, the remainder at 0."""
    half = _scaled(variance, WORD_BITS)
    weights = [*reversed(half[1:]), *half]
    weights[len(half) - 1] += TOTAL - sum(weights)
    return Table(1 - len(half), tuple(weights))


def distance(variance: Fraction) -> Fraction:
    """An upper bound of the total variation between the table and the ideal: rounding moves weight to 0 only."""
    return Fraction(gaussian(variance).weight(0), TOTAL) - Fraction(_scaled(variance, _FINE_BITS)[0], 1 << _FINE_BITS)


def ideal_delta(variance: Fraction, groups: int, epsilon: Fraction) -> Fraction:
    """The delta of ``groups`` counts shifted by one each under the ideal distribution, rounded up.

    The convolution is rounded down. The mass lost is added to the probability that must not be too small.
    """
    lowest, sums = _sum_of(variance, groups)
    one = 1 << _FINE_BITS
    missing = one - sum(sums)
    c = math.floor(Fraction(groups, 2) - epsilon * variance)
    low, _ = exp_bounds(epsilon)
    here, there = (sum(sums[: max(0, c - lowest - shift + 1)]) for shift in (0, groups))
    return max(Fraction(0), (here + missing - low * there) / one)


@lru_cache(maxsize=64)
def _sum_of(variance: Fraction, number: int) -> tuple[int, list[int]]:
    """The sum of ``number`` independent variables: lowest value, and fixed-point weights that are never too large."""
    half = _scaled(variance, _FINE_BITS)
    single = (1 - len(half), [*reversed(half[1:]), *half])
    result = single
    for bit in bin(number)[3:]:
        result = _added(result, result)
        if bit == "1":
            result = _added(result, single)
    return result


Weighted = tuple[int, list[int]]


def _added(a: Weighted, b: Weighted) -> Weighted:
    """The convolution, by one product of two long integers (Kronecker substitution), rounded down."""
    width = (2 * _FINE_BITS + min(len(a[1]), len(b[1])).bit_length()) // 8 + 1
    product = _packed(a[1], width) * _packed(b[1], width)
    raw = product.to_bytes(width * (len(a[1]) + len(b[1])), "little")
    sums = [
        int.from_bytes(raw[at : at + width], "little") >> _FINE_BITS
        for at in range(0, width * (len(a[1]) + len(b[1]) - 1), width)
    ]
    first = next(i for i, weight in enumerate(sums) if weight)
    last = len(sums) - next(i for i, weight in enumerate(reversed(sums)) if weight)
    return a[0] + b[0] + first, sums[first:last]


def _packed(weights: list[int], width: int) -> int:
    return int.from_bytes(b"".join(weight.to_bytes(width, "little") for weight in weights), "little")


def noise_delta(variance: Fraction, groups: int, epsilon: Fraction) -> Fraction:
    """The claimed delta of the noise of up to ``groups`` counts: the ideal's delta and the table's distance from it."""
    _, high = exp_bounds(epsilon)
    return ideal_delta(variance, groups, epsilon) + groups * (1 + high) * distance(variance)


def least_selection(table: Table, groups: int, delta: Fraction, floor: int) -> GaussianSelection:
    """The rule with the least T that one of ``groups`` groups of one user passes with probability at most ``delta``."""
    rules = (GaussianSelection(table, threshold, floor) for threshold in range(1, table.max + 2))
    return next(rule for rule in rules if of_all(rule.delta, groups) <= delta)


@lru_cache(maxsize=64)
def gaussian_choice(groups: int, epsilon: Fraction, delta: Fraction, floor: int = 1) -> GaussianChoice:
    """The rule with the lowest threshold among 401 splits of delta between noise and threshold.

    The split is chosen with the continuous distribution in floating point. The table, its delta and the threshold are
    exact.

    Raises:
        SpecificationError: more than 100 groups, or no table fits.
    """
    if groups > MOST_GROUPS:
        raise SpecificationError(f"Gaussian noise allows at most {MOST_GROUPS} groups per user, not {groups}")
    steps = math.ceil(best_width(groups, epsilon, delta) * _STEPS)
    for wider in range(64):
        variance = Fraction(steps + wider, _STEPS) ** 2
        noise = noise_delta(variance, groups, epsilon)
        if noise < delta:
            selection = least_selection(gaussian(variance), groups, delta - noise, floor)
            return GaussianChoice(selection, noise, noise + of_all(selection.delta, groups))
    raise SpecificationError(
        f"no Gaussian noise reaches ({float(epsilon):.3g}, {float(delta):.3g}): raise --delta or choose --noise laplace"
    )
