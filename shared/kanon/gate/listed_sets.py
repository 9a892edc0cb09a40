"""The sets of listed types that are true in a slot at a step, with their sealed values, as one object for the lister.

It lies beside the object of true sets (:mod:`kanon.gate.true_sets`), and its name follows from that one's: so the
horizon names both. ``query`` may not read it, and ``evaluate`` cannot open its values.

Format 1: ``kanonlst``, the format and the number of sets (4 bytes each, big-endian), and the digest in its name (16
bytes); for each set, sorted by key, the key (32 bytes), the number of its type (1), its last two crossings (4 each,
little-endian, plus one; 0 is none), the last step at which it is true because of the newer one (4), the length of the
sealed value (2), and this value; the SHA-256 of all this; and zeros up to a whole number of :data:`PADDING` bytes. The
number of sets is :data:`INCOMPLETE` if the sets of the slot are too many or not all known.
"""

import heapq
from collections.abc import Iterable, Iterator
from hashlib import sha256
from operator import attrgetter
from struct import Struct
from typing import NamedTuple

from kanon.errors import UndecodableMembersError
from kanon.gate.true_sets import PADDING, PREFIX

SUFFIX = ".listed"
MAGIC, FORMAT = b"kanonlst", 1
INCOMPLETE = (1 << 32) - 1
MOST_BYTES = 128 << 20
"""A slot whose sets take more has no list until they are fewer: a worker has too little memory for it."""
_HEADER = Struct(">8sII16s")
_SET = Struct("<32sBIIIH")
_DIGEST_BYTES = 32


class ListedSet(NamedTuple):
    """A set that is true.

    Attributes:
        key: its key.
        number: the number of its type.
        crossings: its last crossings, at most two, oldest first.
        last: the last step at which it is true because of the newest one.
        sealed: its value, sealed to the lister.
    """

    key: bytes
    number: int
    crossings: tuple[int, ...]
    last: int
    sealed: bytes


def is_room_for(count: int) -> bool:
    """Whether an object has room for so many sets: each takes less than 1 KiB."""
    return count << 10 <= MOST_BYTES


def name_beside(shows: str) -> str:
    """The name of the object beside that of true sets."""
    return shows.removeprefix(PREFIX) + SUFFIX


def after(before: Iterable[ListedSet], found: Iterable[ListedSet], step: int) -> Iterator[ListedSet]:
    """The sets after ``step``, sorted.

    Args:
        before: those of an earlier step, sorted.
        found: the sets that crossed since then.
        step: the step.
    """
    new = {each.key: each for each in found}
    old = (each for each in before if each.last >= step and each.key not in new)
    return heapq.merge(old, sorted(new.values()), key=attrgetter("key"))


def encode(shows: str, sets: Iterable[ListedSet] | None) -> bytes:
    """The object beside ``shows``.

    Args:
        shows: the name of the object of true sets.
        sets: the sets, sorted; None: they are not all known.
    """
    records, size = list[bytes](), 0
    for each in sets or ():
        records.append(_record(each))
        size += len(records[-1])
        if size > MOST_BYTES:
            sets, records = None, []
            break
    count = INCOMPLETE if sets is None else len(records)
    content = b"".join([_HEADER.pack(MAGIC, FORMAT, count, _digest_in(shows)), *records])
    content += sha256(content).digest()
    return content + bytes(-len(content) % PADDING)


def decode(shows: str, content: bytes) -> Iterator[ListedSet] | None:
    """The sets of the object beside ``shows``, sorted; None if it does not have all of them.

    Raises:
        UndecodableMembersError: it is damaged, or belongs to another object.
    """
    if len(content) < _HEADER.size:
        raise UndecodableMembersError("an object of listed sets is cut")
    magic, written, count, digest = _HEADER.unpack_from(content)
    if (magic, written) != (MAGIC, FORMAT):
        raise UndecodableMembersError("an object of listed sets of unknown format")
    if digest != _digest_in(shows):
        raise UndecodableMembersError("an object of listed sets belongs to other true sets")
    ends = _ends(content, 0 if count == INCOMPLETE else count)
    if sha256(content[: ends[-1]]).digest() != content[ends[-1] : ends[-1] + _DIGEST_BYTES]:
        raise UndecodableMembersError("an object of listed sets is damaged")
    return None if count == INCOMPLETE else (_set(content, at) for at in ends[:-1])


def _ends(content: bytes, count: int) -> list[int]:
    """Where each of the sets begins, and the last one ends."""
    ends = [_HEADER.size]
    for _ in range(count):
        if ends[-1] + _SET.size > len(content):
            raise UndecodableMembersError("an object of listed sets ends inside a set")
        *_, length = _SET.unpack_from(content, ends[-1])
        ends.append(ends[-1] + _SET.size + length)
    return ends


def _record(each: ListedSet) -> bytes:
    earlier, newest = (None, *each.crossings)[-2:]
    steps = 0 if earlier is None else earlier + 1, (newest or 0) + 1, each.last
    return _SET.pack(each.key, each.number, *steps, len(each.sealed)) + each.sealed


def _set(content: bytes, at: int) -> ListedSet:
    key, number, *crossings, last, length = _SET.unpack_from(content, at)
    start = at + _SET.size
    return ListedSet(key, number, tuple(c - 1 for c in crossings if c), last, content[start : start + length])


def _digest_in(shows: str) -> bytes:
    return bytes.fromhex(shows.rpartition("-")[2])
