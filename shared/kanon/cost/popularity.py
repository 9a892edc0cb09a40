"""The distribution of joins over sets: Zipf's law, in groups of sets of about equal popularity.

The set of rank ``r`` gets a share proportional to ``r ** -exponent``; exponent 0 gives all sets the same share. A
step's joins are independent draws, so a set with share ``p`` is touched by ``n`` joins with probability ``1 - (1 -
p)**n``.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

EXACT_RANKS = 1_000
GROWTH = 1.02
"""After the exact ranks, the last rank of a group is this many times its first: their shares differ little."""


@dataclass(frozen=True)
class EqualSets:
    """``sets`` sets, each with the same ``share`` of all joins."""

    sets: int
    share: float

    def touched(self, joins: float) -> float:
        """The expected number of these sets among those touched by ``joins`` joins to all sets."""
        return self.sets * -math.expm1(joins * math.log1p(-min(self.share, 1 - 2**-53)))


@dataclass(frozen=True)
class Popularity:
    """The popularity of ``sets`` sets."""

    sets: int
    exponent: float

    @cached_property
    def groups(self) -> tuple[EqualSets, ...]:
        """The sets in groups, most popular first; the shares of all sets sum to 1."""
        weighted = list(self._weighted())
        total = math.fsum(count * weight for count, weight in weighted)
        return tuple(EqualSets(count, weight / total) for count, weight in weighted)

    def _weighted(self) -> Iterator[tuple[int, float]]:
        if self.exponent == 0:
            yield self.sets, 1.0
            return
        first = 1
        while first <= self.sets:
            after = first + 1 if first <= EXACT_RANKS else min(math.ceil(first * GROWTH), self.sets + 1)
            middle = math.sqrt(first * (after - 1))
            yield after - first, middle**-self.exponent
            first = after

    def touched(self, joins: float) -> float:
        """The expected number of sets that get at least one of ``joins`` joins."""
        return math.fsum(group.touched(joins) for group in self.groups)
