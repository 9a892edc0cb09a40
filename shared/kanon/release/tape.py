"""Noise is a keyed function of its place, so a repeated release gives the same result.

The place of a word is (release id, role, group). The role is the canonical text of an aggregate with its index: two
sums of one group never share noise. The secret is random and belongs to one release.
"""

import hashlib
from dataclasses import dataclass, field

from kanon.noise.words import WORD_BYTES, length_prefixed

SECRET_BYTES = 32


@dataclass(frozen=True)
class Tape:
    """The randomness of one release."""

    secret: bytes = field(repr=False)
    release: str
    _roles: "dict[str, hashlib._Hash]" = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if len(self.secret) != SECRET_BYTES:
            raise ValueError(f"a noise secret has {SECRET_BYTES} bytes")

    def bytes(self, role: str, group: str, attempt: int, count: int) -> bytes:
        """The first ``count`` bytes at a place; a draw that is rejected takes the next attempt."""
        shake = self._hash_of(role).copy()
        shake.update(length_prefixed(group.encode(), attempt.to_bytes(8, "big")))
        return shake.digest(count)  # type: ignore[call-arg]

    def _hash_of(self, role: str) -> "hashlib._Hash":
        """The hash of secret, release and role, computed once and copied for each group."""
        if role not in self._roles:
            name = (b"kanon/release/1", self.secret, self.release.encode(), role.encode())
            self._roles[role] = hashlib.shake_256(length_prefixed(*name))
        return self._roles[role]

    def word(self, role: str, group: str) -> int:
        """A uniform 64-bit number."""
        return int.from_bytes(self.bytes(role, group, 0, WORD_BYTES), "big")

    def below(self, bound: int, role: str, group: str) -> int:
        """An exactly uniform number in ``0 .. bound - 1``, by rejection."""
        bits = bound.bit_length()
        size = -(-bits // 8)
        attempt = 0
        while True:
            number = int.from_bytes(self.bytes(role, group, attempt, size), "big") >> 8 * size - bits
            if number < bound:
                return number
            attempt += 1


def derived(secret: bytes, purpose: str) -> bytes:
    """32 bytes for another purpose; they reveal nothing about the secret."""
    return hashlib.shake_256(length_prefixed(b"kanon/release/derived/1", secret, purpose.encode())).digest(SECRET_BYTES)
