"""Noise is a keyed function of its place, so a repeated release gives the same result.

The place of a word is (release id, role, group). The role is the canonical text of an aggregate with its index: two
sums of one group never share noise. The secret is random and belongs to one release.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import shake_256
from typing import TYPE_CHECKING, Any

from kanon.noise.words import WORD_BYTES, length_prefixed

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

SECRET_BYTES = 32


@dataclass(frozen=True)
class Tape:
    """The randomness of one release."""

    secret: bytes = field(repr=False)
    release: str
    _roles: dict[str, bytes] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if len(self.secret) != SECRET_BYTES:
            raise ValueError(f"a noise secret has {SECRET_BYTES} bytes")

    def _named(self, role: str) -> bytes:
        """The text of secret, release and role, with which the text of each place begins."""
        if role not in self._roles:
            name = (b"kanon/release/1", self.secret, self.release.encode(), role.encode())
            self._roles[role] = length_prefixed(*name)
        return self._roles[role]

    def bytes(self, role: str, group: str, attempt: int, count: int) -> bytes:
        """The first ``count`` bytes at a place; a draw that is rejected takes the next attempt."""
        place = length_prefixed(group.encode(), attempt.to_bytes(8, "big"))
        return shake_256(self._named(role) + place).digest(count)

    def word(self, role: str, group: str) -> int:
        """A uniform 64-bit number."""
        return int.from_bytes(self.bytes(role, group, 0, WORD_BYTES), "big")

    def words(self, role: str, groups: Any) -> "NDArray[np.uint64]":
        """:meth:`word` for each group of an array of texts."""
        import numpy as np

        places = _joined(self._named(role), encoded_rows([groups]), length_prefixed(bytes(8)))
        drawn = b"".join([shake_256(place).digest(WORD_BYTES) for place in places.to_pylist()])
        return np.frombuffer(drawn, ">u8").astype(np.uint64)

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
    return shake_256(length_prefixed(b"kanon/release/derived/1", secret, purpose.encode())).digest(SECRET_BYTES)


def encoded_rows(columns: Sequence[Any]) -> Any:
    """``length_prefixed`` of the texts of each row, as an array of bytes. The columns are arrays of the same length."""
    import pyarrow as pa
    import pyarrow.compute as pc

    parts = []
    for column in columns:
        cells = column.cast(pa.large_binary())
        sizes = pc.binary_length(cells).to_numpy(zero_copy_only=False).astype(">u8")
        prefixes = pa.FixedSizeBinaryArray.from_buffers(pa.binary(8), len(cells), [None, pa.py_buffer(sizes)])
        parts += [prefixes.cast(pa.large_binary()), cells]
    return _joined(*parts)


def _joined(*parts: Any) -> Any:
    """The parts of each row, joined. A part is an array, or the same bytes for all rows."""
    import pyarrow as pa
    import pyarrow.compute as pc

    arrays = [pa.scalar(part, pa.large_binary()) if isinstance(part, bytes) else part for part in (*parts, b"")]
    return pc.binary_join_element_wise(*arrays)
