import struct
import zlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from kanon.risk.errors import RiskError
from kanon.risk.khll import UNKNOWN_COLUMNS, Sketch, empty, from_bytes, load, to_bytes
from tests.unit.risk.made import sketch_of

CHECK = b"12345678"
HEADER_AND_CRC = 48


def small() -> Sketch:
    """Three values: one with a HyperLogLog, one with two users, one with one."""
    values = np.array([3] * 200 + [5, 5, 5, 9], np.uint64)
    users = np.array([*range(1, 201), 1, 2, 2, 7], np.uint64)
    return sketch_of(values, users, 8, CHECK)


def with_crc(content: bytes) -> bytes:
    return content + struct.pack(">I", zlib.crc32(content))


@pytest.mark.parametrize("sketch", [empty(8, CHECK, b"aaaaaaaa"), small()], ids=["empty", "small"])
def test_a_written_sketch_is_read_unchanged(sketch: Sketch) -> None:
    read = from_bytes(to_bytes(sketch))
    for name in Sketch.__dataclass_fields__:
        assert np.array_equal(getattr(read, name), getattr(sketch, name)), name
    assert to_bytes(read) == to_bytes(sketch)


def test_a_file_is_at_most_as_large_as_documented() -> None:
    random = np.random.default_rng(4)
    number, size = 200_000, 256
    sketch = sketch_of(
        random.integers(0, 300, number, np.uint64), random.integers(0, 2**64, number, np.uint64), size, CHECK
    )
    assert len(sketch.dense) == size
    assert len(to_bytes(sketch)) == HEADER_AND_CRC + size * (8 + 8 + 1024)
    exact = sketch_of(
        np.repeat(np.arange(size, dtype=np.uint64), 128), random.integers(0, 2**64, 128 * size, np.uint64), size, CHECK
    )
    assert not len(exact.dense)
    assert len(to_bytes(exact)) == HEADER_AND_CRC + size * (8 + 8 + 1024)


def test_every_changed_byte_and_every_truncation_is_detected() -> None:
    data = to_bytes(small())
    for at in range(len(data)):
        with pytest.raises(RiskError):
            from_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        with pytest.raises(RiskError):
            from_bytes(data[:at])


def test_a_sketch_of_a_newer_version_is_refused_with_the_remedy() -> None:
    content = to_bytes(empty(8, CHECK))[:-4]
    with pytest.raises(RiskError, match=r"version 3 .* make it again"):
        from_bytes(with_crc(content[:8] + b"\0\3" + content[10:]))


def test_a_sketch_of_the_version_without_columns_is_read() -> None:
    content = to_bytes(replace(small(), columns=b"aaaaaaaa"))[:-4]
    old = from_bytes(with_crc(content[:8] + b"\0\1" + content[10:36] + content[44:]))
    assert to_bytes(old) == to_bytes(small())
    assert old.columns == UNKNOWN_COLUMNS


def entry(value: int, rows: int, users: list[int]) -> bytes:
    return struct.pack(f">QQ{len(users)}Q", value, rows << 8 | len(users), *users)


@pytest.mark.parametrize(
    ("size", "entries"),
    [
        (8, [entry(5, 1, [1]), entry(5, 1, [1])]),
        (8, [entry(5, 1, [1]), entry(4, 1, [1])]),
        (1, [entry(5, 1, [1]), entry(6, 1, [1])]),
        (0, []),
        (8, [entry(5, 2, [1, 1])]),
        (8, [entry(5, 2, [2, 1])]),
        (8, [entry(5, 0, [1])]),
        (8, [entry(5, 1000, [1])]),
        (8, [entry(5, 129, list(range(129)))]),
        (8, [struct.pack(">QQ", 5, 1 << 8) + bytes([56]) * 1024]),
        (8, [struct.pack(">QQ", 5, 1 << 8) + bytes(1023)]),
        (8, [entry(5, 1, [1]) + b"\0"]),
    ],
    ids=[
        *("value twice", "values in disorder", "more than K", "no K", "user twice", "users in disorder", "no rows"),
        *("more rows than in all", "too many users", "rank too large", "registers cut", "bytes left"),
    ],
)
def test_a_file_with_a_right_checksum_and_wrong_content_is_refused(size: int, entries: list[bytes]) -> None:
    header = struct.pack(">8sHHII8sQ8x", b"kanonKHL", 2, 1024, size, len(entries), CHECK, 500)
    with pytest.raises(RiskError, match="is damaged"):
        from_bytes(with_crc(header + b"".join(entries)))


def test_a_number_of_values_that_the_file_cannot_hold_is_refused_at_once() -> None:
    header = struct.pack(">8sHHII8sQ8x", b"kanonKHL", 2, 1024, 2**32 - 1, 2**32 - 1, CHECK, 500)
    with pytest.raises(RiskError, match="is damaged"):
        from_bytes(with_crc(header))


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    with pytest.raises(RiskError, match=r"b\.khll cannot be read: No such file"):
        load(tmp_path / "b.khll")
    (tmp_path / "d.khll").write_bytes(b"time,set,client\n")
    with pytest.raises(RiskError, match=r"d\.khll is not a sketch file"):
        load(tmp_path / "d.khll")
