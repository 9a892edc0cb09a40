"""Second stage of a job: a report that is in several shards counts in the first of them."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

MOST_SORTED = 1 << 22
"""Ids that are sorted together."""
RUNS = 16
"""Ids are compared in groups by their first hex digit, so that only one group at a time is copied and sorted."""


def skip_lists(report_ids: Sequence[NDArray[np.bytes_]]) -> list[frozenset[bytes]]:
    """The ids that each shard must skip, because an earlier shard has accepted them.

    Args:
        report_ids: ids of the accepted reports of each shard, 16 bytes each, each id once per shard.
    """
    skipped: list[frozenset[bytes]] = [frozenset() for _ in report_ids]
    for run in range(RUNS):
        for shard, ids in enumerate(_repeated([_run(of_shard, run) for of_shard in report_ids])):
            skipped[shard] |= ids
    return skipped


class Earlier:
    """The ids of the shards before, for a job that reads its shards one after the other."""

    def __init__(self) -> None:
        self._sorted: list[NDArray[np.bytes_]] = []

    def add(self, report_ids: NDArray[np.bytes_]) -> frozenset[bytes]:
        """Add the ids of a shard, each once. Returns those that an earlier shard has accepted: it must skip them."""
        ids = np.sort(report_ids)
        repeated = np.zeros(len(ids), bool)
        for earlier in self._sorted:
            places = np.searchsorted(earlier, ids)
            places[places == len(earlier)] = 0
            repeated |= earlier[places] == ids
        added = ids[~repeated]
        while self._sorted and len(self._sorted[-1]) <= min(2 * len(added), MOST_SORTED - len(added)):
            added = np.sort(np.concatenate([self._sorted.pop(), added]))
        if len(added):
            self._sorted.append(added)
        return frozenset(ids[row : row + 1].tobytes() for row in np.flatnonzero(repeated).tolist())


def _run(report_ids: NDArray[np.bytes_], run: int) -> NDArray[np.bytes_]:
    """The ids with this first hex digit."""
    first = np.ascontiguousarray(report_ids).view(np.uint8)[:: report_ids.itemsize]
    ids: NDArray[np.bytes_] = report_ids[first >> 4 == run]
    return ids


def _repeated(report_ids: Sequence[NDArray[np.bytes_]]) -> list[set[bytes]]:
    """The ids of each shard that an earlier shard also has."""
    ids = np.concatenate([np.empty(0, "S16"), *report_ids])
    shards = np.repeat(np.arange(len(report_ids)), [len(of_shard) for of_shard in report_ids])
    order = np.argsort(ids, kind="stable")  # stable: equal ids keep the order of their shards
    ordered = ids[order]
    repeated = order[1:][ordered[1:] == ordered[:-1]]
    skipped: list[set[bytes]] = [set() for _ in report_ids]
    for row in repeated.tolist():
        skipped[shards[row]].add(ids[row : row + 1].tobytes())
    return skipped
