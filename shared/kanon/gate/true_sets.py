"""The sets of a slot that are true at a step, as one object in bytes: ``query`` keeps it in memory and bisects it.

Format 1: ``kanontru``, the format and the number of sets (4 bytes each, big-endian); for each set, sorted by key, the
first 16 bytes of its key, the step at which it crossed, and the last step that may need the entry (4 bytes each,
little-endian); zeros up to a whole number of :data:`PADDING` bytes, so that the size of an object reveals little.

It needs no numpy: ``query`` starts without it. :mod:`kanon.gate.showing` makes these objects.

Its name is ``true/1234/5/480000-17-3-<digest>``: layout, slot, step, run, number, and the first half of its SHA-256. So
an object is the one that its horizon names, or it is not used: an older one, or a damaged one, has another digest.
"""

from dataclasses import dataclass
from hashlib import sha256
from typing import Self

from kanon.errors import UndecodableMembersError

PREFIX = "true/"
MAGIC, FORMAT = b"kanontru", 1
HEADER_BYTES, KEY_BYTES, ENTRY_BYTES = 16, 16, 24
PADDING = 1 << 16
MOST_TRUE = 1_000_000
"""A slot with more true sets has no object: at 24 bytes each, it would take too much of the memory of ``query``."""


@dataclass(frozen=True)
class TrueSets:
    """The sets of an object. No two keys of a deployment have the same first 16 bytes, except with chance 2^-60."""

    content: bytes
    count: int

    @classmethod
    def of(cls, name: str, content: bytes) -> Self:
        """The sets in the bytes of the object with this name.

        Raises:
            UndecodableMembersError: they are not those of the name, or of no known format.
        """
        if _digest(content) != name.rpartition("-")[2]:
            raise UndecodableMembersError("an object of true sets is not as it was written")
        count = int.from_bytes(content[12:HEADER_BYTES], "big")
        if content[:12] != MAGIC + FORMAT.to_bytes(4, "big") or len(content) < HEADER_BYTES + count * ENTRY_BYTES:
            raise UndecodableMembersError("an object of true sets of unknown format")
        return cls(content, count)

    def crossings(self, set_key: bytes) -> tuple[int, ...]:
        """The step at which a set crossed; empty if the object does not have it.

        It reads as many entries for every key: the time of an answer must not depend on it.
        """
        if not self.count:
            return ()
        content, key, start, size = self.content, set_key[:KEY_BYTES], HEADER_BYTES, self.count
        while size > 1:
            half = size // 2
            middle = start + half * ENTRY_BYTES
            start += half * ENTRY_BYTES * (content[middle : middle + KEY_BYTES] <= key)
            size -= half
        end = start + KEY_BYTES
        crossing = int.from_bytes(content[end : end + 4], "little")
        return (crossing,) if content[start:end] == key else ()


def name_of(base: str, content: bytes) -> str:
    """The name of an object."""
    return f"{PREFIX}{base}-{_digest(content)}"


def _digest(content: bytes) -> str:
    """Three names are in each horizon and slot's row: whole digests would make a row dearer to write."""
    return sha256(content).hexdigest()[:32]


def encode(entries: bytes) -> bytes:
    """The object of sorted entries."""
    count = (len(entries) // ENTRY_BYTES).to_bytes(4, "big")
    content = MAGIC + FORMAT.to_bytes(4, "big") + count + entries
    return content + bytes(-len(content) % PADDING)
