"""Keyed 64-bit hashes of values and users: BLAKE2b under one secret of 32 bytes.

With the key one can test a guessed value or user against a sketch. Without it this is not possible.
"""

import os
import secrets
import stat
from collections.abc import Iterable
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path

import numpy as np

from kanon.risk.errors import RiskError
from kanon.risk.hyperloglog import Hashes

KEY_BYTES = 32


@dataclass(frozen=True)
class Key:
    """A hashing key. Sketches can be merged and joined only if they have the same key."""

    secret: bytes = field(repr=False)

    def __post_init__(self) -> None:
        if len(self.secret) != KEY_BYTES:
            raise RiskError(f"a key must have {KEY_BYTES} bytes, not {len(self.secret)}")

    @classmethod
    def fresh(cls) -> "Key":
        """A random key."""
        return cls(secrets.token_bytes(KEY_BYTES))

    @classmethod
    def kept_in(cls, path: Path) -> "Key":
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
    def _read(cls, path: Path) -> "Key":
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

    def users(self, names: Iterable[bytes]) -> Hashes:
        """The hash of every user."""
        return _hashes(self._keyed(b"kanon user"), names)

    def values(self, values: Iterable[bytes], columns: int = 1) -> Hashes:
        """The hash of every value of one column, or of every combination of several (``length_prefixed``)."""
        return _hashes(self._keyed(b"kanon value %d" % columns), values)

    def _keyed(self, domain: bytes) -> blake2b:
        return blake2b(digest_size=8, key=self.secret, person=domain)


def public_hashes(names: Iterable[bytes]) -> Hashes:
    """Hashes without a key, as in most cardinality sketches. Anybody can compute them."""
    return _hashes(blake2b(digest_size=8), names)


def _hashes(started: blake2b, names: Iterable[bytes]) -> Hashes:
    digests = []
    for name in names:
        one = started.copy()  # twice as fast as a new object
        one.update(name)
        digests.append(one.digest())
    return np.frombuffer(b"".join(digests), dtype=">u8").astype(np.uint64)
