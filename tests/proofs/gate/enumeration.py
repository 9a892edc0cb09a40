"""Every instance of a small mechanism against what the proof claims for it (several: composition.py).

Counts are relative to k. One that is too low to cross, or so high that it surely crosses, behaves like every
lower or higher one, so the sequences over ``lowest .. highest`` stand for all integer sequences.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import combinations, product

import numpy as np
from numpy.typing import NDArray

from kanon.gate.mechanism.exact_law import first_crossing
from kanon.gate.mechanism.parameters import Parameters
from kanon.noise.exact import exp_bounds
from kanon.noise.laws import SHAPES, Law, Shape, one_sided, two_sided
from tests.exact_law import first_crossing_exact

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

    def with_join(self, steps: Iterable[int]) -> NDArray[np.int64]:
        """For each of ``without`` the place of the sequence that is one higher at ``steps``."""
        higher: NDArray[np.int64] = self.without + sum(self.levels ** (self.window - 1 - int(t)) for t in steps)
        return higher

    @property
    def patterns(self) -> Iterator[tuple[int, ...]]:
        """Every set of steps at which a client can count."""
        for number in range(1, self.window + 1):
            yield from combinations(range(self.window), number)

    def removing(self, counted: tuple[int, ...]) -> Claim:
        """The proof's claim for one instance, the law without the client against that with it."""
        e1, e2 = self.threshold_law.epsilon, self.query_law.epsilon
        d1, d2 = self.threshold_law.shift_delta, self.query_law.tail_delta
        outside = self.window - counted[0] - len(counted)
        return Claim((e1, e2) if outside else (e1,), d1 + outside * d2)

    def adding(self, counted: tuple[int, ...]) -> Claim:
        """The proof's claim for one instance, the law with the client against that without it."""
        return Claim((self.query_law.epsilon,), len(counted) * self.query_law.tail_delta)

    def worst_instance(self) -> Ratio:
        """The largest ratio over every sequence, pattern and direction, certified in exact rationals."""
        worst = Ratio(0.0, "")
        for counted in self.patterns:
            low, high = self.laws[self.without], self.laws[self.with_join(counted)]
            for claim, p, q in ((self.removing(counted), low, high), (self.adding(counted), high, low)):
                reached = np.maximum(p - float(claim.factor) * q, 0).sum(axis=1)
                place = int(reached.argmax())
                value = self._certified(claim, place, counted, added=p is high)
                assert value <= 1, f"{self} exceeds its claim at {place}, {counted}"
                # The floats may have missed the largest by their own error only.
                assert reached[place] / float(claim.delta) <= 1 + 1e-9
                if value > worst.value:
                    counts = self.counts[self.without[place]]
                    worst = Ratio(
                        float(value), f"k{counts.tolist()} {'with' if p is high else 'without'} one at {counted}"
                    )
        return worst

    def _certified(self, claim: Claim, place: int, counted: tuple[int, ...], *, added: bool) -> Fraction:
        counts = [int(c) + self.parameters.k for c in self.counts[self.without[place]]]
        more = [c + (t in counted) for t, c in enumerate(counts)]
        first, second = (more, counts) if added else (counts, more)
        p, q = first_crossing_exact(self.parameters, first), first_crossing_exact(self.parameters, second)
        excess = sum((max(Fraction(0), a - claim.factor * b) for a, b in zip(p, q, strict=True)), Fraction(0))
        return excess / claim.delta


SPLITS = [
    (Fraction(3, 4), Fraction(3, 4)),
    (Fraction(9, 10), Fraction(6, 5)),
    (Fraction(1, 2), Fraction(2)),
    (Fraction(1), Fraction(1, 4)),
]


def mechanisms(shape: Shape, window: int, most: int) -> Iterator[Small]:
    """Every pair of truncations up to ``most`` with every split of epsilon."""
    law = SHAPES[shape]
    for first, second in product(range(1, most + 1), repeat=2):
        for threshold_epsilon, query_epsilon in SPLITS:
            yield Small(law(threshold_epsilon, first), law(query_epsilon, second), window)


def wide(window: int) -> Iterator[Small]:
    """Laws so wide that delta is small: what they leak tries a claim's epsilon and not its delta."""
    for threshold_epsilon, query_epsilon in SPLITS:
        yield Small(one_sided(threshold_epsilon, 8), one_sided(query_epsilon, 8), window)
        yield Small(two_sided(threshold_epsilon, 6), two_sided(query_epsilon, 6), window)


def describe(small: Small) -> str:
    """A mechanism in a line."""
    mu, nu = small.threshold_law, small.query_law
    return f"{mu.shape} {float(mu.epsilon):g},{mu.truncation} / {float(nu.epsilon):g},{nu.truncation} w={small.window}"


def largest(cases: list[tuple[Small, Ratio]], what: str) -> Ratio:
    """The largest ratio, printed with the mechanism that reaches it."""
    small, worst = max(cases, key=lambda case: case[1].value)
    print(
        f"\n{what}: largest ratio to the claim {worst.value:.6f} of {len(cases)} mechanisms:"
        f" {describe(small)}, {worst.where}"
    )
    return worst
