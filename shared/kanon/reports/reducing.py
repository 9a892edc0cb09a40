"""Third stage of a job: exact sums of one partition in, noisy sums out (Algorithm 1 of the Privacy Sandbox paper)."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kanon.reports.histogram import Histogram, distinct
from kanon.reports.noise import DiscreteLaplace, Randomness
from kanon.reports.parameters import Parameters

ROWS_AT_A_TIME = 4_000_000
"""Keys of the shards' histograms that are merged at once."""


@dataclass(frozen=True)
class Release:
    """One partition of a summary: keys in ascending order, and their noisy sums. This may be published."""

    keys: NDArray[np.bytes_]
    metrics: NDArray[np.int64]


@dataclass(frozen=True)
class Noised:
    """One partition with its noise. Only ``release`` may be published; the rest shows exact sums."""

    exact: Histogram
    noise: NDArray[np.int64]
    threshold: int | None

    def release(self) -> Release:
        """Every declared key; or the discovered keys whose noisy sum is *above* the threshold."""
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

    Declared keys are never compared with the keys seen: a key without reports is released with noise like any
    other, and a key outside the list never is. In discovery a key that no report names has no sum and could never
    pass: noise is at most the threshold.

    Args:
        sums: the partition's histogram of each shard.
        domain: the partition's declared keys, ``None`` in discovery.
        parameters: what the job promises.
        randomness: what names the noise.
        partition: number of the partition.

    Raises:
        JobError: the sums reach 2^62.
    """
    exact = exact_sums(sums, domain)
    tape = randomness.tape(partition, exact.digest())
    return Noised(exact, DiscreteLaplace.of(parameters).draw(tape, len(exact.keys)), parameters.threshold)


def exact_sums(sums: Iterable[Histogram], domain: NDArray[np.bytes_] | None) -> Histogram:
    """The numbers that noise is added to: the declared keys' sums, or those of all keys seen.

    Declared keys need memory for the domain and some histograms at a time, however many there are.
    """
    if domain is None:
        return Histogram.merged([*sums])
    keys = distinct(domain)
    found = Histogram(keys, np.zeros(len(keys), np.int64))
    for some in _groups(sums):
        found = found.plus(Histogram.merged(some).at(keys))
    return found


def _groups(sums: Iterable[Histogram]) -> Iterator[list[Histogram]]:
    """The histograms in groups of about so many rows."""
    group: list[Histogram] = []
    for one in sums:
        group.append(one)
        if sum(len(each.keys) for each in group) >= ROWS_AT_A_TIME:
            yield group
            group = []
    yield group
