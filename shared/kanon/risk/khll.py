"""KHyperLogLog: how many users each value of a column has, from a uniform sample of the values.

Chia et al., "KHyperLogLog" (2019); Desfontaines, *Lowering the cost of anonymization* (2020), section 4.1. The first
level keeps the K values with the smallest keyed hashes. The second keeps, for each of them, the set of its users'
hashes: exactly up to 128 users, above that as a HyperLogLog of 1,024 registers. The number of rows is exact for each
kept value: a value whose hash is too large is never kept again.

A sketch is a function of the set of (value, user) hashes and of the number of rows per value. So sketches of parts
of a log merge in any order to the sketch of the whole, byte for byte.
"""

import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from kanon.risk.errors import RiskError
from kanon.risk.hashing import HashArray, estimate, index_and_rank

MOST_EXACT = 128
"""Users of a value that are kept exactly."""
REGISTER_BITS = 10
REGISTERS = 1 << REGISTER_BITS
SPACE = 2.0**64
COLUMNS_BYTES = 8
UNKNOWN_COLUMNS = bytes(COLUMNS_BYTES)

Counts = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Sketch:
    """A sketch of n <= ``size`` values.

    Attributes:
        size: K, the largest number of kept values.
        key_check: :attr:`kanon.risk.hashing.HashKey.check` of its key, 8 bytes.
        total_rows: all rows of the log, also those of values that are not kept.
        values: hashes in ascending order, shape (n,).
        rows: rows of each value, shape (n,).
        owners: positions in ``values``, ascending, shape (m,). ``owners`` and ``users`` are the exact second levels.
        users: user hashes, ascending for one owner, shape (m,).
        dense: positions in ``values`` of those with more than 128 users, ascending, shape (d,).
        registers: their HyperLogLogs, shape (d, 1024).
        columns: :meth:`kanon.risk.hashing.HashKey.columns` of its columns, 8 bytes; zeros if nobody knows them.
    """

    size: int
    key_check: bytes
    total_rows: int
    values: HashArray
    rows: Counts
    owners: Counts
    users: HashArray
    dense: Counts
    registers: NDArray[np.uint8]
    columns: bytes = UNKNOWN_COLUMNS

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
        counts[self.dense] = [max(estimate(r), MOST_EXACT + 1) for r in self.registers]
        return counts


def empty(size: int, key_check: bytes, columns: bytes = UNKNOWN_COLUMNS) -> Sketch:
    """The sketch of no rows."""
    hashes, counts = np.empty(0, np.uint64), np.empty(0, np.int64)
    return from_pairs(hashes, counts, counts, hashes, size, key_check, 0, columns)


def from_pairs(
    values: HashArray,
    rows: Counts,
    owners: Counts,
    users: HashArray,
    size: int,
    key_check: bytes,
    total_rows: int,
    columns: bytes = UNKNOWN_COLUMNS,
) -> Sketch:
    """A sketch from distinct values in ascending order, their rows, and (value, user) pairs in any order."""
    whole = Sketch(
        size, key_check, total_rows, values, rows, owners, users,
        np.empty(0, np.int64), np.empty((0, REGISTERS), np.uint8), columns,
    )  # fmt: skip
    return _normal(whole)


def merge_parts(parts: Sequence[Sketch]) -> Sketch:
    """The sketch of a log from those of its parts, with the smallest of their sizes.

    Raises:
        RiskError: the sketches have different keys, or are of different columns.
    """
    whole = reduce(merge, parts)
    if len({one.columns for one in parts} - {UNKNOWN_COLUMNS}) > 1:
        raise RiskError("the sketches are of different columns: make them again with one --value and one --user")
    return whole


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
        first.columns if first.columns == second.columns else UNKNOWN_COLUMNS,
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
    index, rank = index_and_rank(users[moved], REGISTER_BITS)
    np.maximum.at(registers, (row_of[owners[moved]], index), rank)
    return Sketch(
        sketch.size, sketch.key_check, sketch.total_rows, sketch.values[:n], sketch.rows[:n],
        owners[~moved], users[~moved], where, registers, sketch.columns,
    )  # fmt: skip


def _distinct_pairs(owners: Counts, users: HashArray) -> tuple[Counts, HashArray]:
    order = np.lexsort((users, owners))
    owners, users = owners[order], users[order]
    new = np.ones(len(owners), bool)
    new[1:] = (owners[1:] != owners[:-1]) | (users[1:] != users[:-1])
    return owners[new], users[new]


# --- files ----------------------------------------------------------------------------------------

WARNING = "holds raw personal data of the log's users: do not share it, and delete it after use"

_MAGIC = b"kanonKHL"
_VERSION = 2
_WITHOUT_COLUMNS = 1
"""The version before it, which is read too."""
_HEADER = struct.Struct(">8sHHII8sQ")
_VALUE = struct.Struct(">QQ")
_CRC = struct.Struct(">I")
_MOST_RANK = 65 - REGISTER_BITS


def to_bytes(sketch: Sketch) -> bytes:
    """The content of a sketch file (``.khll``): equal sketches give equal bytes.

    It is raw personal data of the log's users: files have mode 0600; do not keep or share them. All numbers are
    big-endian. Header: magic, version, registers, K, number of values, key check, total rows, columns. Then per
    value, in ascending order: its hash; its rows times 256 plus its number of users (0: a HyperLogLog follows); the
    user hashes or the registers. Last the CRC-32 of all other bytes. At most K (8 + 8 + 1,024) + 48 bytes.
    """
    parts = [
        _HEADER.pack(_MAGIC, _VERSION, REGISTERS, sketch.size, len(sketch.values), sketch.key_check, sketch.total_rows),
        sketch.columns,
    ]
    starts = np.searchsorted(sketch.owners, np.arange(len(sketch.values) + 1))
    users = sketch.users.astype(">u8")
    dense = {int(position): one for position, one in zip(sketch.dense, sketch.registers, strict=True)}
    for position, (value, rows) in enumerate(zip(sketch.values.tolist(), sketch.rows.tolist(), strict=True)):
        own = users[starts[position] : starts[position + 1]]
        parts.append(_VALUE.pack(value, rows << 8 | len(own)))
        parts.append(dense[position].tobytes() if position in dense else own.tobytes())
    content = b"".join(parts)
    return content + _CRC.pack(zlib.crc32(content))


def from_bytes(data: bytes) -> Sketch:
    """The sketch of a file's content.

    Raises:
        RiskError: the bytes are not a sketch, are of a newer version, or are damaged.
    """
    if not data.startswith(_MAGIC) or len(data) < _HEADER.size + _CRC.size:
        raise RiskError("is not a sketch file (.khll)")
    content = data[: -_CRC.size]
    _, version, registers, size, number, key_check, total_rows = _HEADER.unpack_from(content)
    if version not in (_VERSION, _WITHOUT_COLUMNS) or registers != REGISTERS:
        raise RiskError(
            f"is a sketch of version {version} with {registers} registers; this program reads versions"
            f" {_WITHOUT_COLUMNS} and {_VERSION} with {REGISTERS}: make it again from the log"
        )
    if _CRC.unpack(data[-_CRC.size :]) != (zlib.crc32(content),):
        raise RiskError("is damaged: its checksum is wrong; make it again from the log")
    try:
        columns = content[_HEADER.size :][:COLUMNS_BYTES] if version == _VERSION else b""
        sketch = _parsed(content, size, number, key_check, total_rows, columns)
    except (struct.error, ValueError) as error:
        raise RiskError("is damaged: its content is not a sketch; make it again from the log") from error
    return sketch


def _parsed(content: bytes, size: int, number: int, key_check: bytes, total_rows: int, columns: bytes) -> Sketch:
    values, rows, counts, users, dense, registers = [], [], [], [], [], []
    at = _HEADER.size + len(columns)
    for position in range(number):
        value, packed = _VALUE.unpack_from(content, at)
        count = packed & 0xFF
        length = 8 * count or REGISTERS
        second = content[at + _VALUE.size : at + _VALUE.size + length]
        at += _VALUE.size + length
        values.append(value)
        rows.append(packed >> 8)
        counts.append(count)
        if count:
            users.append(np.frombuffer(second, ">u8"))
        else:
            dense.append(position)
            registers.append(np.frombuffer(second, np.uint8, REGISTERS))
    sketch = Sketch(
        size, key_check, total_rows, np.array(values, np.uint64), np.array(rows, np.int64),
        np.repeat(np.arange(number), np.array(counts, np.int64)),
        np.concatenate([np.empty(0, np.uint64), *users]).astype(np.uint64),
        np.array(dense, np.int64), np.array(registers, np.uint8).reshape(-1, REGISTERS), columns or UNKNOWN_COLUMNS,
    )  # fmt: skip
    if at != len(content) or not _well_formed(sketch, max(counts, default=0)):
        raise ValueError("the bytes are not in canonical form")
    return sketch


def _well_formed(sketch: Sketch, most_exact: int) -> bool:
    same_owner = sketch.owners[1:] == sketch.owners[:-1]
    return (
        0 < sketch.size >= len(sketch.values)
        and most_exact <= MOST_EXACT
        and bool((sketch.values[1:] > sketch.values[:-1]).all())
        and bool((sketch.users[1:] > sketch.users[:-1])[same_owner].all())
        and int(sketch.registers.max(initial=0)) <= _MOST_RANK
        and bool((sketch.rows > 0).all())
        and int(sketch.rows.sum()) <= sketch.total_rows
    )


def load(path: Path) -> Sketch:
    """Read a sketch file.

    Raises:
        RiskError: the file cannot be read, or is not a sketch.
    """
    try:
        return from_bytes(path.read_bytes())
    except OSError as error:
        raise RiskError(f"{path} cannot be read: {error.strerror}") from error
    except RiskError as error:
        raise RiskError(f"{path} {error}") from error
