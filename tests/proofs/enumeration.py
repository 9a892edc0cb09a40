"""Every instance, and every pair of instances, of a small mechanism against what the theorem claims for it.

Counts are relative to k. One that is too low to cross, or so high that it surely crosses, behaves like every
lower or higher one, so the sequences over ``lowest .. highest`` stand for all integer sequences.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from kanon.mechanism.exact_law import first_crossing, first_crossing_exact
from kanon.mechanism.laws import Law, exp_bounds
from kanon.mechanism.parameters import Parameters

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Claim:
    """``P <= e^(parts of epsilon) Q + delta`` for a pair of laws; epsilon is the sum of ``parts``."""

    parts: tuple[Fraction, ...]
    delta: Fraction

    @property
    def factor(self) -> Fraction:
        """A rational a little below e^epsilon: the product of those the deltas were computed with."""
        product = Fraction(1)
        for part in self.parts:
            product *= exp_bounds(part)[0]
        return product


@dataclass(frozen=True)
class Ratio:
    """The largest hockey-stick divergence over its bound, and where it was found."""

    value: float
    where: str


@dataclass(frozen=True)
class Small:
    """A mechanism of ``window`` steps with small laws."""

    threshold_law: Law
    query_law: Law
    window: int

    @cached_property
    def parameters(self) -> Parameters:
        """With a k that leaves an empty set false; counts below are relative to it."""
        mu, nu = self.threshold_law, self.query_law
        return Parameters(nu.max - mu.min + 1, max(2, self.window), 60, mu, nu)

    @property
    def lowest(self) -> int:
        """A count that never crosses, with or without one join more."""
        return self.threshold_law.min - self.query_law.max - 2

    @property
    def highest(self) -> int:
        """A count that always crosses."""
        return self.threshold_law.max - self.query_law.min

    @cached_property
    def levels(self) -> int:
        """How many counts matter, and one more on top: ``highest`` with one join more."""
        return self.highest - self.lowest + 2

    @cached_property
    def counts(self) -> NDArray[np.int64]:
        """Every sequence, shape ``(levels ** window, window)``, relative to k."""
        axes = np.meshgrid(*[np.arange(self.levels)] * self.window, indexing="ij")
        return np.stack([axis.ravel() for axis in axes], axis=1) + self.lowest

    @cached_property
    def laws(self) -> Floats:
        """The first-crossing law of each sequence."""
        return first_crossing(self.parameters, self.counts + self.parameters.k)

    @cached_property
    def without(self) -> NDArray[np.int64]:
        """Places of the sequences a join can still be added to."""
        return np.flatnonzero((self.counts < self.highest + 1).all(axis=1))

    def with_join(self, begin: int, end: int) -> NDArray[np.int64]:
        """For each of ``without`` the place of the sequence that is one higher on ``[begin, end)``."""
        shift = sum(self.levels ** (self.window - 1 - t) for t in range(begin, end))
        return self.without + shift

    @property
    def intervals(self) -> Iterator[tuple[int, int]]:
        """Every run of steps [begin, end) on which a join can show."""
        for begin in range(self.window):
            for end in range(begin + 1, self.window + 1):
                yield begin, end

    @cached_property
    def pair_claims(self) -> tuple[Claim, Claim]:
        """The theorem's claims for two instances: removing the join, adding it."""
        e1, e2 = self.threshold_law.epsilon, self.query_law.epsilon
        d1, d2 = self.threshold_law.shift_delta, self.query_law.tail_delta
        return (
            Claim((e1, e1, e2), 2 * d1 + (self.window - 1) * d2),
            Claim((e2, e2), self.window * d2),
        )

    def removing(self, end: int) -> Claim:
        """The proof's claim for one instance, the law without the join against that with it."""
        e1, e2 = self.threshold_law.epsilon, self.query_law.epsilon
        d1, d2 = self.threshold_law.shift_delta, self.query_law.tail_delta
        after = self.window - end
        return Claim((e1, e2) if after else (e1,), d1 + after * d2)

    def adding(self, begin: int, end: int) -> Claim:
        """The proof's claim for one instance, the law with the join against that without it."""
        return Claim((self.query_law.epsilon,), (end - begin) * self.query_law.tail_delta)

    def worst_instance(self) -> Ratio:
        """The largest ratio over every sequence, interval and direction, certified in exact rationals."""
        worst = Ratio(0.0, "")
        for begin, end in self.intervals:
            low, high = self.laws[self.without], self.laws[self.with_join(begin, end)]
            for claim, p, q in ((self.removing(end), low, high), (self.adding(begin, end), high, low)):
                reached = np.maximum(p - float(claim.factor) * q, 0).sum(axis=1)
                place = int(reached.argmax())
                value = self._certified(claim, place, begin, end, added=p is high)
                assert value <= 1, f"{self} exceeds its claim at {place}, [{begin}, {end})"
                # The floats may have missed the largest by their own error only.
                assert reached[place] / float(claim.delta) <= 1 + 1e-9
                if value > worst.value:
                    counts = self.counts[self.without[place]]
                    worst = Ratio(
                        float(value), f"k{counts.tolist()} {'with' if p is high else 'without'} [{begin}, {end})"
                    )
        return worst

    def _certified(self, claim: Claim, place: int, begin: int, end: int, *, added: bool) -> Fraction:
        counts = [int(c) + self.parameters.k for c in self.counts[self.without[place]]]
        more = [c + (begin <= t < end) for t, c in enumerate(counts)]
        first, second = (more, counts) if added else (counts, more)
        p, q = first_crossing_exact(self.parameters, first), first_crossing_exact(self.parameters, second)
        excess = sum((max(Fraction(0), a - claim.factor * b) for a, b in zip(p, q, strict=True)), Fraction(0))
        return excess / claim.delta

    def worst_pair(self) -> Ratio:
        """The largest ratio over two instances, with everything in the second chosen after the first.

        On the path without a crossing the join shows on [begin, end) of the first instance: to its end, or
        until the client joins again at step ``end``, and then nothing is left of it. After any other outcome
        it shows on the first ``r <= begin`` steps of the second (its window has w steps in all). The counts of
        the second instance and r are the worst for each outcome of the first: joins may answer to answers.
        """
        worst = Ratio(0.0, "")
        for removing, claim in zip((True, False), self.pair_claims, strict=True):
            for begin, end in self.intervals:
                low, high = self.laws[self.without], self.laws[self.with_join(begin, end)]
                p, q = (low, high) if removing else (high, low)
                outcome = np.arange(self.window + 1)
                goes_on = (outcome < end) | (end == self.window)
                reached = np.maximum(p - float(claim.factor) * q, 0)
                if begin > 0:
                    more = self._continued(p[:, goes_on], q[:, goes_on], begin, claim, removing=removing)
                    reached[:, goes_on] = np.maximum(reached[:, goes_on], more)
                ratios = reached.sum(axis=1) / float(claim.delta)
                place = int(ratios.argmax())
                if ratios[place] > worst.value:
                    counts = self.counts[self.without[place]].tolist()
                    worst = Ratio(
                        float(ratios[place]), f"k{counts} [{begin}, {end}), {'removing' if removing else 'adding'}"
                    )
        return worst

    def _continued(self, p: Floats, q: Floats, longest: int, claim: Claim, *, removing: bool) -> Floats:
        """``max over second instances of sum_o max(0, p Q(o) - factor q Q'(o))`` for each entry of p and q."""
        possible = p > 1e-15
        odds, place = np.unique(np.round(float(claim.factor) * q[possible] / p[possible], 12), return_inverse=True)
        best = np.zeros(len(odds))
        for r in range(1, longest + 1):
            low, high = self.laws[self.without], self.laws[self.with_join(0, r)]
            first, second = (low, high) if removing else (high, low)
            for start in range(0, len(odds), 64):
                chunk = odds[start : start + 64, None, None]
                reached = np.maximum(first - chunk * second, 0).sum(axis=2).max(axis=1)
                best[start : start + 64] = np.maximum(best[start : start + 64], reached)
        result = np.zeros(p.shape)
        result[possible] = p[possible] * best[place]
        return result
