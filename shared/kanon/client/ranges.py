"""Range files of a list (docs/reference/api.md): look-ups on this machine, of which the service learns no value."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field

MAGIC = b"KNR1"
HASH_BYTES = 16
MOST_BITS = 16


@dataclass
class Ranges:
    """The list of a step: which files it has, and those that were read.

    Attributes:
        step: the step of the list; None before the first one, which is empty.
        bits: how many bits the names of its files have.
        until: until when there is no newer list, in seconds of the client's clock.
        files: the hashes of each file that was read, one after the other.
    """

    step: int | None
    bits: int
    until: float
    files: dict[str, bytes] = field(default_factory=dict)

    def name(self, digest: bytes) -> str:
        """The file in which a value is, if it is listed."""
        return f"{int.from_bytes(digest, 'big') >> 256 - self.bits:0{self.bits}b}" if self.bits else "all"

    def names(self) -> Iterator[str]:
        """All files."""
        return (f"{number:0{self.bits}b}" for number in range(1 << self.bits)) if self.bits else iter(["all"])

    def has(self, digest: bytes) -> bool:
        """Whether a value is listed; its file was read before."""
        if self.step is None:
            return False
        hashes, wanted = self.files[self.name(digest)], digest[:HASH_BYTES]
        place = bisect_left(range(len(hashes) // HASH_BYTES), wanted, key=lambda n: _nth(hashes, n))
        return _nth(hashes, place) == wanted


def _nth(hashes: bytes, n: int) -> bytes:
    return hashes[n * HASH_BYTES : (n + 1) * HASH_BYTES]


def read(content: bytes, type_: str, ranges: Ranges) -> bytes:
    """The hashes of a range file.

    Raises:
        ValueError: it is no file of this list.
    """
    name = type_.encode()
    start = MAGIC + bytes([ranges.bits, len(name)]) + name + (ranges.step or 0).to_bytes(8, "big")
    at = len(start) + 8
    count, hashes = content[at : at + 4], content[at + 4 :]
    whole = len(count) == 4 and len(hashes) == HASH_BYTES * int.from_bytes(count, "big")
    if not (content.startswith(start) and whole):
        raise ValueError("a range file of another list, or a damaged one")
    return hashes
