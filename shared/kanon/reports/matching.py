"""Second stage of a job: a report that stands in several shards counts in the first of them."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def skip_lists(report_ids: Sequence[NDArray[np.bytes_]]) -> list[frozenset[bytes]]:
    """The ids that each shard must skip, since an earlier shard has accepted them.

    Args:
        report_ids: ids of the accepted reports of each shard, 16 bytes each, every id once a shard.
    """
    ids = np.concatenate([np.empty(0, "S16"), *report_ids])
    shards = np.repeat(np.arange(len(report_ids)), [len(of_shard) for of_shard in report_ids])
    order = np.argsort(ids, kind="stable")  # equal ids stay in the order of their shards
    ordered = ids[order]
    repeated = order[1:][ordered[1:] == ordered[:-1]]
    skipped: list[set[bytes]] = [set() for _ in report_ids]
    for row in repeated.tolist():
        skipped[shards[row]].add(ids[row : row + 1].tobytes())
    return [frozenset(of_shard) for of_shard in skipped]
