"""How aggregates are noised: totals, quantiles and automatic bounds (docs/proofs/release.md, S4 to S6).

*A noisy total* is an exact integer, rounded to a grid, plus noise from a table. One user changes the integer by at most
s. The grid is ``g = s / S``, S the power of two with ``100 < S / epsilon <= 200``. The exact total is rounded to the
grid by ``floor(x / g + 1/2)``. This rounding is monotone and commutes with shifts by grid steps, so a user still moves
it by at most S steps. (Rounding half to even does not: 0.5 and 1.5 go to 0 and 2.) The noise is two-sided with epsilon
/ S for each step.

*A quantile* is drawn by the exponential mechanism on a public grid of cells. Candidates are the ``B + 1`` edges of B
equal cells between two public bounds. With ``q = a / b`` edge i has the utility ``u(i) = -|(b - a) below_i - a
above_i|``: integers, which one user changes by at most ``s = max(a, b - a)``. An edge has the weight ``floor(2^128
exp(-(epsilon - 2^-36) (u_best - u) / 2s))``, 0 if that is below 2^38. One edge is drawn. Kept weights are within a
factor ``1 - 2^-38`` of the ideal ones; subtracting 2^-36 from epsilon covers both roundings.

*Automatic bounds* of a sum take part of its budget (T 4.2.5.1). Every user adds one entry, the sum of the values in one
of the kept groups chosen at random, to a histogram of 129 bins: 0 and the powers of two on both sides. Each bin gets
noise. The bounds are the outermost edges of the bins above K. K is the least integer that the noise of the other 128
bins exceeds with probability at most 1e-9.
"""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, lru_cache
from hashlib import sha256
from itertools import accumulate

from kanon.noise.exact import exp_bounds
from kanon.noise.laws import Law, Table
from kanon.noise.words import TOTAL
from kanon.release.bounding import bin_edges
from kanon.release.deltas import shift_delta
from kanon.release.errors import NoBoundsError, SpecificationError
from kanon.release.selection import widest
from kanon.release.tape import Tape

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


ONE = 1 << 128
LEAST_WEIGHT = 1 << 38
MOST_DENOMINATOR = 1000
_BITS = 320


@dataclass(frozen=True)
class Quantile:
    """The mechanism of one quantile of one group.

    Privacy guarantee: (epsilon, delta) for one user, who adds one value.
    """

    q: Fraction
    cells: int
    epsilon: Fraction

    def __post_init__(self) -> None:
        if not 0 <= self.q <= 1 or self.q.denominator > MOST_DENOMINATOR:
            raise SpecificationError("a quantile is a fraction from 0 to 1 with at most 3 decimal places")
        if not Fraction(1, 200) <= self.epsilon < 20:
            raise SpecificationError(
                f"a quantile's share of epsilon is {float(self.epsilon):.3g} a group; it must lie between 0.005 and 20"
            )

    @property
    def delta(self) -> Fraction:
        """``(B + 1) e^epsilon 2^-90``, rounded up."""
        _, high = exp_bounds(self.epsilon)
        return (self.cells + 1) * high / (1 << 90)

    @property
    def sensitivity(self) -> int:
        """The largest change of a utility by one user: ``max(a, b - a)``."""
        return max(self.q.numerator, self.q.denominator - self.q.numerator)

    @property
    def digest(self) -> str:
        """SHA-256 of the weights by loss in hexadecimal, 16 bytes each (the first one, 2^128, is left out)."""
        return sha256(b"".join(weight.to_bytes(16, "big") for weight in self.weights_by_loss[1:])).hexdigest()

    @cached_property
    def weights_by_loss(self) -> tuple[int, ...]:
        """The weight of an edge whose utility is 0, 1, 2, .. below the best; 0 beyond the list."""
        return _weights((self.epsilon - Fraction(1, 1 << 36)) / (2 * self.sensitivity))

    def losses(self, histogram: Sequence[tuple[int, int]]) -> list[int]:
        """How far the utility of each edge is below the best.

        Args:
            histogram: (cell, number of values) pairs, each cell at most once.
        """
        counts = [0] * self.cells
        for cell, number in histogram:
            counts[cell] += number
        below = [0, *accumulate(counts)]
        a, b, total = self.q.numerator, self.q.denominator, below[-1]
        distances = [abs((b - a) * n - a * (total - n)) for n in below]
        best = min(distances)
        return [distance - best for distance in distances]

    def weights(self, histogram: Sequence[tuple[int, int]]) -> list[int]:
        """The integer weight of each edge."""
        table = self.weights_by_loss
        return [table[loss] if loss < len(table) else 0 for loss in self.losses(histogram)]

    def draw(self, histogram: Sequence[tuple[int, int]], tape: Tape, role: str, group: str) -> int:
        """An edge, 0 to B, drawn by its weight."""
        cumulative = list(accumulate(self.weights(histogram)))
        number = tape.below(cumulative[-1], role, group)
        return bisect_right(cumulative, number)


@lru_cache(maxsize=64)
def _weights(rate: Fraction, bits: int = _BITS) -> tuple[int, ...]:
    """``floor(2^128 exp(-rate x))`` for x = 0, 1, .. down to 2^38, exactly: both bounds give the same floor."""
    low, high = exp_bounds(rate, bits)
    one = 1 << bits
    down, up = int(one / high), -int(-one / low)
    term_down = term_up = one
    weights: list[int] = []
    while True:
        floors = [term * ONE >> bits for term in (term_down, term_up)]
        if floors[0] != floors[1]:
            return _weights(rate, 2 * bits)
        if floors[0] < LEAST_WEIGHT:
            return tuple(weights)
        weights.append(floors[0])
        term_down, term_up = term_down * down >> bits, -(-term_up * up >> bits)


BINS = tuple(range(-64, 65))
CERTAINTY = 1 - Fraction(1, 10**9)


@dataclass(frozen=True)
class AutomaticBounds:
    """Finds the bounds of one aggregate, once for all groups.

    Privacy guarantee: (epsilon, delta) for one user, who changes one bin by one.
    """

    epsilon: Fraction

    @cached_property
    def law(self) -> Law:
        """The noise of a bin."""
        return widest(self.epsilon)

    @cached_property
    def delta(self) -> Fraction:
        """The hockey-stick of a shift by one."""
        return shift_delta(self.law, 1, self.epsilon)

    @cached_property
    def threshold(self) -> int:
        """K."""
        return threshold_of_bins(self.law, len(BINS), CERTAINTY)

    def draw(self, users: Mapping[int, int], tape: Tape, role: str) -> tuple[int, int]:
        """The bounds (low, high).

        Args:
            users: the number of entries of each bin; bins without entries may be missing.
            tape: the release's randomness.
            role: the canonical name of the aggregate.

        Raises:
            NoBoundsError: no bin passes K.
        """
        found = [b for b in BINS if users.get(b, 0) + self.law.draw(tape.word(f"{role}/bin", str(b))) > self.threshold]
        if not found:
            raise NoBoundsError(
                "no automatic bounds: too few users for this epsilon. The cost is spent; give"
                " bounds (sum:column:low:high) or a larger epsilon under another --name"
            )
        return bin_edges(found[0])[0], bin_edges(found[-1])[1]


def threshold_of_bins(law: Table, bins: int, certainty: Fraction) -> int:
    """The least K with ``(1 - P(X > K))**(bins - 1) >= certainty``."""
    needed = math.ceil(certainty * TOTAL ** (bins - 1))
    return law.min + bisect_left(law.cumulative, needed, key=lambda below: below ** (bins - 1))
