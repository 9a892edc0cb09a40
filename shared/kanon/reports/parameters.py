"""The privacy parameters of a job, and the threshold that follows from them."""

import re
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from functools import cached_property
from typing import Literal

from kanon.errors import Error
from kanon.reports.threshold import Rule, threshold

Mode = Literal["declared", "discover"]
CONTRIBUTION_BOUND = 65_536
"""The largest sum of the values in one unit's reports: the paper's Lambda_1."""
EPSILON_CAP = 64
LEAST_DELTA, DELTA_CAP = Fraction(1, 10**12), Fraction(1, 1000)
DEFAULT_EPSILON, DEFAULT_DELTA = "10", "1e-8"


_DECIMAL = re.compile(r"[0-9]{1,9}(\.[0-9]{1,18})?([eE]-?[0-9]{1,2})?")


class ParameterError(Error, ValueError):
    """A parameter is out of range; the message says what to change."""


@dataclass(frozen=True)
class Parameters:
    """The privacy parameters of one job.

    Privacy guarantee: ``(epsilon, delta)`` for a unit whose reports' values sum to at most ``contribution_bound``:
    R1 and Theorem T of docs/proofs/reports.md.

    Args:
        mode: ``declared`` releases every key of a list; ``discover`` releases the keys above the threshold.
        epsilon: above 0, at most 64, at most 3 decimals.
        delta: 0 if declared; else from 1e-12 to 0.001 and to epsilon / 100, at most 15 decimals.
        contribution_bound: Lambda_1.
        rule: ``sharp`` or ``paper``.
        sparsity: Lambda_0 of the paper's rule.

    Raises:
        ParameterError: a parameter is out of range.
    """

    mode: Mode
    epsilon: Fraction
    delta: Fraction = Fraction(0)
    contribution_bound: int = CONTRIBUTION_BOUND
    rule: Rule = "sharp"
    sparsity: int = 1

    def __post_init__(self) -> None:
        if not 0 < self.epsilon <= EPSILON_CAP or 1000 % self.epsilon.denominator:
            raise ParameterError(f"epsilon must be above 0 and at most {EPSILON_CAP}, with at most 3 decimals")
        if self.mode == "declared" and self.delta:
            raise ParameterError("declared keys need no delta: leave it out")
        in_range = LEAST_DELTA <= self.delta <= DELTA_CAP and not 10**15 % self.delta.denominator
        if self.mode == "discover" and not in_range:
            raise ParameterError("delta must be from 1e-12 to 0.001, with at most 15 decimals")
        if self.delta * 100 > self.epsilon:  # else the noise would seldom be within the threshold
            raise ParameterError("delta must be at most a hundredth of epsilon")
        if not 1 <= self.contribution_bound <= 1 << 32 or self.sparsity < 1:
            raise ParameterError("the contribution bound must be from 1 to 2^32, the sparsity at least 1")

    @cached_property
    def threshold(self) -> int | None:
        """Tau: a key is released if its noisy sum is above it; ``None`` if keys are declared."""
        if self.mode == "declared":
            return None
        return threshold(self.epsilon, self.delta, self.contribution_bound, self.rule, self.sparsity)

    @property
    def standard_deviation(self) -> float:
        """Standard deviation of one key's noise: ``sqrt(2) contribution_bound / epsilon``, before conditioning."""
        return float(2**0.5 * self.contribution_bound / self.epsilon)


def decimal(text: str, name: str) -> Fraction:
    """Read a decimal such as ``10``, ``0.125`` or ``1e-8`` exactly.

    Raises:
        ParameterError: the text is not a decimal.
    """
    if not _DECIMAL.fullmatch(text):
        raise ParameterError(f"{name} must be a decimal such as 10, 0.125 or 1e-8")
    return Fraction(text)


def written(number: Fraction) -> str:
    """A number that has a decimal of at most 28 digits, exactly: ``10``, ``0.125`` or ``0.00000001``."""
    return f"{Decimal(number.numerator) / number.denominator:f}"
