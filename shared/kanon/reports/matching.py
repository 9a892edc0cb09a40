"""Second stage of a job: a report that is in several shards counts in the first of them."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

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
