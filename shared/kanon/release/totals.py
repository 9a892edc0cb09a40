"""A noisy total: an exact integer, rounded to a grid, plus noise from a table (docs/proofs/release.md, S4).

One user changes the integer by at most s. The grid is ``g = s / S``, S the power of two with ``100 < S / epsilon <=
200``. The exact total is rounded to the grid by ``floor(x / g + 1/2)``. This rounding is monotone and commutes with
shifts by grid steps, so a user still moves it by at most S steps. (Rounding half to even does not: 0.5 and 1.5 go to 0
and 2.) The noise is two-sided with epsilon / S for each step.
"""

import math
from bisect import bisect_left
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

from kanon.noise.laws import Law, Table
from kanon.noise.words import TOTAL
from kanon.release.bounds import shift_delta
from kanon.release.errors import SpecificationError
from kanon.release.selection import widest

LEVEL = Fraction(95, 100)
"""The confidence level of all intervals."""
LEAST_EPSILON, MOST_EPSILON = Fraction(1, 200), Fraction(1024, 100)


@dataclass(frozen=True)
class NoisyTotal:
    """The mechanism of one total.

    Privacy guarantee: (epsilon, delta) for a user who changes the total by at most ``sensitivity``.
    """

    sensitivity: int
    epsilon: Fraction

    def __post_init__(self) -> None:
        if not LEAST_EPSILON <= self.epsilon < MOST_EPSILON:
            raise SpecificationError(
                f"a total's share of epsilon is {float(self.epsilon):.3g} a group; it must be at least 0.005 and below"
                " 10.24: ask for other --epsilon, --groups-per-user, --weight or fewer aggregates"
            )
        if self.sensitivity < 1:
            raise SpecificationError("the bounds of an aggregate leave nothing to count: widen them")

    @cached_property
    def steps(self) -> int:
        """S, the largest change of the total by one user, in grid steps."""
        steps = 1
        while steps <= 100 * self.epsilon:
            steps *= 2
        return steps

    @cached_property
    def grid(self) -> Fraction:
        """g, the width of a step."""
        return Fraction(self.sensitivity, self.steps)

    @cached_property
    def law(self) -> Law:
        """The noise, in steps."""
        return widest(self.epsilon / self.steps)

    @cached_property
    def delta(self) -> Fraction:
        """The hockey-stick under a shift by S steps, the worst of 0..S."""
        return shift_delta(self.law, self.steps, self.epsilon)

    def noisy(self, exact: int, word: int) -> Fraction:
        """The noisy total. ``word`` is a uniform 64-bit number."""
        return (self.rounded(exact) + self.law.draw(word)) * self.grid

    def rounded(self, exact: int) -> int:
        """``floor(exact / g + 1/2)``, in steps."""
        return (2 * exact * self.steps + self.sensitivity) // (2 * self.sensitivity)

    def half_width(self, level: Fraction) -> Fraction:
        """The least a with ``P(|noise and rounding| <= a) >= level``."""
        return (half_width(self.law, level) + Fraction(1, 2)) * self.grid


def half_width(law: Table, level: Fraction) -> int:
    """The least integer a with ``P(|X| <= a) >= level``, for a symmetric table."""
    needed = math.ceil(TOTAL - (1 - level) / 2 * TOTAL)
    return min(max(0, law.min + bisect_left(law.cumulative, needed)), law.max)
