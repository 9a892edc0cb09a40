"""Reads one slot of a step of the log, in the order of set keys and with little memory.

The rows of a set may lie in several partitions: an older layout's wake-ups lie beside those of the current one. Each
partition is sorted by set. So this is a merge: after each page, the sets before the last one of the partition that is
furthest behind are complete.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kanon.gate.mechanism.tape import SET_KEY_BYTES
from kanon.gate.storage.step_log import PAST_ANY_TOKEN, StepLog

SETS_A_CHUNK = 500
"""Sets decided at once. Chunks of half this size cost a tenth more (docs/evidence/performance.md)."""
NO_LIMITS: Mapping[str, int] = MappingProxyType({})
BYTES_A_CHUNK = 4_000_000
"""What the members of a chunk may take; its memory is some 25 times as much (docs/evidence/performance.md)."""
ROWS_A_CHUNK = 20_000
"""A chunk is committed after so many rows were read for it, about two pages of 1 MB, even if they touch few sets."""

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
    """The sets that one call completed, made when they are taken, and how many rows it read."""

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
    log: StepLog,
    step: int,
    slot: int,
    keep: int,
    window: int,
    after: bytes | None = None,
    largest: Mapping[str, int] = NO_LIMITS,
) -> Iterator[list[Touched]]:
    """The sets of :func:`pages` in chunks (:func:`chunked`); an empty list after each call that fills no chunk."""
    return chunked(pages(log, step, slot, keep, window, after), largest)


def touched(
    log: StepLog, step: int, slot: int, keep: int, window: int, after: bytes | None = None
) -> Iterator[Touched]:
    """The sets of all :func:`pages`."""
    return (each for page in pages(log, step, slot, keep, window, after) for each in page.sets)


def chunked(pages: Iterable[Page], largest: Mapping[str, int] = NO_LIMITS) -> Iterator[list[Touched]]:
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
    first, last = log.layouts.at(step).keys_of(slot)
    first = first if after is None else after + PAST_ANY_TOKEN
    sources = [
        _Source(log, partition, first, last + PAST_ANY_TOKEN, keep, names)
        for partition in log.partitions(step, slot, window)
    ]
    unread = list(sources)
    while unread:
        rows = min(unread, key=lambda source: source.edge).fetch()
        unread = [source for source in unread if source.next is not None]
        edge = min(source.edge for source in unread) if unread else None
        yield Page(_completed([source.take(edge) for source in sources], list(names), keep), rows)


@dataclass
class _Source:
    """A partition, from the set to read next up to ``last``. Rows of sets that may be incomplete wait.

    Attributes:
        next: the row to read next; None after the last one.
        edge: sets with smaller keys are complete.
    """

    log: StepLog
    partition: bytes
    next: bytes | None
    last: bytes
    keep: int
    names: dict[str, int]
    edge: bytes = b""
    waiting: list[Rows] = field(default_factory=list)

    def fetch(self) -> int:
        """Read one page. Returns the number of rows read."""
        if self.next is None:
            raise ValueError("the partition has no more rows")
        found = self.log.page(self.partition, self.next, self.last)
        self.waiting.append(_columns(found.rows, self.names))
        if found.last is None:
            self.next = None
            return len(found.rows)
        set_key, self.next = found.last[:SET_KEY_BYTES], found.last + b"\x00"
        self.edge = set_key
        tokens = ((rows.keys == set_key) & (rows.tokens != WAKE_UP) for rows in self.waiting)
        if sum(map(np.count_nonzero, tokens)) >= self.keep:
            self.next = set_key + PAST_ANY_TOKEN
        return len(found.rows)

    def take(self, edge: bytes | None) -> Rows:
        """Take the rows of sets before ``edge``; all rows, if it is None."""
        rows = _joined(self.waiting)
        if edge is None:
            self.waiting = []
            return rows
        end = int(np.searchsorted(rows.keys, np.bytes_(edge)))
        self.waiting = [rows.part(slice(end, None))]
        return rows.part(slice(0, end))


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


def _joined(parts: list[Rows]) -> Rows:
    """Rows one after the other."""
    if not parts:
        return _columns([], {})
    return parts[0] if len(parts) == 1 else Rows(*(np.concatenate(column) for column in zip(*parts, strict=True)))


def _completed(parts: list[Rows], names: list[str], keep: int) -> Iterator[Touched]:
    """The sets of these rows, in order."""
    rows = _joined([part for part in parts if len(part.keys)])
    rows = rows.part(np.lexsort((rows.tokens, rows.keys)))
    keys, types = rows.keys.tobytes(), rows.types
    new = np.flatnonzero(rows.keys[1:] != rows.keys[:-1]) + 1
    start = 0
    for end in [*new.tolist(), len(rows.keys)] if len(rows.keys) else ():
        tokens = dict.fromkeys(rows.tokens[start:end].tolist())
        tokens.pop(WAKE_UP, None)
        key = keys[start * SET_KEY_BYTES : (start + 1) * SET_KEY_BYTES]
        yield Touched(key, names[types[start]], tuple(tokens)[:keep])
        start = end
