"""The leak of several instances together, at the worst counts, when the joins of other clients may react to answers.

For two laws p and q every test has a power under p and one under q. Only the upper edge of these points matters for a
pair of mechanisms: for any odds x the maximum of ``p(O) - x q(O)`` is on it. The edge of an instance is computed from
those of the following instances. So the computation is exhaustive, without sampling.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

from kanon.noise.laws import Law
from tests.exact_law import first_crossing_exact
from tests.proofs.gate.enumeration import Claim, Floats, Ratio, Small, describe

FLAT = 1e-15
"""A corner of an edge that stands out by less is left out."""
CHUNK = 2_000_000
"""How many numbers are handled at once."""


@dataclass(frozen=True)
class Part:
    """One instance, or a piece of one, and the steps of it at which the client counts.

    After an outcome before ``until`` one of ``then`` follows, whichever leaks most there; after the others nothing.
    """

    counted: tuple[bool, ...]
    until: int = 0
    then: tuple["Part", ...] = ()


def in_turn(*alternatives: list[tuple[bool, ...]]) -> tuple[Part, ...]:
    """Instances that follow each other whatever happens, each in one of several ways."""
    then: tuple[Part, ...] = ()
    for ways in reversed(alternatives):
        then = tuple(Part(counted, len(counted) + 1 if then else 0, then) for counted in ways)
    return then


def one_run(lengths: tuple[int, ...], begin: int, left: int) -> tuple[Part, ...]:
    """One join that shows from step ``begin`` of the first part on, for at most ``left`` steps over all parts.

    It may end earlier, as the client may join again. Who does so at step ``end`` of a part does it on the path
    without a crossing: nothing is left of the first join then, while after a crossing before ``end`` it goes on.
    """
    length, *others = lengths
    rest = left - (length - begin)
    then = one_run(tuple(others), 0, rest) if others and rest > 0 else ()
    parts = []
    for end in range(begin + 1, min(length, begin + left) + 1):
        until = length + 1 if end == length else end
        parts.append(Part(tuple(begin <= t < end for t in range(length)), until if then else 0, then))
    return tuple(parts)


@dataclass(frozen=True)
class Edge:
    """The upper edge of all (power under q, power under p), from (0, 0) to (1, 1), steepest first."""

    under_q: Floats
    under_p: Floats

    @cached_property
    def slopes(self) -> Floats:
        """Of its pieces, falling."""
        with np.errstate(divide="ignore"):
            return np.diff(self.under_p) / np.diff(self.under_q)

    def most(self, odds: Floats) -> Floats:
        """The most of ``p(O) - odds q(O)`` over all tests O."""
        corner = np.searchsorted(-self.slopes, -odds)
        return self.under_p[corner] - odds * self.under_q[corner]


NOTHING = Edge(np.array([0.0, 1.0]), np.array([0.0, 1.0]))
"""No test tells p from q."""


def edge_of(under_q: Floats, under_p: Floats) -> Edge:
    """The upper edge of points."""
    order = np.lexsort((-under_p, under_q))
    x, y = under_q[order], under_p[order]
    higher = np.append(True, y[1:] > np.maximum.accumulate(y)[:-1])
    corners: list[tuple[float, float]] = [(0.0, 0.0)]
    for b, a in zip([*x[higher].tolist(), 1.0], [*y[higher].tolist(), 1.0], strict=True):
        while len(corners) > 1:
            (b0, a0), (b1, a1) = corners[-2:]
            if b > b0 and a1 - a0 - (a - a0) * (b1 - b0) / (b - b0) > FLAT:
                break
            corners.pop()
        if b > corners[-1][0] or a > corners[-1][1]:
            corners.append((b, a))
    return Edge(np.array([b for b, _ in corners]), np.array([a for _, a in corners]))


@dataclass(frozen=True)
class Leak:
    """The law without the client's joins against that with them, or the other way round."""

    threshold_law: Law
    query_law: Law
    adding: bool

    def small(self, steps: int) -> Small:
        """An instance of so many steps."""
        return _small(self.threshold_law, self.query_law, steps)

    def laws(self, counted: tuple[bool, ...]) -> tuple[Floats, Floats]:
        """p and q for every sequence of counts."""
        small = self.small(len(counted))
        low, high = small.laws[small.without], small.laws[small.with_join(np.flatnonzero(counted))]
        return (high, low) if self.adding else (low, high)

    def edge(self, parts: tuple[Part, ...]) -> Edge:
        """What the worst of ``parts`` leaks with all that follows, at every epsilon at once."""
        return _edge(self, parts)

    def follows(self, part: Part) -> list[Edge]:
        """The edge of what follows each outcome of ``part``."""
        then = self.edge(part.then)
        return [then if outcome < part.until else NOTHING for outcome in range(len(part.counted) + 1)]

    def values(self, part: Part, odds: float) -> Floats:
        """The most of ``p(O) - odds q(O)`` for every sequence of counts in ``part`` and the worst afterwards."""
        p, q = self.laws(part.counted)
        total = np.zeros(len(p))
        for outcome, edge in enumerate(self.follows(part)):
            here, there = p[:, outcome], odds * q[:, outcome]
            possible = here > 0
            total[possible] += here[possible] * edge.most(there[possible] / here[possible])
        return total

    def most(self, parts: tuple[Part, ...], odds: Fraction) -> float:
        """The largest of :meth:`values`."""
        return max(float(self.values(part, float(odds)).max()) for part in parts)

    def certified(self, parts: tuple[Part, ...], p: Fraction, q: Fraction) -> Fraction:
        """What the worst strategy leaks in exact rationals after outcomes of probability p and q (times e^epsilon)."""
        if not parts or p == 0:
            return max(Fraction(0), p - q)
        found = [(self.values(part, float(q / p)), part) for part in parts]
        values, part = max(found, key=lambda one: float(one[0].max()))
        small = self.small(len(part.counted))
        place = small.without[int(values.argmax())]
        counts = [int(c) + small.parameters.k for c in small.counts[place]]
        more = [c + counted for c, counted in zip(counts, part.counted, strict=True)]
        here, there = (more, counts) if self.adding else (counts, more)
        laws = zip(_exact(small, tuple(here)), _exact(small, tuple(there)), strict=True)
        return sum(
            (
                self.certified(part.then if outcome < part.until else (), p * a, q * b)
                for outcome, (a, b) in enumerate(laws)
            ),
            Fraction(0),
        )


@lru_cache(maxsize=16)
def _small(threshold_law: Law, query_law: Law, steps: int) -> Small:
    return Small(threshold_law, query_law, steps)


@lru_cache(maxsize=4096)
def _exact(small: Small, counts: tuple[int, ...]) -> tuple[Fraction, ...]:
    return first_crossing_exact(small.parameters, counts)


@lru_cache(maxsize=256)
def _edge(leak: Leak, parts: tuple[Part, ...]) -> Edge:
    corners = [NOTHING]
    for part in parts:
        p, q = leak.laws(part.counted)
        follows = leak.follows(part)
        rows = max(1, CHUNK // sum(len(edge.slopes) for edge in follows))
        corners += [
            edge_of(*tests_of(p[start : start + rows], q[start : start + rows], follows))
            for start in range(0, len(p), rows)
        ]
    return edge_of(np.concatenate([e.under_q for e in corners]), np.concatenate([e.under_p for e in corners]))


def tests_of(p: Floats, q: Floats, follows: list[Edge]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The corners of each sequence's own edge: the pieces of what follows its outcomes, steepest first."""
    more_p = np.hstack([p[:, [o]] * np.diff(edge.under_p) for o, edge in enumerate(follows)])
    more_q = np.hstack([q[:, [o]] * np.diff(edge.under_q) for o, edge in enumerate(follows)])
    with np.errstate(divide="ignore", invalid="ignore"):
        steepest = np.argsort(-more_p / more_q, axis=1)
    under_p = np.cumsum(np.take_along_axis(more_p, steepest, axis=1), axis=1)
    under_q = np.cumsum(np.take_along_axis(more_q, steepest, axis=1), axis=1)
    return under_q.ravel(), under_p.ravel()


def costs(small: Small) -> tuple[tuple[Fraction, Fraction], tuple[Fraction, Fraction]]:
    """``(e1, d1), (e2, d2)``."""
    mu, nu = small.threshold_law, small.query_law
    return (mu.epsilon, mu.shift_delta), (nu.epsilon, nu.tail_delta)


@dataclass(frozen=True)
class Claims:
    """What is claimed for removing a client's joins, and for adding them."""

    removing: Claim
    adding: Claim


@dataclass(frozen=True)
class Case:
    """What may happen, whichever of ``parts`` leaks most, and what is claimed for it."""

    name: str
    parts: tuple[Part, ...]
    claims: Claims


NEAR = 0.999
"""Whether a ratio beyond is within its claim is decided in rationals."""


def worst(small: Small, cases: Iterable[Case]) -> Ratio:
    """The largest ratio of what leaks to what is claimed, over cases and both directions, certified in rationals."""
    found = Ratio(0.0, "")
    for case in cases:
        for adding, claim in ((False, case.claims.removing), (True, case.claims.adding)):
            leak = Leak(small.threshold_law, small.query_law, adding)
            reached = leak.most(case.parts, claim.factor) / float(claim.delta)
            if reached <= min(found.value, NEAR):
                continue
            value = leak.certified(case.parts, Fraction(1), claim.factor) / claim.delta
            where = f"{case.name}, {'adding' if adding else 'removing'}"
            assert abs(float(value) / reached - 1) < 1e-9, f"{describe(small)}: certified {value}, not {reached}"
            assert value <= 1, f"{describe(small)} exceeds its claim {float(value):.6f} times: {where}"
            if value > found.value:
                found = Ratio(float(value), where)
    return found


def of_one_join(small: Small, pieces: int = 2) -> Claims:
    """The theorem's claims for one join, which meets two instances; more pieces if one of them is cut."""
    (e1, d1), (e2, d2) = costs(small)
    w = small.window
    return Claims(Claim((e1,) * pieces + (e2,), pieces * d1 + (w - 1) * d2), Claim((e2,) * pieces, w * d2))


def pairs(small: Small, claims: Callable[[Small], Claims] = of_one_join) -> Iterator[Case]:
    """One join in two instances, from any step of the first on; joins may answer to answers."""
    w = small.window
    for begin in range(w):
        yield Case(f"join at {begin}", one_run((w, w), begin, w), claims(small))
