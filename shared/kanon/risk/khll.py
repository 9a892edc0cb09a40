"""KHyperLogLog: how many users each value of a column has, from a uniform sample of the values.

Chia et al., "KHyperLogLog" (2019); Desfontaines, *Lowering the cost of anonymization* (2020), section 4.1. The first
level keeps the K values with the smallest keyed hashes. The second keeps, for each of them, the set of its users'
hashes: exactly up to 128 users, above that as a HyperLogLog of 1,024 registers. The number of rows is exact for each
kept value: a value whose hash is too large is never kept again.

A sketch is a function of the set of (value, user) hashes and of the number of rows per value. So sketches of parts
of a log merge in any order to the sketch of the whole, byte for byte.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from kanon.risk import hyperloglog
from kanon.risk.errors import RiskError
from kanon.risk.hyperloglog import Hashes

DEFAULT_SIZE = 2_048
MOST_EXACT = 128
"""Users of a value that are kept exactly."""
REGISTER_BITS = 10
REGISTERS = 1 << REGISTER_BITS
SPACE = 2.0**64

Counts = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Sketch:
    """A sketch of n <= ``size`` values.

    Attributes:
        size: K, the largest number of kept values.
        key_check: :attr:`kanon.risk.hashing.Key.check` of its key, 8 bytes.
        total_rows: all rows of the log, also those of values that are not kept.
        values: hashes in ascending order, shape (n,).
        rows: rows of each value, shape (n,).
        owners: positions in ``values``, ascending, shape (m,). ``owners`` and ``users`` are the exact second levels.
        users: user hashes, ascending for one owner, shape (m,).
        dense: positions in ``values`` of those with more than 128 users, ascending, shape (d,).
        registers: their HyperLogLogs, shape (d, 1024).
    """

    size: int
    key_check: bytes
    total_rows: int
    values: Hashes
    rows: Counts
    owners: Counts
    users: Hashes
    dense: Counts
    registers: NDArray[np.uint8]

    @property
    def full(self) -> bool:
        """Whether the log may have values that are not kept."""
        return len(self.values) == self.size

    @property
    def bound(self) -> int:
        """h_K, the largest kept hash; 2^64 if every value is kept."""
        return int(self.values[-1]) if self.full else 2**64

    @property
    def number_of_values(self) -> float:
        """Distinct values of the log: exact below K, else (K - 1) 2^64 / h_K with standard error 1 / sqrt(K - 2)."""
        return (self.size - 1) * SPACE / self.bound if self.full else float(len(self.values))

    @cached_property
    def counts(self) -> NDArray[np.float64]:
        """Users of each value, shape (n,): exact up to 128, then within about 3%."""
        counts = np.bincount(self.owners, minlength=len(self.values)).astype(np.float64)
        counts[self.dense] = [max(hyperloglog.estimate(r), MOST_EXACT + 1) for r in self.registers]
        return counts


def empty(size: int, key_check: bytes) -> Sketch:
    """The sketch of no rows."""
    hashes, counts = np.empty(0, np.uint64), np.empty(0, np.int64)
    return from_pairs(hashes, counts, counts, hashes, size, key_check, 0)


def from_pairs(
    values: Hashes, rows: Counts, owners: Counts, users: Hashes, size: int, key_check: bytes, total_rows: int
) -> Sketch:
    """A sketch from distinct values in ascending order, their rows, and (value, user) pairs in any order."""
    whole = Sketch(
        size, key_check, total_rows, values, rows, owners, users,
        np.empty(0, np.int64), np.empty((0, REGISTERS), np.uint8),
    )  # fmt: skip
    return _normal(whole)


def merge(first: Sketch, second: Sketch) -> Sketch:
    """The sketch of both logs together, with the smaller of their sizes.

    Raises:
        RiskError: the sketches have different keys.
    """
    if first.key_check != second.key_check:
        raise RiskError("the sketches have different keys: make both again with one --key file")
    values, position = np.unique(np.concatenate([first.values, second.values]), return_inverse=True)
    of_first, of_second = position[: len(first.values)], position[len(first.values) :]
    rows = np.zeros(len(values), np.int64)
    rows[of_first] = first.rows
    rows[of_second] += second.rows
    both = Sketch(
        min(first.size, second.size),
        first.key_check,
        first.total_rows + second.total_rows,
        values,
        rows,
        np.concatenate([of_first[first.owners], of_second[second.owners]]),
        np.concatenate([first.users, second.users]),
        np.concatenate([of_first[first.dense], of_second[second.dense]]),
        np.concatenate([first.registers, second.registers]),
    )
    return _normal(both)


def _normal(sketch: Sketch) -> Sketch:
    """Keep the K smallest values, each pair once, and a HyperLogLog for values with more than 128 users."""
    n = min(len(sketch.values), sketch.size)
    kept = sketch.owners < n
    owners, users = _distinct_pairs(sketch.owners[kept], sketch.users[kept])
    dense = np.zeros(n, bool)
    dense[sketch.dense[sketch.dense < n]] = True
    dense |= np.bincount(owners, minlength=n) > MOST_EXACT
    where = np.flatnonzero(dense)
    row_of = np.cumsum(dense) - 1
    registers = np.zeros((len(where), REGISTERS), np.uint8)
    for position, one in zip(sketch.dense, sketch.registers, strict=True):
        if position < n:
            np.maximum(registers[row_of[position]], one, out=registers[row_of[position]])
    moved = dense[owners]
    index, rank = hyperloglog.index_and_rank(users[moved], REGISTER_BITS)
    np.maximum.at(registers, (row_of[owners[moved]], index), rank)
    return Sketch(
        sketch.size, sketch.key_check, sketch.total_rows, sketch.values[:n], sketch.rows[:n],
        owners[~moved], users[~moved], where, registers,
    )  # fmt: skip


def _distinct_pairs(owners: Counts, users: Hashes) -> tuple[Counts, Hashes]:
    order = np.lexsort((users, owners))
    owners, users = owners[order], users[order]
    new = np.ones(len(owners), bool)
    new[1:] = (owners[1:] != owners[:-1]) | (users[1:] != users[:-1])
    return owners[new], users[new]
