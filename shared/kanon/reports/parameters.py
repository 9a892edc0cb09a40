"""The privacy parameters of a job, and the threshold that follows from them.

The threshold of key discovery: the least integer tau at which releasing key names costs at most delta.

With ``q = e**-a``, ``a = epsilon / bound`` and X a discrete Laplace number conditioned on ``|X| <= tau``, a sum of v
passes the threshold with probability ``g(v) = P(X > tau - v) = q^(tau-v+1) (1 - q^v) / (1 + q - 2 q^(tau+1))``.
Theorem T of docs/proofs/reports.md: releasing the keys whose noisy sum is *above* tau is ``(epsilon, g(bound))``-DP
for a unit that changes the sums by at most ``bound`` in all, however many keys it touches.

* ``sharp``: the least ``tau >= bound`` with ``g(bound) <= delta``. No bound on the number of keys is needed.
* ``paper``: Algorithm 1 of "On the Differential Privacy and Interactivity of Privacy Sandbox Reports",
  ``ceil(bound (1 + ln(sparsity / delta) / epsilon))`` for units of at most ``sparsity`` keys.

Every comparison is exact: it uses rational bounds of the exponentials, with more bits until they decide.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from functools import cached_property
from typing import Literal

from kanon.errors import Error
from kanon.noise.exact import exp_bounds

Rule = Literal["sharp", "paper"]
Interval = tuple[Fraction, Fraction]
Powers = Callable[[int, int], Interval]
"""``powers(n, bits)``: bounds of ``q**-n``, about ``2**-bits`` apart."""


def powers_of(a: Fraction) -> Powers:
    """The powers of ``q**-1 = e**a``."""
    return lambda n, bits: exp_bounds(a * n, bits)


def sharp(powers: Powers, delta: Fraction, bound: int) -> int:
    """The least ``tau >= bound`` with ``g(bound) <= delta``."""

    def margin(tau: int, bits: int) -> Interval:
        # g(bound) <= delta, with the fraction cleared: delta (q^-(tau+1) + q^-tau) >= q^-bound - 1 + 2 delta.
        above, at, full = (powers(n, bits) for n in (tau + 1, tau, bound))
        return (
            delta * (above[0] + at[0]) - (full[1] - 1 + 2 * delta),
            delta * (above[1] + at[1]) - (full[0] - 1 + 2 * delta),
        )

    return _least(margin, bound)


def paper(powers: Powers, delta: Fraction, bound: int, sparsity: int) -> int:
    """The least integer ``tau >= bound (1 + ln(sparsity / delta) / epsilon)``."""

    def margin(tau: int, bits: int) -> Interval:
        low, high = powers(tau - bound, bits)
        return low - sparsity / delta, high - sparsity / delta

    return _least(margin, bound)


def threshold(epsilon: Fraction, delta: Fraction, bound: int, rule: Rule = "sharp", sparsity: int = 1) -> int:
    """Tau for the budget ``(epsilon, delta)`` of a unit whose values sum to at most ``bound``.

    Raises:
        ValueError: epsilon, delta, bound or sparsity are out of range.
    """
    if epsilon <= 0 or not 0 < delta < Fraction(1, 2) or bound < 1 or sparsity < 1:
        raise ValueError("a threshold takes epsilon above 0, delta between 0 and 1/2, bound and sparsity from 1 on")
    powers = powers_of(epsilon / bound)
    return sharp(powers, delta, bound) if rule == "sharp" else paper(powers, delta, bound, sparsity)


def _least(margin: Callable[[int, int], Interval], start: int) -> int:
    """The least ``tau >= start`` whose margin is not negative; margins grow with tau."""
    if _reaches(margin, start):
        return start
    below, step = start, 1
    while not _reaches(margin, below + step):
        below, step = below + step, 2 * step
    above = below + step
    while above - below > 1:
        middle = (below + above) // 2
        below, above = (below, middle) if _reaches(margin, middle) else (middle, above)
    return above


def _reaches(margin: Callable[[int, int], Interval], tau: int, bits: int = 256) -> bool:
    """Whether the margin is at least 0. The loop ends: by Lindemann's theorem the margin is never exactly 0."""
    low, high = margin(tau, bits)
    if low >= 0 or high < 0:
        return low >= 0
    return _reaches(margin, tau, 2 * bits)


Mode = Literal["declared", "discover"]
CONTRIBUTION_BOUND = 65_536
"""The largest sum of the values in one unit's reports: the paper's Lambda_1."""
EPSILON_CAP = 64
LEAST_DELTA, DELTA_CAP = Fraction(1, 10**12), Fraction(1, 1000)
DEFAULT_EPSILON, DEFAULT_DELTA = "10", "1e-8"
EPSILON_STEPS, DELTA_STEPS = 1000, 10**15


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


@dataclass(frozen=True)
class Amount:
    """A budget: epsilon in thousandths, delta in 10^-15."""

    epsilon: int
    delta: int

    @classmethod
    def of(cls, epsilon: Fraction, delta: Fraction) -> "Amount":
        """The exact amount.

        Raises:
            ValueError: epsilon has more than 3 decimals, or delta more than 15.
        """
        steps = epsilon * EPSILON_STEPS, delta * DELTA_STEPS
        if any(step.denominator != 1 for step in steps):
            raise ValueError("epsilon has at most 3 decimals, delta at most 15")
        return cls(int(steps[0]), int(steps[1]))

    @property
    def exact(self) -> tuple[Fraction, Fraction]:
        """Epsilon and delta."""
        return Fraction(self.epsilon, EPSILON_STEPS), Fraction(self.delta, DELTA_STEPS)

    def __add__(self, other: "Amount") -> "Amount":
        return Amount(self.epsilon + other.epsilon, self.delta + other.delta)

    def within(self, other: "Amount") -> bool:
        """Whether both parts are at most the other's."""
        return self.epsilon <= other.epsilon and self.delta <= other.delta


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
