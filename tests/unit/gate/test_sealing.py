"""Sealed values: only the lister opens them, for their own set, and their length shows no more than 32-byte steps."""

import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from kanon.gate.models import MOST_VALUE_BYTES
from kanon.gate.sealing import UnopenedValueError, opened, seal
from kanon.hpke import SUITE

KEY = X25519PrivateKey.from_private_bytes(bytes(range(32)))
SET = b"s" * 32
OVERHEAD = 48


@given(st.text(min_size=1).map(str.encode).filter(lambda value: len(value) <= MOST_VALUE_BYTES))
def test_the_lister_opens_what_was_sealed(value: bytes) -> None:
    assert opened(seal(value, KEY.public_key(), SET), KEY, SET) == value


def test_the_length_of_a_sealed_value_is_one_of_seventeen() -> None:
    lengths = [len(seal(b"v" * count, KEY.public_key(), SET)) for count in range(1, MOST_VALUE_BYTES + 1)]
    assert sorted(set(lengths)) == [OVERHEAD + 32 * n for n in range(1, 18)]
    assert lengths == sorted(lengths)
    assert max(lengths) + 32 + 4 + 200 < 1024  # with its keys and attributes a row is one write unit


def test_a_value_sealed_twice_shows_no_equality() -> None:
    assert seal(b"v", KEY.public_key(), SET) != seal(b"v", KEY.public_key(), SET)


@pytest.mark.parametrize(
    ("key", "set_key", "change"),
    [
        (X25519PrivateKey.from_private_bytes(bytes(32)), SET, lambda sealed: sealed),
        (KEY, b"t" * 32, lambda sealed: sealed),
        (KEY, SET, lambda sealed: sealed[:-1] + bytes([sealed[-1] ^ 1])),
        (KEY, SET, lambda sealed: sealed[:-1]),
        (KEY, SET, lambda _: b""),
        (KEY, SET, lambda _: b"short"),
    ],
    ids=["another key", "another set", "changed", "cut", "empty", "short"],
)
def test_another_key_set_or_bytes_do_not_open(key: X25519PrivateKey, set_key: bytes, change: object) -> None:
    with pytest.raises(UnopenedValueError):
        opened(change(seal(b"value", KEY.public_key(), SET)), key, set_key)  # type: ignore[operator]


@pytest.mark.parametrize("content", [b"", b"\0", b"\0\0", b"\0\2v", b"\2\1" + b"v" * 513])
def test_what_was_sealed_in_another_form_is_no_value(content: bytes) -> None:
    sealed = SUITE.encrypt(content, KEY.public_key(), info=b"kanon listed value 1" + SET)
    with pytest.raises(UnopenedValueError):
        opened(sealed, KEY, SET)
