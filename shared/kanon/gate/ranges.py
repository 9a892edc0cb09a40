"""Range files: the values of a list as truncated hashes, for look-ups that tell nobody what is looked up.

The values of a list are divided by the first ``bits`` bits of their SHA-256 into as few files as fit 64 KiB each.
Values whose hashes somebody has made begin alike may take longer files, or they could ask for 65,536 of them. Each file
has a header and the sorted first 16 bytes of the hashes (big-endian numbers):

| bytes | content |
|---|---|
| 4 | ``KNR1`` |
| 1 | ``bits`` |
| 1, n | the length of the name of the type, and the name |
| 8 | the step of the list |
| 8 | the tick of the next step (Unix s): no list is newer before it |
| 4 | the number of hashes |
| 16 each | the hashes |
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

MAGIC = b"KNR1"
HASH_BYTES = 16
MOST_FILE_BYTES = 1 << 16
MOST_BITS = 16
MORE_BITS = 3
"""By so many bits the files may be smaller than their mean asks for: hashes of values fall into them by chance."""
ALL = "all"
"""The name of the one file of a list that is not divided."""
_FIXED_BYTES = len(MAGIC) + 1 + 1 + 8 + 8 + 4


@dataclass(frozen=True)
class ListStep:
    """What a list is of: a type, a step, and the tick of the next step (Unix s)."""

    type_name: str
    step: int
    next_update: int


def most_hashes(type_name: str) -> int:
    """The number of hashes that fit a file."""
    return (MOST_FILE_BYTES - _FIXED_BYTES - len(type_name)) // HASH_BYTES


def bits_for(digests: Sequence[bytes], most: int) -> int:
    """The smallest number of bits with which every file has at most ``most`` of these sorted hashes, within bounds."""
    bits = 0
    least = max(0, (len(digests) - 1) // most).bit_length()
    while bits < min(MOST_BITS, least + MORE_BITS) and max(_counts(digests, bits), default=0) > most:
        bits += 1
    return bits


def _counts(digests: Sequence[bytes], bits: int) -> list[int]:
    """How many of the sorted hashes begin with each number of ``bits`` bits."""
    firsts = [first_of(number, bits) for number in range(1 << bits)]
    places = [*(bisect_left(digests, first) for first in firsts), len(digests)]
    return [end - start for start, end in pairwise(places)]


def first_of(number: int, bits: int) -> bytes:
    """The smallest hash that begins with ``bits`` bits of this number."""
    return (number << 256 - bits).to_bytes(32, "big")


def name_of(number: int, bits: int) -> str:
    """The name of a file: its bits as digits 0 and 1."""
    return f"{number:0{bits}b}" if bits else ALL


def number_of(name: str, bits: int) -> int | None:
    """The number in the name of a file; None if a list of so many bits has no such file."""
    if bits == 0:
        return 0 if name == ALL else None
    return int(name, 2) if len(name) == bits and set(name) <= {"0", "1"} else None


def encode(of: ListStep, bits: int, digests: Sequence[bytes]) -> bytes:
    """The file with these sorted hashes, all of one prefix of ``bits`` bits."""
    name = of.type_name.encode()
    numbers = of.step.to_bytes(8, "big") + of.next_update.to_bytes(8, "big") + len(digests).to_bytes(4, "big")
    return b"".join([MAGIC, bytes([bits, len(name)]), name, numbers, *(digest[:HASH_BYTES] for digest in digests)])
