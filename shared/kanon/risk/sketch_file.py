"""Sketch files (``.khll``). They are raw personal data of the log's users: mode 0600; do not keep or share them.

All numbers are big-endian. Header: magic, version, K, registers, number of values, key check, total rows. Then per
value, in ascending order: its hash; its rows times 256 plus its number of users (0: a HyperLogLog follows); the
user hashes or the registers. Last the CRC-32 of all other bytes. At most K (8 + 8 + 1,024) + 40 bytes.
"""

import struct
import zlib
from pathlib import Path

import numpy as np

from kanon.risk.errors import RiskError
from kanon.risk.khll import MOST_EXACT, REGISTER_BITS, REGISTERS, Sketch

WARNING = "holds raw personal data of the log's users: do not share it, and delete it after use"

_MAGIC = b"kanonKHL"
_VERSION = 1
_HEADER = struct.Struct(">8sHHII8sQ")
_VALUE = struct.Struct(">QQ")
_CRC = struct.Struct(">I")
_MOST_RANK = 65 - REGISTER_BITS


def to_bytes(sketch: Sketch) -> bytes:
    """The file's content: equal sketches give equal bytes."""
    parts = [
        _HEADER.pack(_MAGIC, _VERSION, REGISTERS, sketch.size, len(sketch.values), sketch.key_check, sketch.total_rows)
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
    if version != _VERSION or registers != REGISTERS:
        raise RiskError(
            f"is a sketch of version {version} with {registers} registers; this program reads version"
            f" {_VERSION} with {REGISTERS}: make it again from the log"
        )
    if _CRC.unpack(data[-_CRC.size :]) != (zlib.crc32(content),):
        raise RiskError("is damaged: its checksum is wrong; make it again from the log")
    try:
        sketch = _parsed(content, size, number, key_check, total_rows)
    except (struct.error, ValueError) as error:
        raise RiskError("is damaged: its content is not a sketch; make it again from the log") from error
    return sketch


def _parsed(content: bytes, size: int, number: int, key_check: bytes, total_rows: int) -> Sketch:
    values, rows, counts, users, dense, registers = [], [], [], [], [], []
    at = _HEADER.size
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
        np.array(dense, np.int64), np.array(registers, np.uint8).reshape(-1, REGISTERS),
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
