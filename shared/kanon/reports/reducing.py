"""Third stage of a job: adds noise to the exact sums of one partition (Algorithm 1 of the Privacy Sandbox paper)."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kanon.reports.histogram import Histogram, distinct
from kanon.reports.noise import DiscreteLaplace, Randomness
from kanon.reports.parameters import Parameters

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
        return Histogram.merged([*sums])
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
