"""The group P-256 as the draft of Anonymous Rate-Limited Credentials uses it: encodings, and hashing to it (RFC 9380).

Points are those of pycryptodome; the time of its multiplications does not depend on the scalar. Scalars are Python's
integers: the time of their arithmetic may depend on them.
"""

import hashlib
import secrets
from collections.abc import Callable, Iterable
from typing import cast

from kanon.errors import Error

try:
    from Crypto.Math.Numbers import Integer
    from Crypto.PublicKey.ECC import EccPoint
except ImportError as missing:
    raise ImportError(f"{missing.name} is missing: pip install 'kanon-dp[anonymous]'", name=missing.name) from missing

P = 2**256 - 2**224 + 2**192 + 2**96 - 1
ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
_A, _B = P - 3, 0x5AC635D8AA3A93E7B3EBBD55769886BC651D06B0CC53B0F63BCE3C3E27D2604B
_Z = P - 10
"""The constant of the map to the curve (RFC 9380, section 8.2)."""
_NUMERATOR, _EXCEPTION = -_B * pow(_A, -1, P) % P, _B * pow(_Z * _A, -1, P) % P
POINT_BYTES, SCALAR_BYTES = 33, 32
_WIDE = 48
"""Bytes that are reduced to a number below 2**256: the bias is at most 2**-128."""

Point = EccPoint
Scalars = Callable[[], int]
"""A source of random scalars, each from 1 to ``ORDER`` - 1."""

G = Point(
    0x6B17D1F2E12C4247F8BCE6E563A440F277037D812DEB33A0F4A13945D898C296,
    0x4FE342E2FE1A7F9B8EE7EB4A7C0F9E162BCE33576B315ECECBB6406837BF51F5,
    "p256",
)


class CredentialError(Error, ValueError):
    """A message of the credentials is refused. The text names the part, and nothing that was sent."""


def random_scalar() -> int:
    """A uniform scalar from 1 to ``ORDER`` - 1."""
    return 1 + secrets.randbelow(ORDER - 1)


def inverse(scalar: int) -> int:
    """The inverse modulo the order of the group."""
    return pow(scalar, -1, ORDER)


def public(scalar: int) -> int:
    """A scalar that everybody may know: multiplications with it take less time, which depends on it."""
    return cast(int, Integer(scalar, public=True))


# Encodings


def encode_points(points: Iterable[Point]) -> bytes:
    """Each point in 33 bytes, compressed as in SEC 1. No point may be the identity."""
    return b"".join(bytes([2 + (int(point.y) & 1)]) + int(point.x).to_bytes(32, "big") for point in points)


def encode_scalars(scalars: Iterable[int]) -> bytes:
    """Each scalar in 32 bytes, big-endian."""
    return b"".join(scalar.to_bytes(SCALAR_BYTES, "big") for scalar in scalars)


def decode(message: bytes, points: int, scalars: int, what: str) -> tuple[list[Point], list[int]]:
    """Read points, then scalars. Nothing is multiplied before all are read.

    Raises:
        CredentialError: the length is wrong, a point is not on the curve, is the identity or is not in its one
            encoding, or a scalar is 0 or not below the order.
    """
    if len(message) != points * POINT_BYTES + scalars * SCALAR_BYTES:
        raise CredentialError(f"the {what} has another length")
    split = points * POINT_BYTES
    numbers = [_scalar(part, what) for part in _parts(message[split:], SCALAR_BYTES)]
    return [_point(part, what) for part in _parts(message[:split], POINT_BYTES)], numbers


def _parts(message: bytes, size: int) -> list[bytes]:
    return [message[at : at + size] for at in range(0, len(message), size)]


def _scalar(part: bytes, what: str) -> int:
    scalar = int.from_bytes(part, "big")
    if not 0 < scalar < ORDER:
        raise CredentialError(f"a scalar of the {what} is out of range")
    return scalar


def _point(part: bytes, what: str) -> Point:
    """A compressed point. The encoding of the identity has another first byte."""
    x = int.from_bytes(part[1:], "big")
    if part[0] not in (2, 3) or x >= P:
        raise CredentialError(f"a point of the {what} has another encoding")
    square = _curve(x)
    y = _root(square)
    if y * y % P != square:
        raise CredentialError(f"a point of the {what} is not on the curve")
    return Point(x, y if y & 1 == part[0] & 1 else P - y, "p256")


def _curve(x: int) -> int:
    """The square of y at x."""
    return (x * x * x + _A * x + _B) % P


def _root(square: int) -> int:
    """A square root of a square; any number of another one."""
    return pow(square, (P + 1) // 4, P)


# Hashing


def hash_to_scalar(message: bytes, tag: bytes) -> int:
    """A scalar; 0 with probability 2**-256. ``tag`` separates uses (RFC 9380, ``hash_to_field``)."""
    return int.from_bytes(_expanded(message, tag, _WIDE), "big") % ORDER


def hash_to_point(message: bytes, tag: bytes) -> Point:
    """A point whose logarithm nobody knows (RFC 9380, P256_XMD:SHA-256_SSWU_RO_)."""
    uniform = _expanded(message, tag, 2 * _WIDE)
    first, second = (int.from_bytes(part, "big") % P for part in _parts(uniform, _WIDE))
    return _mapped(first) + _mapped(second)


def _expanded(message: bytes, tag: bytes, size: int) -> bytes:
    """``expand_message_xmd`` of RFC 9380 with SHA-256."""
    prime = tag + bytes([len(tag)])
    first = hashlib.sha256(bytes(64) + message + size.to_bytes(2, "big") + b"\0" + prime).digest()
    blocks, block = b"", bytes(32)
    for number in range(1, -(-size // 32) + 1):
        mixed = bytes(a ^ b for a, b in zip(first, block, strict=True))
        block = hashlib.sha256(mixed + bytes([number]) + prime).digest()
        blocks += block
    return blocks[:size]


def _mapped(u: int) -> Point:
    """The simplified map of Shallue, van de Woestijne and Ulas (RFC 9380, section 6.6.2)."""
    zu2 = _Z * u * u % P
    denominator = (zu2 * zu2 + zu2) % P
    x = _NUMERATOR * (1 + pow(denominator, -1, P)) % P if denominator else _EXCEPTION
    square = _curve(x)
    y = _root(square)
    if y * y % P != square:
        x = zu2 * x % P
        y = _root(_curve(x))
    return Point(x, y if y & 1 == u & 1 else P - y, "p256")
