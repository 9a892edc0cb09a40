"""The paper's figures, recomputed: Figure 1, its delta, and the readings of its "eps=3, A=25".

The paper's noise is the continuous truncated Laplace distribution (section 4.1). The service uses its discrete form.
"""

from dataclasses import dataclass
from fractions import Fraction
from math import expm1

import numpy as np
from numpy.typing import ArrayLike

from kanon.gate.mechanism.exact_law import Floats, never_at_constant
from kanon.gate.mechanism.parameters import Parameters
from kanon.noise.laws import two_sided

WINDOW = 168
EPSILON_PER_NOISE = Fraction(3, 4)
TRUNCATION = 25
_CELLS = 4000
"""Cells of the grid for integrals over the threshold noise. A finer grid moves the points by less than 0.001."""


@dataclass(frozen=True)
class Reading:
    """One reading of "eps = 3, A = 25": the epsilon and the truncation of each of the two noises."""

    meaning: str
    epsilon: Fraction
    truncation: float

    @property
    def bound(self) -> tuple[float, float]:
        """(epsilon, delta) of Corollaries 4.4 and 3.1 at w = 168, for the paper's continuous noise."""
        one = continuous_delta(float(self.epsilon), self.truncation)
        return float(4 * self.epsilon), 4 * one * (WINDOW + 1)

    @property
    def false_positive_point(self) -> float:
        """The 99% point of the largest error in 168 steps (Figure 1a; the paper reads 15)."""
        return continuous_point(float(self.epsilon), self.truncation, WINDOW, 0.99)

    @property
    def false_negative_point(self) -> float:
        """The 1% point of the error in one step (Figure 1b; the paper reads -8)."""
        return continuous_point(float(self.epsilon), self.truncation, 1, 0.01)


READINGS = (
    Reading("3 in total, 25 per noise", EPSILON_PER_NOISE, 25),
    Reading("3 in total, 25 for both noises together", EPSILON_PER_NOISE, 12.5),
    Reading("3 per instance, 25 per noise", Fraction(3, 2), 25),
    Reading("3 per instance, 25 for both noises together", Fraction(3, 2), 12.5),
    Reading("3 per noise, 25 per noise", Fraction(3), 25),
    Reading("3 per noise, 25 for both noises together", Fraction(3), 12.5),
)


def continuous_delta(epsilon: float, truncation: float) -> float:
    """The delta of one draw from the truncated Laplace distribution (section 4.1, solved for delta)."""
    return expm1(epsilon) / (2 * expm1(epsilon * truncation))


def continuous_error_cdf(epsilon: float, truncation: float, steps: int, errors: ArrayLike) -> Floats:
    """``P(max over steps of nu_t - mu <= x)`` for the paper's noise, by the midpoint rule over mu."""
    edges = np.linspace(-truncation, truncation, _CELLS + 1)
    middle = (edges[1:] + edges[:-1]) / 2
    weights = np.diff(_laplace_cdf(epsilon, truncation, edges))
    below = _laplace_cdf(epsilon, truncation, np.asarray(errors, np.float64)[..., None] + middle)
    cdf: Floats = below**steps @ weights
    return cdf


def continuous_point(epsilon: float, truncation: float, steps: int, probability: float) -> float:
    """The error x at which :func:`continuous_error_cdf` is ``probability``."""
    low, high = -2 * truncation, 2 * truncation
    while high - low > 1e-6:
        middle = (low + high) / 2
        if continuous_error_cdf(epsilon, truncation, steps, middle) < probability:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def discrete_error_cdf(steps: int, errors: ArrayLike) -> Floats:
    """``P(max over steps of nu_t - mu <= x)`` for integers x, with the published laws as tables (0.75, 25 each).

    It is the probability that a set of k - x - 1 clients never crosses.
    """
    law = two_sided(EPSILON_PER_NOISE, TRUNCATION)
    k = 2 * TRUNCATION + 1  # one more than 50: parameters that can release an empty set are refused
    parameters = Parameters(k, WINDOW, 3600, law, law)
    return never_at_constant(parameters, k - 1 - np.asarray(errors, np.int64), steps)


def _laplace_cdf(epsilon: float, truncation: float, x: Floats) -> Floats:
    x = np.clip(x, -truncation, truncation)
    # The mass between 0 and |x|, in the scale in which each half has 1 - e^(-epsilon A).
    half = -np.expm1(-epsilon * np.abs(x)) / -expm1(-epsilon * truncation)
    return 0.5 + np.sign(x) * half / 2
