"""Quantiles by the exponential mechanism on a public grid of cells (docs/proofs/release.md, S5).

Candidates are the ``B + 1`` edges of B equal cells between two public bounds. With ``q = a / b`` edge i has the
utility ``u(i) = -|(b - a) below_i - a above_i|``: integers, which one user changes by at most ``s = max(a, b - a)``. An
edge has the weight ``floor(2^128 exp(-(epsilon - 2^-36) (u_best - u) / 2s))``, 0 if that is below 2^38. One edge is
drawn.

Privacy guarantee: (epsilon, (B + 1) e^epsilon 2^-90). Kept weights are within a factor ``1 - 2^-38`` of the ideal ones;
subtracting 2^-36 from epsilon covers both roundings.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, lru_cache
from hashlib import sha256
from itertools import accumulate

from kanon.noise.exact import exp_bounds
from kanon.release.errors import SpecificationError
from kanon.release.tape import Tape

ONE = 1 << 128
LEAST_WEIGHT = 1 << 38
MOST_DENOMINATOR = 1000
_BITS = 320


@dataclass(frozen=True)
class Quantile:
    """The mechanism of one quantile of one group."""

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
