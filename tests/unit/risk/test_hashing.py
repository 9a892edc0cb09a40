import math
import stat
from hashlib import blake2b
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kanon.risk.errors import RiskError
from kanon.risk.hashing import HashKey, estimate, index_and_rank, public_hashes, registers_of

KEY = HashKey(bytes(range(32)))
NAMES = [b"", b"a", "ü".encode(), b"x" * 1000]


def test_hashes_are_blake2b_of_8_bytes_under_the_key_and_a_domain() -> None:
    def hashed(name: bytes, person: bytes) -> int:
        return int.from_bytes(blake2b(name, digest_size=8, key=KEY.secret, person=person).digest(), "big")

    assert KEY.users(NAMES).tolist() == [hashed(name, b"kanon user") for name in NAMES]
    assert KEY.values(NAMES).tolist() == [hashed(name, b"kanon value 1") for name in NAMES]
    assert KEY.values(NAMES, 2).tolist() == [hashed(name, b"kanon value 2") for name in NAMES]


def test_public_hashes_need_no_key() -> None:
    expected = [int.from_bytes(blake2b(name, digest_size=8).digest(), "big") for name in NAMES]
    assert public_hashes(NAMES).tolist() == expected


def test_a_key_does_not_show_its_secret() -> None:
    assert "00" not in repr(HashKey(bytes(32)))
    assert KEY.secret not in KEY.check
    assert KEY.check != HashKey(bytes(32)).check


def test_a_key_file_is_made_once_for_its_owner_only(tmp_path: Path) -> None:
    path = tmp_path / "key"
    made = HashKey.kept_in(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert HashKey.kept_in(path) == made
    assert HashKey.kept_in(tmp_path / "other") != made


def test_a_key_file_that_others_may_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "key"
    HashKey.kept_in(path)
    path.chmod(0o640)
    with pytest.raises(RiskError, match="run chmod 600"):
        HashKey.kept_in(path)


@pytest.mark.parametrize("size", [0, 31, 33])
def test_a_file_of_another_size_is_not_a_key_file(tmp_path: Path, size: int) -> None:
    path = tmp_path / "key"
    path.touch(0o600)
    path.write_bytes(bytes(size))
    with pytest.raises(RiskError, match=f"must hold 32 bytes, not {size}"):
        HashKey.kept_in(path)


def test_a_key_of_another_length_is_refused() -> None:
    with pytest.raises(RiskError, match="32 bytes, not 5"):
        HashKey(b"short")


def test_a_key_file_in_a_missing_folder_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(RiskError, match="cannot be written"):
        HashKey.kept_in(tmp_path / "none" / "key")


hashes = st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=50)


def rank(value: int, p: int) -> int:
    """One more than the number of trailing zeros of the 64 - p high bits, bit by bit."""
    rest, found = value >> p, 1
    while found <= 64 - p and not rest & 1:
        rest, found = rest >> 1, found + 1
    return found


@given(hashes, st.integers(4, 20))
@example([2**64 - 1], 10)  # a float would round it
@example([*(1 << bit for bit in range(64)), 0], 4)  # every rank
@example([*(1 << bit for bit in range(64)), 0], 15)
def test_index_and_rank_equal_the_definition(values: list[int], p: int) -> None:
    index, ranks = index_and_rank(np.array(values, np.uint64), p)
    assert index.tolist() == [value % 2**p for value in values]
    assert ranks.tolist() == [rank(value, p) for value in values]


@given(hashes, hashes)
def test_registers_of_a_union_are_the_largest_of_both(first: list[int], second: list[int]) -> None:
    both = registers_of(np.array(first + second[::-1] + first, np.uint64), 4)
    one, other = (registers_of(np.array(values, np.uint64), 4) for values in (first, second))
    assert both.tolist() == np.maximum(one, other).tolist()


def test_an_empty_sketch_is_estimated_as_zero() -> None:
    assert estimate(np.zeros(1024, np.uint8)) == 0


@pytest.mark.parametrize("n", [1, 50, 129, 1_000, 2_560, 5_000, 100_000])
def test_the_estimate_is_unbiased_and_as_precise_as_promised(n: int) -> None:
    """60 sketches: each within 5 standard errors, their mean within 5 of its own (false alarm below 1e-4 in all)."""
    random = np.random.default_rng(n)
    found = [estimate(registers_of(random.integers(0, 2**64, n, np.uint64), 10)) for _ in range(60)]
    error = 1.04 / math.sqrt(1024)
    assert max(abs(one / n - 1) for one in found) < max(5 * error, 0.01)
    assert abs(np.mean(found) / n - 1) < 5 * error / math.sqrt(60) + 0.001
