"""The partitions of a job: its keys, divided among workers. Their number follows from public sizes, never from sums."""

from collections.abc import Iterable
from hashlib import shake_256

import numpy as np
from numpy.typing import NDArray

from kanon.noise.words import length_prefixed
from kanon.reports.errors import JobError
from kanon.reports.histogram import KEY, distinct, partition_of

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
