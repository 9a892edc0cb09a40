"""Automatic bounds of a sum: part of the budget finds them (docs/proofs/release.md, S6; T 4.2.5.1).

Every user adds one entry, the sum of the values in one of the kept groups chosen at random, to a histogram of 129 bins:
0 and the powers of two on both sides. Each bin gets noise. The bounds are the outermost edges of the bins above K. K is
the least integer that the noise of the other 128 bins exceeds with probability at most 1e-9.
"""

import math
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

from kanon.noise.laws import Law, Table
from kanon.noise.words import TOTAL
from kanon.release.bounding import bin_edges
from kanon.release.bounds import shift_delta
from kanon.release.errors import NoBoundsError
from kanon.release.selection import widest
from kanon.release.tape import Tape

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
        return least_threshold(self.law, len(BINS), CERTAINTY)

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


def least_threshold(law: Table, bins: int, certainty: Fraction) -> int:
    """The least K with ``(1 - P(X > K))**(bins - 1) >= certainty``."""
    needed = math.ceil(certainty * TOTAL ** (bins - 1))
    return law.min + bisect_left(law.cumulative, needed, key=lambda below: below ** (bins - 1))
