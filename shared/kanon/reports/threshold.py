"""The threshold of key discovery: the least integer tau at which releasing key names costs at most delta.

With ``q = e**-a``, ``a = epsilon / bound`` and X a discrete Laplace number conditioned on ``|X| <= tau``, a sum of v
passes the threshold with probability ``g(v) = P(X > tau - v) = q^(tau-v+1) (1 - q^v) / (1 + q - 2 q^(tau+1))``.
Theorem T of docs/proofs/reports.md: releasing the keys whose noisy sum is *above* tau is ``(epsilon, g(bound))``-DP
for a unit that changes the sums by at most ``bound`` in all, however many keys it touches.

* ``sharp``: the least ``tau >= bound`` with ``g(bound) <= delta``. No bound on the number of keys is needed.
* ``paper``: Algorithm 1 of "On the Differential Privacy and Interactivity of Privacy Sandbox Reports",
  ``ceil(bound (1 + ln(sparsity / delta) / epsilon))`` for units of at most ``sparsity`` keys.

Every comparison is exact: it uses rational bounds of the exponentials, with more bits until they decide.
"""

from collections.abc import Callable
from fractions import Fraction
from typing import Literal

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
