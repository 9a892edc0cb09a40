"""Second and third stage of a job.

Second: a report that is in several shards counts in the first of them. Third: noise is added to the exact sums of one
partition (Algorithm 1 of the Privacy Sandbox paper).
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kanon.reports.histogram import Histogram, Sums, distinct
from kanon.reports.noise import DiscreteLaplace, Randomness
from kanon.reports.parameters import Parameters

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


MECHANISM = "kanon/reports/1"
"""Version of the mechanism. Change it with every change of the computation: it changes the noise."""
ROWS_AT_A_TIME = 4_000_000
"""Keys of the shards' histograms that are merged at once."""


@dataclass(frozen=True)
class Release:
    """One partition of a summary: keys in ascending order, and their noisy sums. This may be published."""

    keys: NDArray[np.bytes_]
    metrics: NDArray[np.int64]


@dataclass(frozen=True)
class Noised:
    """One partition with its noise. Publish only ``release()``: the other fields show exact sums."""

    exact: Histogram
    noise: NDArray[np.int64]
    threshold: int | None

    def release(self) -> Release:
        """All declared keys, or the discovered keys whose noisy sum is *above* the threshold."""
        metrics = self.exact.sums + self.noise
        if self.threshold is None:
            return Release(self.exact.keys, metrics)
        passes = metrics > self.threshold
        return Release(self.exact.keys[passes], metrics[passes])


def reduce_partition(
    sums: Iterable[Histogram],
    domain: NDArray[np.bytes_] | None,
    parameters: Parameters,
    randomness: Randomness,
    partition: int = 0,
) -> Noised:
    """Merge the shards' sums of one partition and add noise.

    With declared keys, all of them are released, also those without reports, and no others. In discovery a key without
    reports could never pass, since noise is at most the threshold.

    Args:
        sums: the partition's histogram of each shard.
        domain: the partition's declared keys, ``None`` in discovery.
        parameters: what the job promises.
        randomness: the seed of the noise.
        partition: number of the partition.

    Raises:
        JobError: the sums reach 2^62.
    """
    exact = exact_sums(sums, domain)
    tape = randomness.tape(partition, exact.digest())
    return Noised(exact, DiscreteLaplace.of(parameters).draw(tape, len(exact.keys)), parameters.threshold)


def exact_sums(sums: Iterable[Histogram], domain: NDArray[np.bytes_] | None) -> Histogram:
    """The exact sums: of the declared keys, or of all keys in the reports.

    Memory is bounded by the domain and a few histograms at a time.
    """
    if domain is None:
        total = Sums()
        for one in sums:
            total.add(one)
        return total.total()
    keys = distinct(domain)
    found = Histogram(keys, np.zeros(len(keys), np.int64))
    for some in _groups(sums):
        found = found.plus(Histogram.merged(some).at(keys))
    return found


def _groups(sums: Iterable[Histogram]) -> Iterator[list[Histogram]]:
    """The histograms in groups of about ``rows`` keys."""
    group: list[Histogram] = []
    for one in sums:
        group.append(one)
        if sum(len(each.keys) for each in group) >= ROWS_AT_A_TIME:
            yield group
            group = []
    yield group
