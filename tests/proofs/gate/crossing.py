"""Restart after the crossing: what whole transcripts leak at the worst counts, over several searches and epochs.

Nothing of the proof (docs/proofs/crossing.md) is assumed but this: once the client no longer counts, both inputs are
equal, so later steps leak nothing. The counts of each search may depend on every answer before it; inside a search
there is one path without a crossing, so one sequence of counts. Edges (composition.py) make the computation complete.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Literal, Protocol

import numpy as np

from kanon.noise.laws import Law
from kanon.noise.words import TOTAL
from tests.exact_law import first_crossing_exact
from tests.proofs.gate.composition import CHUNK, NOTHING, Claims, Edge, edge_of, tests_of
from tests.proofs.gate.enumeration import Claim, Floats, Ratio, Small

Presence = tuple[int, ...]
"""What is known of the client's joins at a step; each kind of join has its own."""
OVER: Presence = ()
"""The client counts at no later step."""
WAITING: Presence = (-1,)
"""The client has not joined since the last search ended."""


class Joins(Protocol):
    """The joins of a client that are removed or added."""

    def at(self, step: int, known: Presence) -> tuple[tuple[bool, Presence], ...]:
        """At a step, from what is known before it: whether the client counts there, and what is known afterwards."""

    def after_the_end(self, step: int, known: Presence) -> Presence:
        """What counts of what is known after ``step``, if a search ends there."""


@dataclass(frozen=True)
class Rules:
    """When searches run, for ``steps`` steps from the first step of an epoch on.

    ``generation`` is the first step of a log generation that is an epoch's end.
    """

    window: int
    hold: int
    epoch: int
    steps: int
    generation: int | None = None

    def last(self, begin: int) -> int:
        """The last step of a search that begins at ``begin``: that of its epoch, or the one before the generation."""
        last = begin - begin % self.epoch + self.epoch - 1
        return last if self.generation is None or begin >= self.generation else min(last, self.generation - 1)

    def next_after(self, begin: int, crossing: int | None) -> int:
        """The first step of the search after the one that begins at ``begin``."""
        return self.last(begin) + 1 if crossing is None else crossing + self.hold


Again = Literal["", "of its last step", "of all its steps"]
"""The joins that count in one search, and by mistake in the next one too."""


@dataclass(frozen=True)
class OneJoin:
    """One join that shows for at most ``window`` steps from ``begin`` on, or from a step chosen by the answers.

    It may end earlier, at any step, by the answers: the client joins again.
    """

    window: int
    begin: int | None = None
    again: Again = ""

    def at(self, step: int, known: Presence) -> tuple[tuple[bool, Presence], ...]:
        if known == OVER:
            return ((False, OVER),)
        if known == WAITING:
            shows: tuple[tuple[bool, Presence], ...] = ((True, (self.window - 1,)),)
            if self.begin is None:
                return ((False, WAITING), *shows)
            return shows if step == self.begin else ((False, WAITING),)
        (left,) = known
        return ((False, OVER), (True, (left - 1,))) if left else ((False, OVER),)

    def after_the_end(self, step: int, known: Presence) -> Presence:
        now = known == (self.window - 1,)
        counts_again = self.again == "of all its steps" or (self.again == "of its last step" and now)
        return known if known == WAITING or counts_again else OVER


@dataclass(frozen=True)
class Every:
    """Joins at fixed steps. What is known is the last one that counts."""

    window: int
    joined: tuple[int, ...]

    def at(self, step: int, known: Presence) -> tuple[tuple[bool, Presence], ...]:
        last = step if step in self.joined else known[0] if known else -1
        counts = last >= 0 and step < last + self.window
        return ((counts, OVER if step >= max(self.joined) and not counts else (last,)),)

    def after_the_end(self, step: int, known: Presence) -> Presence:
        return WAITING if step < max(self.joined) else OVER


@dataclass(frozen=True)
class Way:
    """A way through a search while nothing crosses: where the client counts, and what may follow each outcome."""

    counted: tuple[bool, ...]
    follows: tuple[tuple[int, frozenset[Presence]], ...]


@dataclass(frozen=True)
class Game:
    """The law without the client's joins against that with them, or the other way round."""

    threshold_law: Law
    query_law: Law
    rules: Rules
    joins: Joins
    adding: bool

    def most(self, odds: Fraction) -> float:
        """The most of ``p(O) - odds q(O)`` over counts, joins and sets O of transcripts."""
        return float(self.edge(0, frozenset([WAITING])).most(np.array([float(odds)]))[0])

    def edge(self, begin: int, known: frozenset[Presence]) -> Edge:
        """What the searches from ``begin`` on leak, for the worst of what may be known by then."""
        if begin >= self.rules.steps or known == {OVER}:
            return NOTHING
        return _edge(self, begin, known)

    def ways(self, begin: int, known: frozenset[Presence]) -> Iterator[Way]:
        """Every way through the search that begins at ``begin``."""
        last = min(self.rules.last(begin), self.rules.steps - 1)
        paths: list[tuple[tuple[bool, ...], tuple[Presence, ...]]] = [((), (one,)) for one in known]
        for step in range(begin, last + 1):
            paths = [
                ((*counted, counts), (*seen, then))
                for counted, seen in paths
                for counts, then in self.joins.at(step, seen[-1])
            ]
        for counted, seen in paths:
            after = [*zip(range(begin, last + 1), seen[1:], strict=True), (None, seen[-1])]
            follows = []
            for crossing, one in after:
                at, end = self.rules.next_after(begin, crossing), last if crossing is None else crossing
                follows.append((at, self.reached(end + 1, at, self.joins.after_the_end(end, one))))
            yield Way(counted, tuple(follows))

    def reached(self, begin: int, end: int, known: Presence) -> frozenset[Presence]:
        """What may be known at ``end``, of what is known at ``begin``, over steps without a search."""
        states = {known}
        for step in range(begin, min(end, self.rules.steps)):
            states = {then for one in states for _, then in self.joins.at(step, one)}
        return frozenset(states)

    def laws(self, counted: tuple[bool, ...]) -> tuple[Floats, Floats]:
        """p and q for every sequence of counts in a search."""
        small = _small(self.threshold_law, self.query_law, len(counted))
        low, high = small.laws[small.without], small.laws[small.with_join(np.flatnonzero(counted))]
        return (high, low) if self.adding else (low, high)

    def certified(self, odds: Fraction) -> Fraction:
        """:meth:`most` in exact rationals, for the worst counts that the floats find."""
        return self._certified(0, frozenset([WAITING]), Fraction(1), odds)

    def _certified(self, begin: int, known: frozenset[Presence], p: Fraction, q: Fraction) -> Fraction:
        if begin >= self.rules.steps or known == {OVER} or p == 0:
            return max(Fraction(0), p - q)
        found = [(self._values(way, float(q / p)), way) for way in self.ways(begin, known)]
        values, way = max(found, key=lambda one: float(one[0].max()))
        small = _small(self.threshold_law, self.query_law, len(way.counted))
        counts = [int(c) + small.parameters.k for c in small.counts[small.without[int(values.argmax())]]]
        more = [c + counted for c, counted in zip(counts, way.counted, strict=True)]
        here, there = (more, counts) if self.adding else (counts, more)
        laws = first_crossing_exact(small.parameters, here), first_crossing_exact(small.parameters, there)
        return sum(
            (self._certified(at, then, p * a, q * b) for a, b, (at, then) in zip(*laws, way.follows, strict=True)),
            Fraction(0),
        )

    def _values(self, way: Way, odds: float) -> Floats:
        p, q = self.laws(way.counted)
        total = np.zeros(len(p))
        for outcome, (at, known) in enumerate(way.follows):
            here, there = p[:, outcome], odds * q[:, outcome]
            possible = here > 0
            total[possible] += here[possible] * self.edge(at, known).most(there[possible] / here[possible])
        return total


@lru_cache(maxsize=32)
def _small(threshold_law: Law, query_law: Law, steps: int) -> Small:
    return Small(threshold_law, query_law, steps)


@lru_cache(maxsize=4096)
def _edge(game: Game, begin: int, known: frozenset[Presence]) -> Edge:
    corners = [NOTHING]
    for way in game.ways(begin, known):
        follows = [game.edge(at, then) for at, then in way.follows]
        if not any(way.counted) and all(edge is NOTHING for edge in follows):
            continue
        p, q = game.laws(way.counted)
        rows = max(1, CHUNK // sum(len(edge.slopes) for edge in follows))
        corners += [
            edge_of(*tests_of(p[start : start + rows], q[start : start + rows], follows))
            for start in range(0, len(p), rows)
        ]
    return edge_of(np.concatenate([e.under_q for e in corners]), np.concatenate([e.under_p for e in corners]))


def ratio_of(game: Game, claim: Claim) -> Ratio:
    """What leaks over what is claimed, certified in rationals if it comes near."""
    reached = game.most(claim.factor) / float(claim.delta)
    if reached < 0.9:
        return Ratio(reached, "")
    value = game.certified(claim.factor) / claim.delta
    assert abs(float(value) / reached - 1) < 1e-6
    return Ratio(float(value), "certified")


Counts = Callable[[tuple[int, ...], int], int]
"""The count at a step, relative to k, from the crossings before it."""


@dataclass(frozen=True)
class Machine:
    """The mechanism step by step, a second program for its transcripts, in rationals; and its mistakes.

    Attributes:
        threshold_law: law of mu.
        query_law: law of nu.
        rules: when searches run.
        forgets: a crossing is forgotten when its status ends, so the search before it goes on with its mu.
        empty_restarts: a search ends where the count is no greater than this, and the next one begins.
        generations: steps at which a running search is cut and another one begins.
    """

    threshold_law: Law
    query_law: Law
    rules: Rules
    forgets: bool = False
    empty_restarts: int | None = None
    generations: tuple[int, ...] = ()

    def transcripts(self, counts: Counts) -> dict[tuple[int, ...], Fraction]:
        """The probability of every sequence of crossings."""
        found: dict[tuple[int, ...], Fraction] = {}
        law, nu, rules = self.threshold_law, self.query_law, self.rules
        start = {u: law.probability(u) for u in range(law.min, law.max + 1)}

        def run(step: int, crossings: tuple[int, ...], begin: int, weights: dict[int, Fraction]) -> None:
            mass = sum(weights.values(), Fraction(0))
            if not mass:
                return
            if step >= rules.steps:
                found[crossings] = found.get(crossings, Fraction(0)) + mass
                return
            if begin <= step and step in self.generations:
                begin = step
            if step < begin:
                run(step + 1, crossings, begin, weights)
                return
            if step == begin:
                weights = {u: mass * p for u, p in start.items()}
            count = counts(crossings, step)
            crosses = {u: reached(nu, u - count) for u in weights}
            above = {u: p * crosses[u] for u, p in weights.items()}
            below = {u: p * (1 - crosses[u]) for u, p in weights.items()}
            if self.forgets:
                ahead(step + rules.hold, (*crossings, step), begin, above)
            else:
                run(step + 1, (*crossings, step), rules.next_after(begin, step), above)
            emptied = self.empty_restarts is not None and count <= self.empty_restarts
            ended = step == rules.last(begin)
            run(step + 1, crossings, rules.next_after(begin, None) if ended else step + 1 if emptied else begin, below)

        def ahead(step: int, crossings: tuple[int, ...], begin: int, weights: dict[int, Fraction]) -> None:
            """Go on with the old search, if its epoch still runs; else with the next one."""
            over = step > rules.last(begin)
            run(step, crossings, rules.next_after(begin, None) if over else begin, weights)

        run(0, (), 0, {0: Fraction(1)})
        return found


def reached(law: Law, a: int) -> Fraction:
    """``P(nu >= a)``."""
    if a <= law.min:
        return Fraction(1)
    return 1 - Fraction(law.cumulative[min(a - law.min, len(law.weights)) - 1], TOTAL)


def excess(p: dict[tuple[int, ...], Fraction], q: dict[tuple[int, ...], Fraction], odds: Fraction) -> Fraction:
    """The most of ``p(O) - odds q(O)`` over sets O of transcripts."""
    return sum((max(Fraction(0), mass - odds * q.get(one, Fraction(0))) for one, mass in p.items()), Fraction(0))


def leaks(
    machine: Machine, counts: Counts, counted: Callable[[tuple[int, ...], int], bool], claims: Claims
) -> Fraction:
    """What leaks over what is claimed, for one strategy, in the worse direction."""
    without = machine.transcripts(counts)
    with_it = machine.transcripts(lambda crossings, step: counts(crossings, step) + counted(crossings, step))
    return max(
        excess(without, with_it, claims.removing.factor) / claims.removing.delta,
        excess(with_it, without, claims.adding.factor) / claims.adding.delta,
    )
