import stat
from hashlib import blake2b
from pathlib import Path

import numpy as np
import pytest

from kanon.noise.words import length_prefixed
from kanon.risk.errors import RiskError
from kanon.risk.hashing import Key, public_hashes

KEY = Key(bytes(range(32)))
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


def test_users_values_combinations_and_other_keys_share_no_hash() -> None:
    other = Key(bytes(32))
    sources = [KEY.users(NAMES), KEY.values(NAMES), KEY.values(NAMES, 2), other.users(NAMES), public_hashes(NAMES)]
    assert len(np.unique(np.concatenate(sources))) == len(sources) * len(NAMES)


def test_combinations_with_equal_joined_texts_have_different_hashes() -> None:
    pairs = [(b"ab", b"c"), (b"a", b"bc"), (b"", b"abc"), (b"abc", b"")]
    assert len(set(KEY.values([length_prefixed(*pair) for pair in pairs], 2).tolist())) == len(pairs)


def test_a_key_does_not_show_its_secret() -> None:
    assert "00" not in repr(Key(bytes(32)))
    assert KEY.secret not in KEY.check
    assert KEY.check != Key(bytes(32)).check


def test_a_key_file_is_made_once_for_its_owner_only(tmp_path: Path) -> None:
    path = tmp_path / "key"
    made = Key.kept_in(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert Key.kept_in(path) == made
    assert Key.kept_in(tmp_path / "other") != made


def test_a_key_file_that_others_may_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "key"
    Key.kept_in(path)
    path.chmod(0o640)
    with pytest.raises(RiskError, match="run chmod 600"):
        Key.kept_in(path)


@pytest.mark.parametrize("size", [0, 31, 33])
def test_a_file_of_another_size_is_not_a_key_file(tmp_path: Path, size: int) -> None:
    path = tmp_path / "key"
    path.touch(0o600)
    path.write_bytes(bytes(size))
    with pytest.raises(RiskError, match=f"must hold 32 bytes, not {size}"):
        Key.kept_in(path)


def test_a_key_of_another_length_is_refused() -> None:
    with pytest.raises(RiskError, match="32 bytes, not 5"):
        Key(b"short")


def test_a_key_file_in_a_missing_folder_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(RiskError, match="cannot be written"):
        Key.kept_in(tmp_path / "none" / "key")
