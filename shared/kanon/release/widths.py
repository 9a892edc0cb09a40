"""Chooses the width of Gaussian noise with the continuous distribution, in floating point.

No claim depends on it: ``gaussian`` checks the choice exactly, and the ledger records the tables.
"""

import math
from collections.abc import Iterator
from fractions import Fraction
from statistics import NormalDist

SPLITS = 401
"""The number of splits of delta between noise and threshold."""


def continuous_delta(sigma: float, groups: int, epsilon: float) -> float:
    """The delta of the continuous Gaussian under a shift of Euclidean length sqrt(groups) (Balle and Wang 2018)."""
    length = math.sqrt(groups)
    a, b = length / (2 * sigma), epsilon * sigma / length
    return _upper_tail(b - a) - math.exp(epsilon + _log_upper_tail(a + b))


def continuous_thresholds(groups: int, epsilon: float, delta: float) -> Iterator[tuple[float, float, float]]:
    """(threshold, sigma, share of the noise) of each split of delta."""
    normal = NormalDist()
    for i in range(1, SPLITS):
        share = i / SPLITS
        low, high = 1e-3, 1e6
        for _ in range(100):
            middle = math.sqrt(low * high)
            low, high = (middle, high) if continuous_delta(middle, groups, epsilon) > delta * share else (low, middle)
        single = -math.expm1(math.log1p(-delta * (1 - share)) / groups)
        yield 1 - high * normal.inv_cdf(single), high, share


def best_width(groups: int, epsilon: Fraction, delta: Fraction) -> Fraction:
    """The width whose threshold is lowest."""
    return Fraction(min(continuous_thresholds(groups, float(epsilon), float(delta)))[1])


def _upper_tail(x: float) -> float:
    return math.erfc(x / math.sqrt(2)) / 2


def _log_upper_tail(x: float) -> float:
    """``log P(N > x)``; by its asymptotic series where the tail underflows."""
    if x < 30:
        return math.log(_upper_tail(x))
    return -x * x / 2 - math.log(x * math.sqrt(2 * math.pi)) - 1 / (x * x)
