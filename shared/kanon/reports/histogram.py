"""Sums by key: sorted arrays of keys of 16 bytes and of exact sums; and the reports that several shards have.

The keys of a job are divided into partitions for its workers. Their number follows from public sizes, never from sums.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256, shake_256

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import ECB
from numpy.typing import NDArray

from kanon.noise.words import length_prefixed
from kanon.reports.errors import JobError

KEY = "S16"
ROW = np.dtype([("key", KEY), ("sum", ">i8")])
LARGEST_SUM = 1 << 62
"""The limit of sums: a sum and its noise fit a signed integer of 64 bits."""
TOO_LARGE = "the values reach 2^62 in all: split the reports into several jobs"


@dataclass(frozen=True)
class Histogram:
    """Keys in ascending order, each once, and their sums.

    Args:
        keys: (n,), 16 bytes each.
        sums: (n,), at least 0.
    """

    keys: NDArray[np.bytes_]
    sums: NDArray[np.int64]

    @classmethod
    def of(cls, keys: NDArray[np.bytes_], values: NDArray[np.int64]) -> "Histogram":
        """Add up values by key. All arithmetic is on integers, so sums above 2^53 are exact.

        Raises:
            JobError: the values reach 2^62 in all.
        """
        if not len(keys):
            return EMPTY
        if int(values.max()) * len(values) >= LARGEST_SUM and sum(values.tolist()) >= LARGEST_SUM:
            raise JobError("INVALID_JOB", TOO_LARGE)
        order = _ascending(keys)
        ordered = keys[order]
        first = np.flatnonzero(np.concatenate(([True], ordered[1:] != ordered[:-1])))
        return cls(ordered[first], np.add.reduceat(values[order], first))

    @classmethod
    def merged(cls, parts: Sequence["Histogram"]) -> "Histogram":
        """The sums over several histograms."""
        parts = [part for part in parts if len(part.keys)]
        if len(parts) < 2:
            return parts[0] if parts else EMPTY
        return cls.of(np.concatenate([part.keys for part in parts]), np.concatenate([part.sums for part in parts]))

    def at(self, keys: NDArray[np.bytes_]) -> NDArray[np.int64]:
        """The sums of the given keys (distinct, ascending); 0 for a missing key."""
        sums = np.zeros(len(keys), np.int64)
        if len(keys):
            found = self.only(keys)
            sums[np.searchsorted(keys, found.keys)] = found.sums
        return sums

    def only(self, keys: NDArray[np.bytes_]) -> "Histogram":
        """The sums of those of its keys that are among the given ones (distinct, ascending, at least one)."""
        places = np.searchsorted(keys, self.keys)  # the histogram usually has fewer keys than the domain
        places[places == len(keys)] = 0
        asked = keys[places] == self.keys
        return Histogram(self.keys[asked], self.sums[asked])

    def plus(self, sums: NDArray[np.int64]) -> "Histogram":
        """The same keys with these sums added.

        Raises:
            JobError: a sum reaches 2^62.
        """
        total = self.sums + sums  # both are below 2^62
        if len(total) and int(total.max()) >= LARGEST_SUM:
            raise JobError("INVALID_JOB", TOO_LARGE)
        return Histogram(self.keys, total)

    def tobytes(self) -> bytes:
        """The keys and sums, 16 and 8 bytes each, in order."""
        rows = np.empty(len(self.keys), ROW)
        rows["key"], rows["sum"] = self.keys, self.sums
        return rows.tobytes()

    @classmethod
    def frombuffer(cls, data: memoryview) -> "Histogram":
        """Read what :meth:`tobytes` wrote."""
        rows = np.frombuffer(data, ROW)
        return cls(np.ascontiguousarray(rows["key"]), rows["sum"].astype(np.int64))

    def digest(self) -> bytes:
        """SHA-256 of its bytes. It is a part of the noise's seed."""
        return sha256(self.tobytes()).digest()

    def split(self, salt: bytes, partitions: int) -> list["Histogram"]:
        """The histogram of each partition."""
        of = partition_of(self.keys, salt, partitions)
        return [Histogram(self.keys[of == number], self.sums[of == number]) for number in range(partitions)]


EMPTY = Histogram(np.empty(0, KEY), np.empty(0, np.int64))


def _ascending(keys: NDArray[np.bytes_]) -> NDArray[np.intp]:
    """The indices that sort the keys. Two stable sorts of 8 bytes are faster in numpy than one of 16."""
    first, last = np.ascontiguousarray(keys).view(">u8").reshape(-1, 2).T.astype(np.uint64)
    order = np.argsort(last)
    return order[np.argsort(first[order], kind="stable")]


def distinct(keys: NDArray[np.bytes_]) -> NDArray[np.bytes_]:
    """The distinct keys of a domain, ascending."""
    ascending = len(keys) < 2 or bool((keys[:-1] < keys[1:]).all())
    return keys if ascending else np.unique(keys)


def partition_of(keys: NDArray[np.bytes_], salt: bytes, partitions: int) -> NDArray[np.int64]:
    """The partition of each key. The function is keyed, so that nobody can send all keys to one partition.

    The first 32 bits of AES-256 of the key under the salt, scaled to the number of partitions.
    """
    if partitions == 1 or not len(keys):
        return np.zeros(len(keys), np.int64)
    # Each key is one block and keys are distinct: ECB is the pseudorandom permutation itself.
    blocks = Cipher(AES(salt), ECB()).encryptor().update(np.ascontiguousarray(keys).tobytes())  # noqa: S305
    words = np.frombuffer(blocks, ">u4").reshape(-1, 4)[:, 0].astype(np.int64)
    return words * partitions >> 32


# ------------------------------------------------------------------------------------------------- partitions
KEYS_A_PARTITION = 1_000_000
SLOT_BYTES, SLOTS_A_PARTITION = 41, 10_000_000


def declared(files: Iterable[NDArray[np.bytes_]], most: int | None = None) -> NDArray[np.bytes_]:
    """The declared keys of these files, a set: in ascending order, each once.

    Raises:
        JobError: there is none, or there are more than ``most``.
    """
    parts = [np.empty(0, KEY)]
    for file in files:
        parts.append(file)
        if most is not None and sum(map(len, parts)) > most:
            parts = [distinct(np.concatenate(parts))]
            if len(parts[0]) > most:
                raise JobError("INVALID_JOB", f"a job declares at most {most:,} keys: split the domain")
    keys = distinct(np.concatenate(parts))
    if not len(keys):
        raise JobError("INVALID_JOB", "the domain holds no key: declare at least one, or use discovery")
    return keys


def partitions_of(keys: NDArray[np.bytes_] | None, report_bytes: int) -> int:
    """The number of partitions, for the declared keys (None in discovery) and the size of all reports."""
    if keys is not None:
        return -(-len(keys) // KEYS_A_PARTITION)
    return 1 + report_bytes // SLOT_BYTES // SLOTS_A_PARTITION


def salt_of(job_secret: bytes) -> bytes:
    """The key of ``partition_of``, 32 bytes."""
    return shake_256(length_prefixed(b"kanon/reports/partition/1", job_secret)).digest(32)


def divided(keys: NDArray[np.bytes_], salt: bytes, partitions: int) -> list[NDArray[np.bytes_]]:
    """The declared keys of each partition."""
    of = partition_of(keys, salt, partitions)
    return [keys[of == number] for number in range(partitions)]


# --------------------------------------------------------------------------------------------- several shards
ROWS_AT_A_TIME = 4_000_000
"""Keys of the shards' histograms that are merged at once."""
RUNS = 16
"""Ids are compared in groups by their first hex digit, so that only one group at a time is copied and sorted."""


def skip_lists(report_ids: Sequence[NDArray[np.bytes_]]) -> list[frozenset[bytes]]:
    """The ids that each shard must skip, because an earlier shard has accepted them.

    Args:
        report_ids: ids of the accepted reports of each shard, 16 bytes each, each id once per shard.
    """
    skipped: list[set[bytes]] = [set() for _ in report_ids]
    for run in range(RUNS):
        parts = [_run(of_shard, run) for of_shard in report_ids]
        shards = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
        ids = np.concatenate([np.empty(0, KEY), *parts])
        order = np.argsort(ids, kind="stable")  # stable: equal ids keep the order of their shards
        ordered = ids[order]
        for row in order[1:][ordered[1:] == ordered[:-1]].tolist():
            skipped[shards[row]].add(ids[row : row + 1].tobytes())
    return list(map(frozenset, skipped))


def _run(report_ids: NDArray[np.bytes_], run: int) -> NDArray[np.bytes_]:
    """The ids with this first hex digit."""
    first = np.ascontiguousarray(report_ids).view(np.uint8)[:: report_ids.itemsize]
    ids: NDArray[np.bytes_] = report_ids[first >> 4 == run]
    return ids


def exact_sums(sums: Iterable[Histogram], domain: NDArray[np.bytes_] | None) -> Histogram:
    """The exact sums: of the declared keys, or of all keys in the reports.

    Memory is bounded by the domain and a few histograms at a time.
    """
    keys = None if domain is None else distinct(domain)
    total = EMPTY if keys is None else Histogram(keys, np.zeros(len(keys), np.int64))
    for some in _groups(sums):
        total = Histogram.merged([total, *some]) if keys is None else total.plus(Histogram.merged(some).at(keys))
    return total


def _groups(sums: Iterable[Histogram]) -> Iterator[list[Histogram]]:
    """The histograms in groups of about ``ROWS_AT_A_TIME`` keys."""
    group: list[Histogram] = []
    for one in sums:
        group.append(one)
        if sum(len(each.keys) for each in group) >= ROWS_AT_A_TIME:
            yield group
            group = []
    yield group
