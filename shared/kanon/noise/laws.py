"""Noise distributions (laws): tables of integer weights that sum to 2^64.

Counts are integers, so the noise is an integer too, and drawing it uses no floating-point numbers.
A law is its table: drawing and the proved bounds use the same integers.

* two-sided: ``P(x) ~ exp(-epsilon |x|)`` on ``-A..A``, the discrete form of the truncated Laplace distribution of
  Epasto et al. (2023, section 4.1). It is conditioned on the interval, not clamped to it: no mass piles up at the ends.
* one-sided: ``P(x) ~ exp(-epsilon x)`` on ``0..A``.
"""

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, lru_cache
from hashlib import sha256
from itertools import accumulate, pairwise
from typing import Literal

from kanon.noise.exact import exp_bounds
from kanon.noise.words import TOTAL

Shape = Literal["two-sided", "one-sided"]


@dataclass(frozen=True)
class Table:
    """A distribution on integers: outcome ``min + i`` has probability ``weights[i] / 2**64``, above 0 at both ends."""

    min: int
    weights: tuple[int, ...]

    @property
    def max(self) -> int:
        """The highest outcome."""
        return self.min + len(self.weights) - 1

    def weight(self, x: int) -> int:
        """Weight of the outcome ``x``, 0 outside the table."""
        return self.weights[x - self.min] if self.min <= x <= self.max else 0

    def probability(self, x: int) -> Fraction:
        """Exact probability of the outcome ``x``."""
        return Fraction(self.weight(x), TOTAL)

    @cached_property
    def cumulative(self) -> tuple[int, ...]:
        """Running sums of the weights; the last one is 2^64."""
        return tuple(accumulate(self.weights))

    def draw(self, word: int) -> int:
        """Map a uniform 64-bit word to an outcome: the first one whose cumulative weight exceeds it."""
        return self.min + bisect_right(self.cumulative, word)

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the table in hexadecimal: the lowest outcome, then the weights, 8 bytes each."""
        table = b"".join(weight.to_bytes(8, "big") for weight in self.weights)
        return sha256(b"kanon/law/1" + self.min.to_bytes(8, "big", signed=True) + table).hexdigest()

    def excess(self, shift: int, epsilon: Fraction) -> Fraction:
        """``sum_u max(0, P(u) - e**epsilon P(u+shift))``, rounded up."""
        low, _ = exp_bounds(epsilon)
        above, below = low.as_integer_ratio()
        excess = (below * self.weight(u) - above * self.weight(u + shift) for u in range(self.min, self.max + 1))
        return Fraction(sum(e for e in excess if e > 0), below * TOTAL)


@dataclass(frozen=True)
class Law(Table):
    """A law (noise distribution) of the gate, whose weights are an exponential of the outcome.

    Privacy guarantee: under a shift by one, the law satisfies ``(epsilon, shift_delta)`` in density and
    ``(epsilon, tail_delta)`` in its upper tail. Both are computed from the table.
    """

    shape: Shape
    epsilon: Fraction
    truncation: int

    @cached_property
    def shift_delta(self) -> Fraction:
        """``sum_u max(0, P(u) - e**epsilon P(u+1))``, rounded up by no more than the error of :func:`exp_bounds`."""
        return self.excess(1, self.epsilon)

    @property
    def two_way_shift_delta(self) -> Fraction | None:
        """The larger delta of a shift up by one and a shift down by one, rounded up; None for a one-sided law.

        A one-sided law that is shifted down needs a delta of the order of its first probability.
        """
        if self.shape == "one-sided":
            return None
        return max(self.shift_delta, self.excess(-1, self.epsilon))

    @cached_property
    def tail_delta(self) -> Fraction:
        """``max_a max(0, T(a) - e**epsilon T(a+1))`` of the upper tail ``T(a) = P(x >= a)``, rounded up."""
        low, _ = exp_bounds(self.epsilon)
        tails = [TOTAL - below for below in (0, *self.cumulative)]
        above, below = low.as_integer_ratio()
        return Fraction(max(below * here - above * beyond for here, beyond in pairwise(tails)), below * TOTAL)


def two_sided(epsilon: Fraction, truncation: int) -> Law:
    """The discrete truncated Laplace law on ``-truncation..truncation``."""
    return _law("two-sided", epsilon, truncation, range(-truncation, truncation + 1))


def one_sided(epsilon: Fraction, truncation: int) -> Law:
    """The truncated geometric law on ``0..truncation``."""
    return _law("one-sided", epsilon, truncation, range(truncation + 1))


SHAPES: dict[Shape, Callable[[Fraction, int], Law]] = {"two-sided": two_sided, "one-sided": one_sided}


@lru_cache(maxsize=1024)
def _law(shape: Shape, epsilon: Fraction, truncation: int, outcomes: range) -> Law:
    """``w_x = floor(2**64 p(x))`` for ``x != 0``; ``w_0`` is the remainder."""
    if not Fraction(1, 1000) <= epsilon <= 20:
        raise ValueError(f"the epsilon of a noise distribution must lie between 0.001 and 20, not {float(epsilon):g}")
    if not 1 <= truncation <= 10_000:
        raise ValueError(f"the truncation of a noise distribution must lie between 1 and 10000, not {truncation}")
    weights = _floors(epsilon, outcomes, bits=256)
    if 0 in weights:
        raise ValueError(
            f"truncation {truncation} is too large for epsilon {float(epsilon):g}: its last outcomes are rarer"
            f" than 2^-64; use at most {truncation - sum(w == 0 for w in weights[-truncation:])}"
        )
    weights[-outcomes.start] += TOTAL - sum(weights)
    return Law(outcomes.start, tuple(weights), shape, epsilon, truncation)


def _floors(epsilon: Fraction, outcomes: range, bits: int) -> list[int]:
    """``floor(2**64 p(x))``, exact: ``bits`` doubles until both bounds of ``p(x)`` have the same floor."""
    low, high = exp_bounds(epsilon, bits)
    one = 1 << bits
    # q**n for q = e**-epsilon, in fixed point, rounded down and up.
    q_low, q_high = int(one / high), -int(-one / low)
    powers = [(one, one)]
    for _ in range(max(-outcomes.start, outcomes.stop - 1)):
        a, b = powers[-1]
        powers.append((a * q_low >> bits, -(-b * q_high >> bits)))
    total_low = sum(powers[abs(x)][0] for x in outcomes)
    total_high = sum(powers[abs(x)][1] for x in outcomes)
    floors = [below * TOTAL // total_high for below, _ in powers]
    if floors != [above * TOTAL // total_low for _, above in powers]:
        return _floors(epsilon, outcomes, bits * 2)
    return [floors[abs(x)] for x in outcomes]
