"""A gzip file is unpacked as far as a log would be."""

import gzip
import io
from pathlib import Path

import pytest

from kanon.joinlog import LogError, LoggedJoin, read_joins, unpacked
from kanon.joinlog.unpacked import MOST_TIMES, Unpacked


@pytest.fixture(autouse=True)
def safe_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unpacked, "SAFE_BYTES", 1 << 16)


@pytest.mark.slow
def test_a_small_file_that_unpacks_to_far_more_than_a_log_is_refused_early(tmp_path: Path) -> None:
    path = tmp_path / "bomb.csv.gz"
    path.write_bytes(gzip.compress(b"time,set,client\n" + b"1767225600,a,b\n" * 1_000_000))
    read: list[LoggedJoin] = []
    with pytest.raises(LogError, match=f"unpacks to more than {MOST_TIMES} times its size.*unpack it first"):
        read.extend(read_joins(path))
    assert len(read) < 500_000  # of a million; newer versions of gzip read larger pieces


@pytest.mark.slow
def test_a_small_file_of_any_ratio_and_a_large_one_of_a_logs_ratio_are_unpacked() -> None:
    for content in (bytes(1 << 16), b"".join(b"%d,set,client-%d\n" % (n, n * 7919 % 10_007) for n in range(50_000))):
        packed = gzip.compress(content)
        assert io.BufferedReader(Unpacked(io.BytesIO(packed))).read() == content
        assert len(content) <= 1 << 16 or len(content) < MOST_TIMES * len(packed)


def test_pieces_that_are_packed_one_by_one_are_one_file() -> None:
    assert io.BufferedReader(Unpacked(io.BytesIO(gzip.compress(b"a") + gzip.compress(b"b")))).read() == b"ab"
