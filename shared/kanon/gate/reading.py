"""Reads one slot of a step of the log, in the order of set keys and with little memory.

The rows of a set may lie in several partitions: a slot may have several, and an older layout's wake-ups lie beside
those of the current one. Each partition is sorted by set. So this is a merge: after each page, the sets before the
last one of the partition that is furthest behind are complete.

Packed items come first in their partition, and their joins are in no order. They are held in memory, and sorted. If
there are more than MOST_JOINS_HELD, those with the largest set keys are dropped, and the packed items are read again
when all sets before them are done.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kanon.gate.mechanism.tape import SET_KEY_BYTES
from kanon.gate.slots import Layout
from kanon.gate.storage.step_log import FIRST_PACKED, LAST_PACKED, PAST_ANY_TOKEN, StepLog, unpack_joins
from kanon.gate.types import Type

SETS_A_CHUNK = 500
"""Sets decided at once. Chunks of half this size cost a tenth more (docs/evidence/performance.md)."""
BYTES_A_CHUNK = 4_000_000
"""The largest number of bytes of a chunk's members; its memory is about 25 times as much
(docs/evidence/performance.md)."""
ROWS_A_CHUNK = 20_000
"""A chunk is committed after this many rows, about two pages of 1 MB, even if they touch few sets."""

MOST_JOINS_HELD = 1 << 20
"""The largest number of joins of packed items in memory; each takes 48 bytes, and more while they are sorted."""

WAKE_UP = -1
"""Stands for the token of a wake-up."""
_NUMBER = 8
_WAKE_UP = WAKE_UP.to_bytes(_NUMBER, "big", signed=True)


@dataclass(frozen=True)
class Touched:
    """A set with rows in a step, and the distinct tokens that joined, smallest first, at most as many as requested."""

    set_key: bytes
    type_name: str
    joined: tuple[int, ...]


class Page(NamedTuple):
    """The sets that one call completed, created when they are taken, and the number of rows it read."""

    sets: Iterable[Touched]
    rows: int


class Rows(NamedTuple):
    """Rows as columns: set keys (n,) of 32 bytes, tokens (n,) or WAKE_UP, and the numbers of their types (n,)."""

    keys: NDArray[np.bytes_]
    tokens: NDArray[np.int64]
    types: NDArray[np.int64]

    def part(self, selection: "slice | NDArray[np.intp] | NDArray[np.bool_]") -> "Rows":
        """Some of the rows."""
        return Rows(self.keys[selection], self.tokens[selection], self.types[selection])


def read_sets(
    log: StepLog, step: int, slot: int, after: bytes | None, types: Mapping[str, Type]
) -> Iterator[list[Touched]]:
    """The sets of :func:`pages` in chunks (:func:`chunks_of`); an empty list after each call that fills no chunk."""
    parameters = {name: type_.parameters for name, type_ in types.items()}
    keep = max(p.members_kept for p in parameters.values())
    window = max(p.window for p in parameters.values())
    largest = {name: p.members_kept * p.member_bytes for name, p in parameters.items()}
    return chunks_of(pages(log, step, slot, keep, window, after), largest)


def touched(
    log: StepLog, step: int, slot: int, keep: int, window: int, after: bytes | None = None
) -> Iterator[Touched]:
    """The sets of all :func:`pages`."""
    return (each for page in pages(log, step, slot, keep, window, after) for each in page.sets)


def chunks_of(pages: Iterable[Page], largest: Mapping[str, int]) -> Iterator[list[Touched]]:
    """Split the sets of pages into chunks of at most SETS_A_CHUNK. A page that fills no chunk gives an empty list.

    A chunk also ends after ROWS_A_CHUNK rows, so that sets with many rows do not delay a commit, and when the members
    of its sets may take BYTES_A_CHUNK: ``largest`` has the bytes of the members of a full set by its type.
    """
    waiting: list[Touched] = []
    rows = size = 0
    for page in pages:
        rows += page.rows
        for each in page.sets:
            waiting.append(each)
            size += largest.get(each.type_name, 0)
            if len(waiting) == SETS_A_CHUNK or size >= BYTES_A_CHUNK:
                yield waiting
                waiting, rows, size = [], 0, 0
        if waiting and rows >= ROWS_A_CHUNK:
            yield waiting
            waiting, rows, size = [], 0, 0
        else:
            yield []
    if waiting:
        yield waiting


def pages(log: StepLog, step: int, slot: int, keep: int, window: int, after: bytes | None = None) -> Iterator[Page]:
    """The sets of ``slot`` with rows in ``step``, in the order of their keys, strongly consistent.

    A page holds the sets that a call completed, perhaps none. After ``keep`` tokens of a set in a partition, its other
    rows there are skipped: the next call starts after the set.

    Args:
        log: the log.
        step: a closed step.
        slot: a slot of the layout at ``step``.
        keep: the largest number of tokens kept per set; more tokens cannot change a decision.
        window: the longest window of a type, in steps.
        after: start after this set.

    Raises:
        ConfigurationError: rows may lie under a layout that is no longer listed.
    """
    names: dict[str, int] = {}
    lowest, highest = log.layouts.at(step).keys_of(slot)
    rows = (lowest if after is None else after + PAST_ANY_TOKEN, highest + PAST_ANY_TOKEN)
    places = log.partitions(step, slot, window)
    whole = log.layouts.at(step) if after is None else None
    sources = [
        _Source(log, place, _ranges(rows, layout, whole=layout == whole), keep, names)
        for place, layout in places.items()
    ]
    packed = _Packed(lowest, highest, after, keep, names)
    while True:
        while unread := [source for source in sources if source.ranges]:
            source = min(unread, key=lambda each: each.edge)
            if packed.until is not None and source.edge >= packed.until:
                break
            read = source.fetch(packed)
            edges = [source.edge for source in sources if source.ranges]
            edge = min(edges if packed.until is None else [*edges, packed.until], default=None)
            parts = [packed.take(edge), *(each.take(edge) for each in sources)]
            yield Page(_sets_of(parts, list(names), keep), read)
        if packed.until is None:
            return
        packed = _Packed(packed.until, highest, None, keep, names)
        again = [place for place, layout in places.items() if layout.partitions is not None]
        sources += [_Source(log, place, [(FIRST_PACKED, LAST_PACKED)], keep, names) for place in again]


Range = tuple[bytes, bytes]
"""The first and the last key to read in a partition."""


def _ranges(rows: Range, layout: Layout, *, whole: bool) -> list[Range]:
    """The ranges of a partition with these rows and its packed items; a ``whole`` partition is one range."""
    if layout.partitions is None:
        return [rows]
    return [(FIRST_PACKED, rows[1])] if whole else [(FIRST_PACKED, LAST_PACKED), rows]


@dataclass
class _Packed:
    """The joins of packed items, from the set ``first`` to ``last``, except those up to ``after``.

    Attributes:
        until: joins of this set and of larger ones are not held; None if all are held.
    """

    first: bytes
    last: bytes
    after: bytes | None
    keep: int
    names: dict[str, int]
    until: bytes | None = None
    held: list[Rows] = field(default_factory=list)
    count: int = 0
    sorted: bool = True

    def add(self, items: Iterable[bytes]) -> None:
        """Hold the joins of packed items."""
        entries: dict[tuple[str, int], list[bytes]] = {}
        for joins in (joins for item in items for joins in unpack_joins(item)):
            entries.setdefault((joins.type_name, joins.token_bytes), []).append(joins.entries)
        for (type_name, width), parts in entries.items():
            found = np.frombuffer(b"".join(parts), [("key", f"S{SET_KEY_BYTES}"), ("token", f">u{width}")])
            keys = found["key"]
            wanted = (keys >= self.first) & (keys <= self.last)
            if self.after is not None:
                wanted &= keys > self.after
            if self.until is not None:
                wanted &= keys < self.until
            number = self.names.setdefault(type_name, len(self.names))
            tokens = found["token"][wanted].astype(np.int64)
            self.held.append(Rows(keys[wanted], tokens, np.full(len(tokens), number)))
            self.count, self.sorted = self.count + len(tokens), False
            if self.count > self._most:
                self._drop()

    @property
    def _most(self) -> int:
        return max(MOST_JOINS_HELD, 4 * self.keep)

    def _drop(self) -> None:
        """Drop repeated joins, tokens that cannot matter, and, if it is still necessary, the largest sets."""
        rows = _first_tokens(_sort(_concatenate(self.held)), self.keep)
        if len(rows.keys) > self._most // 2:
            self.until = rows.keys[self._most // 2 : self._most // 2 + 1].tobytes()
            rows = rows.part(rows.keys < self.until)
        self.held, self.count, self.sorted = [rows], len(rows.keys), True

    def take(self, edge: bytes | None) -> Rows:
        """Take the joins of sets before ``edge``; all joins, if it is None. The packed items before it are read."""
        if edge is not None and edge <= LAST_PACKED:
            return _NO_ROWS
        if not self.sorted:
            self.held, self.sorted = [_sort(_concatenate(self.held))], True
        taken, self.held = _before(self.held, edge)
        return taken


@dataclass
class _Source:
    """A partition, with the ranges that remain to be read.

    Attributes:
        edge: sets with smaller keys are complete, as far as they are not packed.
    """

    log: StepLog
    partition: bytes
    ranges: list[Range]
    keep: int
    names: dict[str, int]
    edge: bytes = b""
    waiting: list[Rows] = field(default_factory=list)

    def fetch(self, packed: _Packed) -> int:
        """Read one page. Returns the number of items read."""
        first, last = self.ranges.pop(0)
        found = self.log.page(self.partition, first, last)
        packed.add(found.packed)
        self.waiting.append(_columns(found.rows, self.names))
        if found.last is not None:
            set_key = self.edge = found.last[:SET_KEY_BYTES]
            tokens = ((rows.keys == set_key) & (rows.tokens != WAKE_UP) for rows in self.waiting)
            enough = sum(map(np.count_nonzero, tokens)) >= self.keep
            self.ranges.insert(0, (set_key + PAST_ANY_TOKEN if enough else found.last + b"\x00", last))
        return len(found.rows) + len(found.packed)

    def take(self, edge: bytes | None) -> Rows:
        """Take the rows of sets before ``edge``; all rows, if it is None."""
        taken, self.waiting = _before(self.waiting, edge)
        return taken


def _before(sorted_rows: list[Rows], edge: bytes | None) -> tuple[Rows, list[Rows]]:
    """Split rows, sorted by set, into those before ``edge`` (all, if it is None) and the others."""
    rows = _concatenate(sorted_rows)
    end = len(rows.keys) if edge is None else int(np.searchsorted(rows.keys, np.bytes_(edge)))
    return rows.part(slice(0, end)), [rows.part(slice(end, None))] if end < len(rows.keys) else []


def _columns(rows: list[tuple[bytes, str]], names: dict[str, int]) -> Rows:
    """Rows as columns. ``names`` collects the numbers of the types."""
    keys = b"".join(key[:SET_KEY_BYTES] for key, _ in rows)
    tokens = b"".join(
        key[SET_KEY_BYTES:].rjust(_NUMBER, b"\x00") if key[SET_KEY_BYTES:] else _WAKE_UP for key, _ in rows
    )
    types = [names.setdefault(type_name, len(names)) for _, type_name in rows]
    return Rows(
        np.frombuffer(keys, f"S{SET_KEY_BYTES}"),
        np.frombuffer(tokens, f">i{_NUMBER}").astype(np.int64),
        np.array(types, np.int64),
    )


_NO_ROWS = _columns([], {})


def _concatenate(parts: list[Rows]) -> Rows:
    """Rows one after the other."""
    if len(parts) < 2:
        return parts[0] if parts else _NO_ROWS
    return Rows(*(np.concatenate(column) for column in zip(*parts, strict=True)))


def _sort(rows: Rows) -> Rows:
    """Rows in the order of set keys, then of tokens."""
    return rows.part(np.lexsort((rows.tokens, rows.keys)))


def _first_tokens(rows: Rows, keep: int) -> Rows:
    """The distinct rows of sorted rows, at most ``keep`` per set."""
    new_set = np.ones(len(rows.keys), bool)
    new_set[1:] = rows.keys[1:] != rows.keys[:-1]
    once = new_set.copy()
    once[1:] |= rows.tokens[1:] != rows.tokens[:-1]
    rows, new_set = rows.part(once), new_set[once]
    places = np.arange(len(new_set))
    return rows.part(places - np.maximum.accumulate(np.where(new_set, places, 0)) < keep)


def _sets_of(parts: list[Rows], names: list[str], keep: int) -> Iterator[Touched]:
    """The sets of these rows, in order."""
    rows = _sort(_concatenate([part for part in parts if len(part.keys)]))
    keys, types = rows.keys.tobytes(), rows.types
    new = np.flatnonzero(rows.keys[1:] != rows.keys[:-1]) + 1
    start = 0
    for end in [*new.tolist(), len(rows.keys)] if len(rows.keys) else ():
        tokens = dict.fromkeys(rows.tokens[start:end].tolist())
        tokens.pop(WAKE_UP, None)
        key = keys[start * SET_KEY_BYTES : (start + 1) * SET_KEY_BYTES]
        yield Touched(key, names[types[start]], tuple(tokens)[:keep])
        start = end
