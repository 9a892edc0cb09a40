"""The results of a type on a log, as sums over its sets. They add up over the parts of a log."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from kanon.gate.mechanism.parameters import Parameters
from kanon.simulate.crossings import Crossings
from kanon.simulate.presence import Bools, Ints, Runs, Stretches
from kanon.simulate.rejoining import Classes, merged


@dataclass(frozen=True)
class JoinedSteps:
    """The distinct (set, step) with joins, sorted, and the number of joins of each. Each array is (n,)."""

    sets: Ints
    steps: Ints
    joins: Ints


@dataclass
class TypeOutcome:
    """The results of a type on a log, or on some sets of it.

    An *answer* is the status of a set in a step, from the set's first join to the end of the log. The *exact count* is
    the number of distinct clients in the window; the service counts tokens and never releases either.

    Attributes:
        sets: sets with a join.
        sets_true: sets that read true at least once.
        joins: rows of the log.
        joins_of_true_sets: joins of sets that read true at least once.
        joins_at_true: joins to sets that read true in the step of the join.
        answers: all answers.
        answers_true: true answers.
        answers_reached: answers with an exact count of at least k.
        answers_both: true answers with an exact count of at least k.
        sets_reached: sets whose exact count reaches k.
        delays: steps from the exact count's reaching k to the first true answer, of each such set that reads true.
        lost: times that a true status ended and the next answer was false.
        lost_reached: those with an exact count of at least k in that step.
        crossings: number of crossings.
        crossings_reached: those with an exact count of at least k in that step.
        touched: (set, step) with joins: evaluations without wake-ups.
        true_by_count: true answers by exact count; the last entry includes all larger counts.
        true_changes, reached_changes, members_changes: by step, the change of the number of sets that read true, of
            sets with an exact count of at least k, and of members kept.
        rejoining: the classes of all clients in all sets.
        costly_sets: sets whose exact count ever reaches the one below which a set is never true. A join in any other
            set costs nothing.
        costly: the clients of such sets, each with the number of them, (2, clients). A client is a hash.
    """

    sets: int
    sets_true: int
    joins: int
    joins_of_true_sets: int
    joins_at_true: int
    answers: int
    answers_true: int
    answers_reached: int
    answers_both: int
    sets_reached: int
    lost: int
    lost_reached: int
    crossings: int
    crossings_reached: int
    touched: int
    delays: Ints
    true_by_count: Ints
    true_changes: Ints
    reached_changes: Ints
    members_changes: Ints
    rejoining: Classes = field(default_factory=dict)
    costly_sets: int = 0
    costly: Ints = field(default_factory=lambda: np.zeros((2, 0), np.int64))

    @property
    def never(self) -> int:
        """Sets whose exact count reached k and that did not read true afterwards."""
        return self.sets_reached - len(self.delays)

    @property
    def true_below_k(self) -> int:
        """True answers with an exact count below k."""
        return self.answers_true - self.answers_both

    @property
    def false_from_k(self) -> int:
        """False answers with an exact count of at least k."""
        return self.answers_reached - self.answers_both

    @property
    def crossings_below_k(self) -> int:
        """Crossings with an exact count below k in their step."""
        return self.crossings - self.crossings_reached

    @property
    def most_members(self) -> int:
        """The largest number of members kept at one time."""
        return int(np.cumsum(self.members_changes).max(initial=0))


def added(outcomes: Sequence[TypeOutcome]) -> TypeOutcome:
    """The outcome of all sets together."""

    def total(name: str) -> Any:
        values = [getattr(outcome, name) for outcome in outcomes]
        if name == "rejoining":
            return merged(values)
        if name == "costly":
            clients, rows = np.unique(np.concatenate(values, axis=1)[0], return_inverse=True)
            sets = np.bincount(rows, np.concatenate(values, axis=1)[1], minlength=len(clients))
            return np.stack((clients, sets.astype(np.int64)))
        return np.concatenate(values) if name == "delays" else sum(values)

    return TypeOutcome(**{name: total(name) for name in TypeOutcome.__dataclass_fields__})


def outcome_of(
    parameters: Parameters,
    crossings: Crossings,
    exact: Stretches,
    runs: Runs,
    touched: JoinedSteps,
    steps: range,
    rejoining: Classes,
) -> TypeOutcome:
    """The outcome of some sets.

    Args:
        parameters: the constants of the type.
        crossings: the crossings of the sets.
        exact: the exact counts of at least all sets that cross or reach k.
        runs: the runs of all clients in all sets.
        touched: the touched (set, step) pairs.
        steps: the steps of the log.
        rejoining: the classes of the clients.
    """
    span = steps.stop - steps.start + 1  # one step longer, so that no interval reaches into the next set

    def key(sets: Ints, at: Ints) -> Ints:
        return sets * span + (at - steps.start)

    begins = key(crossings.sets, crossings.begins)
    ends = key(crossings.sets, np.minimum(crossings.ends, steps.stop))
    true = _Intervals(begins, ends)
    firsts = _heads(touched.sets)
    answers = int((steps.stop - touched.steps[firsts]).sum())
    is_true = true.covers(key(touched.sets, touched.steps))
    ever = np.isin(touched.sets, crossings.sets)

    held = true.overlap(key(exact.sets, exact.begins), key(exact.sets, exact.ends))
    reached = exact.counts >= parameters.k
    reach = exact.where(reached)

    answers_true = int((ends - begins).sum())
    most = most_counted(parameters)
    true_by_count = np.bincount(np.minimum(exact.counts, most), held, minlength=most + 1).astype(np.int64)
    true_by_count[0] = answers_true - int(held.sum())

    first_reach = _heads(reach.sets)
    delays = true.wait(key(reach.sets, reach.begins)[first_reach], reach.sets[first_reach] * span + span)
    over = np.flatnonzero(crossings.ends < steps.stop)
    renewed = np.isin(ends[over], begins)
    lost = ends[over[~renewed]]
    counted = _Intervals(key(reach.sets, reach.begins), key(reach.sets, reach.ends))

    def changes(begins: Ints, ends: Ints, weights: Ints | None = None) -> Ints:
        length = len(steps) + 1
        inside = np.minimum(ends, steps.stop) - steps.start
        up, down = (np.bincount(at, weights, minlength=length) for at in (begins - steps.start, inside))
        return (up - down).astype(np.int64)[:-1]

    over_kept = exact.where(exact.counts > parameters.members_kept)
    dropped = over_kept.counts - parameters.members_kept
    return TypeOutcome(
        sets=len(firsts),
        sets_true=len(_heads(crossings.sets)),
        joins=int(touched.joins.sum()),
        joins_of_true_sets=int(touched.joins[ever].sum()),
        joins_at_true=int(touched.joins[is_true].sum()),
        answers=answers,
        answers_true=answers_true,
        answers_reached=int((reach.ends - reach.begins).sum()),
        answers_both=int(held[reached].sum()),
        sets_reached=len(first_reach),
        lost=len(lost),
        lost_reached=int(counted.covers(lost).sum()),
        crossings=len(crossings.sets),
        crossings_reached=int(counted.covers(begins).sum()),
        touched=len(touched.sets),
        delays=delays,
        true_by_count=true_by_count,
        true_changes=changes(crossings.begins, crossings.ends),
        reached_changes=changes(reach.begins, reach.ends),
        members_changes=changes(runs.begins, runs.ends) - changes(over_kept.begins, over_kept.ends, dropped),
        rejoining=rejoining,
    )


def most_counted(parameters: Parameters) -> int:
    """The largest separate count: above all counts whose answer depends on the noise, and at least 2k."""
    return max(parameters.surely_true_from + 1, 2 * parameters.k)


def _heads(sets: Ints) -> Ints:
    """The first position of each set in a sorted array."""
    return np.unique(sets, return_index=True)[1]


@dataclass(frozen=True)
class _Intervals:
    """Disjoint, sorted, half-open intervals."""

    begins: Ints
    ends: Ints

    def before(self, at: Ints) -> Ints:
        """The number of integers below ``at`` in the intervals."""
        sums = np.concatenate(([0], np.cumsum(self.ends - self.begins)))
        number = np.searchsorted(self.begins, at, side="right")
        whole = sums[number]
        last = np.append(self.ends, 0)[number - 1]
        return whole - np.where(number > 0, np.maximum(last - at, 0), 0)

    def overlap(self, begins: Ints, ends: Ints) -> Ints:
        """For each given interval, the number of its integers in these intervals."""
        return self.before(ends) - self.before(begins)

    def covers(self, at: Ints) -> Bools:
        """For each integer, whether it is in the intervals."""
        number = np.searchsorted(self.begins, at, side="right")
        return (number > 0) & (np.append(self.ends, 0)[number - 1] > at)

    def wait(self, at: Ints, limits: Ints) -> Ints:
        """For each integer, the distance to the next integer in the intervals, where that is below a limit."""
        number = np.searchsorted(self.ends, at, side="right")
        first = np.maximum(np.append(self.begins, np.iinfo(np.int64).max)[number], at)
        waited: Ints = (first - at)[first < limits]
        return waited
