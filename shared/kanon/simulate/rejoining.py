"""The privacy cost of all joins of a client: :func:`kanon.gate.mechanism.bounds.all_joins` for every client of a log.

The epsilon of a client in a set depends on two small numbers: the instances in which it is present, and those that it
leaves before their end (``interrupted``). Clients with equal numbers are one *class*.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from kanon.gate.mechanism.parameters import Parameters
from kanon.noise.bound import Bound
from kanon.simulate.presence import Ints, Runs

Classes = dict[tuple[int, int], tuple[int, int, int]]
"""(instances, interrupted): the number of clients, and the largest numbers of steps absent and present."""


@dataclass(frozen=True)
class Costs:
    """The inputs of ``bounds.all_joins`` for each member, (members,)."""

    members: Ints
    instances: Ints
    interrupted: Ints
    outside: Ints
    present: Ints


def costs_of(runs: Runs, phases: Ints, window: int) -> Costs:
    """The costs of the members, from their runs and the phases of the sets."""
    phase = phases[runs.sets]
    first, last = (runs.begins - phase) // window, (runs.ends - 1 - phase) // window
    end = (last + 1) * window + phase  # the end of the instance in which the run ends
    same = runs.members[1:] == runs.members[:-1]
    shared = np.concatenate(([False], same & (first[1:] == last[:-1])))  # in the instance of the previous end
    until = np.where(np.append(shared[1:], False), np.append(runs.begins[1:], 0), end)
    outside = until - runs.ends
    interrupted = outside > 0  # at most one per instance: a run is at least as long as an instance
    members, heads = np.unique(runs.members, return_index=True)

    def summed(values: Ints) -> Ints:
        return np.add.reduceat(values, heads) if heads.size else values

    return Costs(
        members,
        summed(last - first + 1 - shared),
        summed(interrupted.astype(np.int64)),
        summed(outside),
        summed(runs.ends - runs.begins),
    )


def classes_of(costs: Costs) -> Classes:
    """The classes of the members."""
    if not costs.members.size:
        return {}
    width = int(costs.interrupted.max()) + 1
    numbers, rows = np.unique(costs.instances * width + costs.interrupted, return_inverse=True)
    clients = np.bincount(rows)
    outside, present = np.zeros(len(numbers), np.int64), np.zeros(len(numbers), np.int64)
    np.maximum.at(outside, rows, costs.outside)
    np.maximum.at(present, rows, costs.present)
    return {
        divmod(number, width): (c, o, p)
        for number, c, o, p in zip(numbers.tolist(), clients.tolist(), outside.tolist(), present.tolist(), strict=True)
    }


def merged(classes: Iterable[Classes]) -> Classes:
    """The classes of several groups of members together."""
    total: Classes = {}
    for part in classes:
        for name, (clients, outside, present) in part.items():
            c, o, p = total.get(name, (0, 0, 0))
            total[name] = c + clients, max(o, outside), max(p, present)
    return total


def bounds_of(parameters: Parameters, classes: Classes) -> list[tuple[int, Bound]]:
    """The number of clients and the bound of each class, by ascending epsilon."""
    e1, e2 = parameters.threshold_law.epsilon, parameters.query_law.epsilon
    d1, d2 = parameters.threshold_law.shift_delta, parameters.query_law.tail_delta
    found = []
    for (instances, interrupted), (clients, outside, present) in classes.items():
        epsilon = max(instances * e1 + interrupted * e2, instances * e2)
        found.append((clients, Bound(epsilon, max(instances * d1 + outside * d2, present * d2))))
    return sorted(found, key=lambda entry: entry[1].epsilon)
