"""The privacy cost of all joins of a client: :func:`kanon.gate.mechanism.bounds.all_joins` for every client of a log.

The epsilon of a client in a set depends on two small numbers: the instances in which it is present (with restart after
the crossing: the most searches that its runs can meet), and those that it leaves before their end (``interrupted``; one
for each run). Clients with equal numbers are one *class*.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from kanon.gate.mechanism.parameters import CrossingRestart, Parameters, most_searches
from kanon.noise.bound import Bound
from kanon.simulate.presence import Ints, Runs

Classes = dict[tuple[int, int], tuple[int, int, int, int]]
"""(instances, interrupted): the number of clients, and the largest ``possible``, ``outside`` and ``present``."""


@dataclass(frozen=True)
class Costs:
    """The inputs of ``bounds.all_joins`` for each member, (members,).

    ``possible`` is the number of instances, or of searches that could meet the client.
    """

    members: Ints
    instances: Ints
    interrupted: Ints
    possible: Ints
    outside: Ints
    present: Ints


def costs_of(runs: Runs, phases: Ints, parameters: Parameters) -> Costs:
    """The costs of the members, from their runs and the phases of the sets."""
    members, heads = np.unique(runs.members, return_index=True)

    def summed(values: Ints) -> Ints:
        return np.add.reduceat(values, heads) if heads.size else values

    w, restart = parameters.window, parameters.restart
    columns = _on_the_grid(runs, phases, w) if restart is None else _met(runs, w, restart)
    met, interrupted, possible, outside = (summed(column) for column in columns)
    return Costs(members, met, interrupted, possible, outside, summed(runs.ends - runs.begins))


def _met(runs: Runs, window: int, restart: CrossingRestart) -> tuple[Ints, Ints, Ints, Ints]:
    """:func:`bounds.of_runs`: searches met, interrupted, possible, and steps after each run."""
    lengths = runs.ends - runs.begins
    different, rows = np.unique(lengths, return_inverse=True)

    def searches(more: int) -> Ints:
        most = [most_searches(restart, int(n) + more) for n in different]
        return np.array(most, np.int64)[rows]

    after = restart.epoch - 1
    return 1 + searches(-window), np.ones_like(lengths), searches(after), np.full_like(lengths, after)


def _on_the_grid(runs: Runs, phases: Ints, window: int) -> tuple[Ints, Ints, Ints, Ints]:
    """:func:`bounds.all_joins`: instances met, interrupted, once more the instances, and steps after each run."""
    phase = phases[runs.sets]
    first, last = (runs.begins - phase) // window, (runs.ends - 1 - phase) // window
    end = (last + 1) * window + phase  # the end of the instance in which the run ends
    same = runs.members[1:] == runs.members[:-1]
    shared = np.concatenate(([False], same & (first[1:] == last[:-1])))  # in the instance of the previous end
    until = np.where(np.append(shared[1:], False), np.append(runs.begins[1:], 0), end)
    outside = until - runs.ends
    interrupted = outside > 0  # at most one per instance: a run is at least as long as an instance
    instances = last - first + 1 - shared
    return instances, interrupted.astype(np.int64), instances, outside


def classes_of(costs: Costs) -> Classes:
    """The classes of the members."""
    if not costs.members.size:
        return {}
    width = int(costs.interrupted.max()) + 1
    numbers, rows = np.unique(costs.instances * width + costs.interrupted, return_inverse=True)
    clients = np.bincount(rows)
    largest = np.zeros((3, len(numbers)), np.int64)
    for most, column in zip(largest, (costs.possible, costs.outside, costs.present), strict=True):
        np.maximum.at(most, rows, column)
    return {
        divmod(number, width): (c, *most)
        for number, c, *most in zip(numbers.tolist(), clients.tolist(), *largest.tolist(), strict=True)
    }


def merged(classes: Iterable[Classes]) -> Classes:
    """The classes of several groups of members together."""
    total: Classes = {}
    for part in classes:
        for name, (clients, possible, outside, present) in part.items():
            c, i, o, p = total.get(name, (0, 0, 0, 0))
            total[name] = c + clients, max(i, possible), max(o, outside), max(p, present)
    return total


def bounds_of(parameters: Parameters, classes: Classes) -> list[tuple[int, Bound]]:
    """The number of clients and the bound of each class, by ascending epsilon."""
    e1, e2 = parameters.threshold_law.epsilon, parameters.query_law.epsilon
    d1, d2 = parameters.threshold_law.shift_delta, parameters.query_law.tail_delta
    found = []
    for (instances, interrupted), (clients, possible, outside, present) in classes.items():
        epsilon = max(instances * e1 + interrupted * e2, instances * e2)
        found.append((clients, Bound(epsilon, max(possible * d1 + outside * d2, present * d2))))
    return sorted(found, key=lambda entry: entry[1].epsilon)
