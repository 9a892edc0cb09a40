"""A part: the states of the sets of a range of keys, of all types, sorted by key, as columns; and its bytes.

A part is immutable. A step of joins gives a new one (:mod:`kanon.gate.merging`).

Format 1: ``kanonprt``, the format and the length of the header (4 bytes each, big-endian), the header (JSON: the step,
the number of sets and of members, the bytes of a token), the columns one after the other, little-endian: those of the
sets (:data:`_COLUMNS`), the tokens and the ages of the members; the SHA-256 of all this; and zeros up to a whole
number of :data:`PADDING` bytes, so that the size of a file reveals little. Members are stored with their age at the
step of the part. A step is stored as its number plus one; 0 is none.

Format 2 is written if sets of listed types have sealed values: after the members come the length of each set's sealed
value (0: it has none) and these values, one after the other; the header has their length as ``sealed``.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from hashlib import sha256
from itertools import accumulate, pairwise
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from kanon.errors import UndecodableMembersError
from kanon.gate.mechanism.columns import NEVER, Bools, Ints, States, Tokens
from kanon.gate.mechanism.tape import SET_KEY_BYTES

MAGIC, FORMAT, WITH_VALUES = b"kanonprt", 1, 2
PADDING = 1 << 16
BYTES_A_SET, BYTES_A_MEMBER = 53, 6
"""What a set and a member of it take at most, without padding."""
OLDEST_AGE = 2**16 - 1
"""A member of this age or older has left every window; so it is stored with this age."""
_DIGEST_BYTES = 32
_COLUMNS = ((f"S{SET_KEY_BYTES}", 1), ("u1", 1), ("<u4", 1), ("<u4", 2), ("<u4", 1), ("<u4", 1))
"""The type of each column of the sets, and the numbers that a set has there."""
_Members = NDArray[np.uint16 | np.uint32]


@dataclass(frozen=True)
class Part:
    """The states of n sets with m members in all, after a step.

    Members are as they are stored: most belong to sets in which nothing happens.

    Attributes:
        step: the step.
        keys: the set keys, sorted, (n,).
        types: the number of each set's type, (n,).
        sizes: members per set, (n,).
        tokens, ages: the tokens of the members, set after set, latest first, and the steps since they joined, (m,).
        crossings: as in :class:`States`, (n, 2).
        wake_ups: the step at which each set crosses if nobody joins; NEVER if it does not, (n,).
        ends: the last step that needs each set's state, (n,).
        sealed: the sealed value of each set, empty without one, (n,); None if no set has one.
    """

    step: int
    keys: NDArray[np.bytes_]
    types: NDArray[np.uint8]
    sizes: Ints
    tokens: _Members
    ages: _Members
    crossings: Ints
    wake_ups: Ints
    ends: Ints
    sealed: "NDArray[np.object_] | None" = None

    def __len__(self) -> int:
        return len(self.keys)

    @classmethod
    def empty(cls) -> Self:
        """A part without sets."""
        none, keys, types = np.zeros(0, np.int64), np.zeros(0, f"S{SET_KEY_BYTES}"), np.zeros(0, np.uint8)
        return cls.of(0, keys, types, none, none, none, none.reshape(0, 2), none, none)

    @classmethod
    def of(
        cls, step: int, keys: NDArray[np.bytes_], types: NDArray[np.uint8], sizes: Ints, tokens: Ints, lasts: Ints,
        crossings: Ints, wake_ups: Ints, ends: Ints,
    ) -> Self:  # fmt: skip
        """A part of these states, with the last steps of members."""
        return cls(step, keys, types, sizes, _narrow(tokens), _ages(lasts, step), crossings, wake_ups, ends)

    @property
    def lasts(self) -> Ints:
        """The last steps of the members, (m,)."""
        return self.step - self.ages.astype(np.int64)

    def at(self, step: int) -> Self:
        """The same states at a later step."""
        if step == self.step:
            return self
        passed = np.uint16(min(step - self.step, OLDEST_AGE))
        return replace(self, step=step, ages=np.minimum(self.ages, OLDEST_AGE - passed) + passed)

    def due(self, step: int) -> Bools:
        """The sets that cross at ``step`` or before if nobody joins, (n,)."""
        due: Bools = (self.wake_ups != NEVER) & (self.wake_ups <= step)
        return due

    @property
    def earliest(self) -> int | None:
        """The first step at which something happens to a set that nobody joins: it crosses, or may be forgotten."""
        wake_ups = self.wake_ups[self.wake_ups != NEVER]
        steps = [int(column.min()) for column in (wake_ups, self.ends + 1) if len(column)]
        return min(steps, default=None)

    def rows(self, chosen: Bools) -> "Part":
        """Some of the sets."""
        if chosen.all():
            return self
        return Part(
            self.step,
            self.keys[chosen],
            self.types[chosen],
            self.sizes[chosen],
            _of_rows(self.tokens, self.sizes, chosen),
            _of_rows(self.ages, self.sizes, chosen),
            self.crossings[chosen],
            self.wake_ups[chosen],
            self.ends[chosen],
            None if self.sealed is None else self.sealed[chosen],
        )

    def states(self) -> States:
        """The states for a decision. The step at which a set was evaluated last is not stored, and not needed."""
        return States(
            keys_of(self.keys),
            Tokens(self.sizes, self.tokens.astype(np.int64)),
            self.lasts,
            self.crossings,
            np.full(len(self), NEVER),
            self.wake_ups,
        )

    def with_states(self, rows: Bools, states: States, ends: Ints) -> "Part":
        """The part with the new ``states`` and ``ends`` of some rows."""
        sizes = self.sizes.copy()
        sizes[rows] = states.members.sizes
        crossings, wake_ups, all_ends = self.crossings.copy(), self.wake_ups.copy(), self.ends.copy()
        crossings[rows], wake_ups[rows], all_ends[rows] = states.crossings, states.wake_ups, ends
        return replace(
            self,
            sizes=sizes,
            tokens=_with_rows(self.tokens, self.sizes, rows, _narrow(states.members.tokens), sizes),
            ages=_with_rows(self.ages, self.sizes, rows, _ages(states.lasts, self.step), sizes),
            crossings=crossings,
            wake_ups=wake_ups,
            ends=all_ends,
        )

    def with_sets(self, keys: NDArray[np.bytes_], types: NDArray[np.uint8]) -> "Part":
        """The part with new sets without members; ``keys`` are sorted, and none of them is in the part."""
        if not len(keys):
            return self
        before = np.searchsorted(self.keys, keys)
        old = np.arange(len(self)) + np.searchsorted(before, np.arange(len(self)), side="right")
        new = before + np.arange(len(keys))

        def spread(column: NDArray[Any], added: Any) -> NDArray[Any]:
            whole = np.empty((len(self) + len(keys), *column.shape[1:]), column.dtype)
            whole[old], whole[new] = column, added
            return whole

        return replace(
            self,
            keys=spread(self.keys, keys),
            types=spread(self.types, types),
            sizes=spread(self.sizes, 0),
            crossings=spread(self.crossings, NEVER),
            wake_ups=spread(self.wake_ups, NEVER),
            ends=spread(self.ends, NEVER),
            sealed=None if self.sealed is None else spread(self.sealed, b""),
        )

    def with_sealed(self, values: Mapping[bytes, bytes]) -> "Part":
        """The part with the sealed values of sets, by set key. A set keeps the one that it has."""
        if not values:
            return self
        sealed = np.full(len(self), b"", object) if self.sealed is None else self.sealed.copy()
        new = np.fromiter(values, self.keys.dtype, len(values))
        places = np.searchsorted(self.keys, new)
        inside = places < len(self)
        inside[inside] = self.keys[places[inside]] == new[inside]
        for place, there, value in zip(places.tolist(), inside.tolist(), values.values(), strict=True):
            if there and not sealed[place]:
                sealed[place] = value
        return replace(self, sealed=sealed)

    @property
    def sealed_bytes(self) -> int:
        """The length of all sealed values."""
        return 0 if self.sealed is None else sum(map(len, self.sealed))


def keys_of(keys: NDArray[np.bytes_]) -> list[bytes]:
    """The keys one by one, each with all of its bytes."""
    raw = keys.tobytes()
    return [raw[at : at + SET_KEY_BYTES] for at in range(0, len(raw), SET_KEY_BYTES)]


def _ages(lasts: Ints, step: int) -> _Members:
    """The ages at a step of members with these last steps, (m,)."""
    return np.minimum(step - lasts, OLDEST_AGE).astype(np.uint16)


def _narrow(tokens: "Ints | _Members") -> _Members:
    """Tokens in as few bytes as all of them fit in, (m,)."""
    small = tokens.dtype == np.uint16 or not len(tokens) or int(tokens.max()) < 1 << 16
    return tokens.astype(np.uint16 if small else np.uint32, copy=False)


def _of_rows(column: _Members, sizes: Ints, rows: Bools) -> _Members:
    """The members of some rows."""
    changes = _changes(rows)
    if _many(changes, column):
        return column[np.repeat(rows, sizes)]
    return np.concatenate([column[:0], *_cut(column, sizes, changes)[1::2]])


def _with_rows(column: _Members, sizes: Ints, rows: Bools, new: _Members, new_sizes: Ints) -> _Members:
    """The column with the ``new`` members of some rows, at least one; ``new_sizes`` are those of all rows then."""
    changes = _changes(rows)
    if _many(changes, column):
        chosen = np.repeat(rows, new_sizes)
        whole = np.empty(len(chosen), np.result_type(column, new))
        whole[chosen], whole[~chosen] = new, column[np.repeat(~rows, sizes)]
        return whole
    pieces = _cut(column, sizes, changes)
    pieces[1::2] = _cut(new, new_sizes * rows, changes[1:-1:2])
    return np.concatenate(pieces)


def _many(changes: Ints, column: _Members) -> bool:
    """Whether choosing members takes less time than copying runs of rows."""
    return len(changes) * 64 > len(column)


def _changes(rows: Bools) -> Ints:
    """Where runs of chosen rows begin and end, in turns."""
    return np.flatnonzero(np.diff(rows, prepend=False, append=False))


def _cut(column: _Members, sizes: Ints, rows: Ints) -> list[_Members]:
    """The members in pieces, cut before some rows."""
    places = np.concatenate(([0], np.cumsum(sizes)))[rows].tolist()
    return [column[start:end] for start, end in pairwise([0, *places, len(column)])]


def encode(part: Part, step: int) -> tuple[bytes, str]:
    """The bytes of a part of the states after ``step``, and their SHA-256 in hexadecimal."""
    part = part.at(step)
    tokens = _narrow(part.tokens)
    header = {"step": step, "sets": len(part), "members": len(part.tokens), "token_bytes": tokens.itemsize}
    values: list[bytes] = []
    if part.sealed is not None and part.sealed_bytes:
        header["sealed"] = part.sealed_bytes
        values = [np.array([len(each) for each in part.sealed], "<u2").tobytes(), *part.sealed]
    text = json.dumps(header, sort_keys=True).encode()
    columns = [
        part.keys,
        part.types,
        part.sizes.astype("<u4"),
        _stored(part.crossings),
        _stored(part.wake_ups),
        _stored(part.ends),
        tokens.astype(f"<u{tokens.itemsize}", copy=False),
        part.ages.astype("<u2", copy=False),
    ]
    numbers = (WITH_VALUES if values else FORMAT).to_bytes(4, "big") + len(text).to_bytes(4, "big")
    pieces: list[bytes | memoryview] = [
        MAGIC + numbers + text,
        *(np.ravel(column).view(np.uint8).data for column in columns),
        b"".join(values),
    ]
    hashed = sha256()
    for piece in pieces:
        hashed.update(piece)
    end = hashed.digest()
    end += bytes(-(sum(map(len, pieces)) + len(end)) % PADDING)
    hashed.update(end)  # of all bytes, without a second pass over them
    return b"".join([*pieces, end]), hashed.hexdigest()


def decode(content: bytes, *, checked: bool = False) -> Part:
    """The part in these bytes, of any format ever written.

    Args:
        content: the bytes.
        checked: whether they are known to be those that were written: a manifest has the digest of each object.

    Raises:
        UndecodableMembersError: the bytes are damaged, or of no known format.
    """
    start = len(MAGIC) + 8
    written = int.from_bytes(content[len(MAGIC) : start - 4], "big")
    if content[: len(MAGIC)] != MAGIC or written not in (FORMAT, WITH_VALUES):
        raise UndecodableMembersError("a part of unknown format")
    at = start + int.from_bytes(content[start - 4 : start], "big")
    try:
        header = json.loads(content[start:at])
        step, sets, members, width = (int(header[name]) for name in ("step", "sets", "members", "token_bytes"))
        sealed = int(header["sealed"]) if written == WITH_VALUES else 0
        if min(sets, members, sealed) < 0 or max(sets, members, sealed) > len(content) or width not in (2, 4):
            raise ValueError
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise UndecodableMembersError("a part whose header is damaged") from error
    shapes = [*((dtype, sets * numbers) for dtype, numbers in _COLUMNS), (f"<u{width}", members), ("<u2", members)]
    if written == WITH_VALUES:
        shapes += [("<u2", sets), ("u1", sealed)]
    starts = [*accumulate((np.dtype(dtype).itemsize * count for dtype, count in shapes), initial=at)]
    at = starts.pop()
    if not checked and sha256(content[:at]).digest() != content[at : at + _DIGEST_BYTES]:
        raise UndecodableMembersError("a part whose content is damaged")
    keys, types, sizes, crossings, wake_ups, ends, tokens, ages, *values = (
        np.frombuffer(content, dtype, count, start) for (dtype, count), start in zip(shapes, starts, strict=True)
    )
    return Part(
        step,
        keys,
        types,
        sizes.astype(np.int64),
        tokens,
        ages,
        _read(crossings).reshape(-1, 2),
        _read(wake_ups),
        _read(ends),
        _values(*values) if values else None,
    )


def _values(lengths: NDArray[np.uint16], content: NDArray[np.uint8]) -> NDArray[np.object_]:
    """The sealed value of each set."""
    ends = np.cumsum(lengths.astype(np.int64))
    if len(content) != (ends[-1] if len(ends) else 0):
        raise UndecodableMembersError("a part whose sealed values do not fit their lengths")
    whole, values = content.tobytes(), np.empty(len(lengths), object)
    for place, (start, end) in enumerate(zip((ends - lengths).tolist(), ends.tolist(), strict=True)):
        values[place] = whole[start:end]
    return values


def _stored(steps: Ints) -> NDArray[np.uint32]:
    return np.where(steps == NEVER, 0, steps + 1).astype("<u4")


def _read(stored: NDArray[np.uint32]) -> Ints:
    return np.where(stored == 0, NEVER, stored.astype(np.int64) - 1)
