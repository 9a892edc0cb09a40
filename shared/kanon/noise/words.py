"""Keyed words: the encoding that names a stream of noise, and the key that keeps it secret."""

from dataclasses import dataclass

WORD_BITS = 64
WORD_BYTES = WORD_BITS // 8
TOTAL = 1 << WORD_BITS
"""The number of words; also the sum of the weights of every table."""


def length_prefixed(*parts: bytes) -> bytes:
    """An injective encoding: each part follows its length (8 bytes, big-endian)."""
    return b"".join([len(part).to_bytes(8, "big") + part for part in parts])


@dataclass(frozen=True)
class NoiseKey:
    """A 32-byte secret and its public id. Anyone who has the secret can remove the noise."""

    id: str
    secret: bytes

    def __post_init__(self) -> None:
        if len(self.secret) != 32:
            raise ValueError("a noise key is 32 bytes")

    def __repr__(self) -> str:
        return f"NoiseKey(id={self.id!r})"
