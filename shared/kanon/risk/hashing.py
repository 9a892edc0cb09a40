"""Keyed 64-bit hashes of values and users, and the registers that count them.

Hashes are BLAKE2b under one secret of 32 bytes. With the key one can test a guessed value or user against a sketch;
without it this is not possible.

HyperLogLog (Flajolet et al. 2007) splits a hash into an index (its ``p`` low bits) and a rank (one more than the number
of trailing zeros of the other ``64 - p``). A register holds the largest rank of its index; 0 means that the index was
never seen.
"""

import math
import os
import secrets
import stat
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from kanon.noise.words import length_prefixed
from kanon.risk.errors import RiskError

HashArray = NDArray[np.uint64]
Registers = NDArray[np.uint8]
KEY_BYTES = 32


@dataclass(frozen=True)
class HashKey:
    """A hashing key. Sketches can be merged and joined only if they have the same key."""

    secret: bytes = field(repr=False)

    def __post_init__(self) -> None:
        if len(self.secret) != KEY_BYTES:
            raise RiskError(f"a key must have {KEY_BYTES} bytes, not {len(self.secret)}")

    @classmethod
    def fresh(cls) -> "HashKey":
        """A random key."""
        return cls(secrets.token_bytes(KEY_BYTES))

    @classmethod
    def kept_in(cls, path: Path) -> "HashKey":
        """The key in a file. A missing file is created, readable by its owner only.

        Raises:
            RiskError: the file is not a key file, others may read it, or it cannot be read or written.
        """
        try:
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            return cls._read(path)
        except OSError as error:
            raise RiskError(f"the key file {path} cannot be written: {error.strerror}") from error
        key = cls.fresh()
        with os.fdopen(handle, "wb") as file:
            file.write(key.secret)
        return key

    @classmethod
    def _read(cls, path: Path) -> "HashKey":
        if stat.S_IMODE(path.stat().st_mode) & 0o077:
            raise RiskError(f"others may read the key file {path}: run chmod 600 on it")
        try:
            secret = path.read_bytes()
        except OSError as error:
            raise RiskError(f"the key file {path} cannot be read: {error.strerror}") from error
        if len(secret) != KEY_BYTES:
            raise RiskError(f"{path} is not a key file: it must hold {KEY_BYTES} bytes, not {len(secret)}")
        return cls(secret)

    @property
    def check(self) -> bytes:
        """8 bytes that are equal for sketches of one key and reveal nothing else about it."""
        return self._keyed(b"kanon check").digest()

    def columns(self, values: Sequence[str], user: str) -> bytes:
        """8 bytes that are equal for sketches of the same columns of values, in this order, and of users."""
        keyed = self._keyed(b"kanon columns")
        keyed.update(length_prefixed(*(name.encode("utf-8", "surrogatepass") for name in (*values, user))))
        return keyed.digest()

    def users(self, names: Iterable[bytes]) -> HashArray:
        """The hash of every user."""
        return _hashes(self._keyed(b"kanon user"), names)

    def values(self, values: Iterable[bytes], columns: int = 1) -> HashArray:
        """The hash of every value of one column, or of every combination of several (``length_prefixed``)."""
        return _hashes(self._keyed(b"kanon value %d" % columns), values)

    def _keyed(self, domain: bytes) -> blake2b:
        return blake2b(digest_size=8, key=self.secret, person=domain)


def public_hashes(names: Iterable[bytes]) -> HashArray:
    """Hashes without a key, as in most cardinality sketches. Anybody can compute them."""
    return _hashes(blake2b(digest_size=8), names)


def _hashes(started: blake2b, names: Iterable[bytes]) -> HashArray:
    digests = []
    for name in names:
        one = started.copy()  # twice as fast as a new object
        one.update(name)
        digests.append(one.digest())
    return np.frombuffer(b"".join(digests), dtype=">u8").astype(np.uint64)


# --- HyperLogLog ----------------------------------------------------------------------------------


def index_and_rank(hashes: HashArray, p: int) -> tuple[NDArray[np.int64], Registers]:
    """The register of every hash and the rank it would write there.

    Args:
        hashes: 64-bit hashes, shape (n,).
        p: 2^p registers.

    Returns:
        Indexes in 0..2^p - 1 and ranks in 1..65 - p, both of shape (n,).
    """
    index = (hashes & np.uint64((1 << p) - 1)).astype(np.int64)
    rest = hashes >> np.uint64(p)
    lowest_bit = rest & (~rest + np.uint64(1))
    _, exponent = np.frexp(lowest_bit.astype(np.float64))  # a power of two is exact in a float
    return index, np.where(rest == 0, 65 - p, exponent).astype(np.uint8)


def registers_of(hashes: HashArray, p: int) -> Registers:
    """The 2^p registers after inserting all hashes; their order and repetitions do not matter."""
    registers = np.zeros(1 << p, dtype=np.uint8)
    np.maximum.at(registers, *index_and_rank(hashes, p))
    return registers


def estimate(registers: Registers) -> float:
    """The number of distinct hashes inserted, standard error about 1.04 / sqrt(2^p).

    Ertl, "New cardinality estimation algorithms for HyperLogLog sketches" (2017), algorithm 6: no bias correction
    table and no switch between ranges. His correction for registers at the largest rank is left out: it matters from
    about 2^60 users on.
    """
    m = len(registers)
    counts = np.bincount(registers).tolist()
    z = 0.0
    for number in reversed(counts[1:]):
        z = (z + number) / 2
    z += m * _sigma(counts[0] / m)
    return m * m / (2 * math.log(2) * z)


def _sigma(x: float) -> float:
    if x == 1:
        return math.inf
    y, z, before = 1.0, x, -1.0
    while z != before:
        x *= x
        before = z
        z += x * y
        y += y
    return z
