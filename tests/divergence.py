"""The distance of two distributions of answers, for the tests of privacy."""

import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np
from numpy.typing import ArrayLike

from kanon.gate.mechanism.exact_law import Floats, first_crossing
from kanon.gate.mechanism.parameters import Parameters
from kanon.noise.exact import exp_bounds


def two_instances(parameters: Parameters, first: ArrayLike, second: ArrayLike) -> Floats:
    """The joint distribution of two consecutive instances with counts ``first`` and ``second``.

    Their noise is independent, so it is the product of the two distributions, of shape ``(n + 1, m + 1)``.
    """
    return np.multiply.outer(first_crossing(parameters, first), first_crossing(parameters, second))


def hockey_stick(p: ArrayLike, q: ArrayLike, epsilon: float) -> float:
    """``sum_o max(0, p(o) - e**epsilon q(o))``: the smallest delta with ``p(O) <= e**epsilon q(O) + delta`` for all O.

    Exchange p and q for the other direction of a privacy guarantee.
    """
    excess = np.asarray(p, dtype=np.float64) - math.exp(epsilon) * np.asarray(q, dtype=np.float64)
    return float(np.maximum(excess, 0.0).sum())


def hockey_stick_exact(p: Sequence[Fraction], q: Sequence[Fraction], epsilon: Fraction) -> tuple[Fraction, Fraction]:
    """Lower and upper bounds of :func:`hockey_stick` in exact rationals; they differ by less than 2^-200."""
    low, high = exp_bounds(epsilon)
    return (
        sum((max(Fraction(0), a - high * b) for a, b in zip(p, q, strict=True)), Fraction(0)),
        sum((max(Fraction(0), a - low * b) for a, b in zip(p, q, strict=True)), Fraction(0)),
    )
