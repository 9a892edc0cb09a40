"""Presence of members: joins become runs of steps in which a member counts, and stretches of steps with one count.

A *member* is a client or a token in a set. All arrays are integers, one entry per row, and half-open: a run or stretch
covers the steps from ``begins`` up to, but not including, ``ends``.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True)
class MemberJoins:
    """The distinct (member, step), sorted.

    Attributes:
        set_of: the set of each member, (members,). Members are numbered set by set.
        members: (n,).
        steps: (n,).
    """

    set_of: Ints
    members: Ints
    steps: Ints

    def where(self, chosen: Bools) -> "MemberJoins":
        """The joins of the chosen sets."""
        kept = chosen[self.set_of[self.members]]
        return MemberJoins(self.set_of, self.members[kept], self.steps[kept])

    @classmethod
    def of(cls, set_of: Ints, members: Ints, steps: Ints) -> "MemberJoins":
        """Sort the joins and drop repeated joins of a member within a step."""
        members, steps, _ = distinct(members, steps)
        return cls(set_of, members, steps)


def distinct(owners: Ints, steps: Ints) -> tuple[Ints, Ints, Ints]:
    """The owners and steps of the distinct (owner, step), sorted, and the number of times of each."""
    if not steps.size:
        return owners, steps, steps
    low, span = int(steps.min()), int(np.ptp(steps)) + 1
    keys, times = np.unique(owners * span + (steps - low), return_counts=True)
    owners = keys // span
    return owners, keys - owners * span + low, times


@dataclass(frozen=True)
class Runs:
    """The maximal runs of steps in which a member counts, sorted by member and time. Each array is (n,)."""

    members: Ints
    sets: Ints
    begins: Ints
    ends: Ints

    def where(self, chosen: Bools) -> "Runs":
        """Some of the runs."""
        return Runs(self.members[chosen], self.sets[chosen], self.begins[chosen], self.ends[chosen])


def runs_of(joins: MemberJoins, window: int, until: Ints | None = None) -> Runs:
    """The runs: a join counts at its step and the ``window - 1`` steps after it.

    ``until`` has a step for each join at which it does not count any more. There a run ends.
    """
    members, steps = joins.members, joins.steps
    if not steps.size:
        return Runs(members, members, steps, steps)
    apart = (members[1:] != members[:-1]) | (steps[1:] > steps[:-1] + window)
    if until is not None:
        apart |= until[1:] != until[:-1]
    begins = np.concatenate(([True], apart))
    last = np.append(np.flatnonzero(begins)[1:], len(steps)) - 1
    owners, ends = members[begins], steps[last] + window
    return Runs(owners, joins.set_of[owners], steps[begins], ends if until is None else np.minimum(ends, until[last]))


class Stretches(NamedTuple):
    """Intervals of steps with a constant count of a set, not 0, sorted by set and time. Each array is (n,)."""

    sets: Ints
    begins: Ints
    ends: Ints
    counts: Ints

    def where(self, chosen: Bools) -> "Stretches":
        """Some of the stretches."""
        return Stretches(self.sets[chosen], self.begins[chosen], self.ends[chosen], self.counts[chosen])

    def and_of_others(self, others: "Stretches") -> "Stretches":
        """These stretches, and those of other sets."""
        return Stretches(*by_set(self, others))


def by_set(some: Sequence[Ints], others: Sequence[Ints]) -> Iterator[Ints]:
    """The columns of the rows of both, sorted by set, which is the first column."""
    order = np.argsort(np.concatenate((some[0], others[0])), kind="stable")
    return (np.concatenate(pair)[order] for pair in zip(some, others, strict=True))


def stretches_of(runs: Runs, until: int) -> Stretches:
    """The counts of the sets up to, but not including, step ``until``."""
    if not runs.sets.size:
        return Stretches(runs.sets, runs.begins, runs.ends, runs.sets)
    low = int(runs.begins.min())
    span = max(until, int(runs.ends.max())) - low + 1
    base = runs.sets * span - low
    # One sort for arrivals (even keys) and departures (odd keys). Every set ends with count 0.
    keys = np.concatenate(((base + runs.begins) * 2, (base + runs.ends) * 2 + 1))
    keys.sort()
    counts = np.cumsum(1 - 2 * (keys & 1))
    keys >>= 1
    last = np.flatnonzero(np.append(keys[1:] != keys[:-1], True))
    keys, counts = keys[last], counts[last]
    sets = keys // span
    begins = keys - sets * span + low
    ends = np.minimum(np.append(begins[1:], 0), until)
    kept = (counts > 0) & (begins < until)
    return Stretches(sets[kept], begins[kept], ends[kept], counts[kept])
