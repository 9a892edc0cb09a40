"""The joins of a slot's steps: every page of the log is read once, and the joins are then given range by range.

Packed joins are in no order. So a step is read as a whole, partitions and ranges of them in parallel, into one buffer
in the order of key ranges. What exceeds MOST_BYTES goes to a file without a name in the directory of temporary files,
which goes when the worker stops. The buffer holds repeated joins too; a range is sorted when it is asked for. So do
the sealed values of listed types: of a set, the first one in the order of partitions and keys is given, in whatever
order the pages came.

Reading may outlast a worker. Every READING_SECONDS, and before it must stop, a worker puts what it has read into the
bucket and records it with the ranges that are left (:class:`Gathering`). The next one reads only these.
"""

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from operator import itemgetter
from tempfile import TemporaryFile
from typing import IO, TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kanon.dynamo.batches import back_off, is_throttle
from kanon.errors import ConfigurationError, OutOfTimeError, UndecodableJoinsError
from kanon.gate.mechanism.tape import SET_KEY_BYTES
from kanon.gate.merging import JOIN, Joins
from kanon.gate.slots import Layout
from kanon.gate.storage.aws.step_log import (
    FIRST_PACKED,
    LAST_PACKED,
    LENGTH_BYTES,
    PAST_ANY_TOKEN,
    PackedJoins,
    PartitionPage,
    StepLog,
    unpack_joins,
)

if TYPE_CHECKING:
    from kanon.gate.storage.aws.gathering import Gathering

READERS = 8
"""Pages read at once. A range of a partition that is longer than a page is read in as many parts."""
TRIES = 12
"""How often a page is asked for, each time as often as the client repeats a call."""
MOST_BYTES = 128 << 20
"""The bytes of joins in memory. The others are in a file."""
MOST_CONTENT_BYTES = 64 << 20
"""An object of what was read is not much larger."""
BUCKETS = 256
"""Ranges of keys of equal width into which the joins of a page are sorted."""
JOINS_A_BUCKET = 1 << 15
"""Buckets are taken together as long as they have no more joins than about this."""
READING_SECONDS = 30.0
"""What took longer to read is put into the bucket. So a worker that starts again reads for at most about so long."""
SECONDS_TO_HAND_OVER = 45.0
"""A worker with less time left than this reads no further: it puts what it has read into the bucket, and stops."""
_CUT_BYTES = 40
"""Longer than every key of the log."""


class Range(NamedTuple):
    """The keys of a partition that are still to be read.

    Attributes:
        whole: whether none of them was read: it may be read in parts.
    """

    partition: bytes
    first: bytes
    last: bytes
    whole: bool = True

    def parts(self) -> list["Range"]:
        """Ranges of equal width; itself if it is no longer whole. Nothing is between a key and the key with a 0."""
        if not self.whole:
            return [self]
        low, high = _number(self.first), _number(self.last)
        cuts = sorted({low + (high - low) * n // READERS for n in range(1, READERS)} - {low, high})
        edges = [cut.to_bytes(_CUT_BYTES, "big") for cut in cuts]
        firsts = [self.first, *(edge + b"\x00" for edge in edges)]
        bounds = zip(firsts, [*edges, self.last], strict=True)
        return [Range(self.partition, first, last, whole=False) for first, last in bounds]


def _number(key: bytes) -> int:
    return int.from_bytes(key.ljust(_CUT_BYTES, b"\x00"), "big")


class Page(NamedTuple):
    """The joins of a page, bucket by bucket, where each bucket begins and the last one ends, and what is left to read.

    Attributes:
        entries: joins of dtype :data:`JOIN`, as bytes.
        edges: (BUCKETS + 1,), in joins.
        place: partition and first key of what was read: the order of pages.
        sealed: the set key and the sealed value of each set of the page that has one: the first one.
    """

    entries: bytes
    edges: NDArray[np.int64]
    rest: list[Range]
    place: tuple[bytes, bytes]
    sealed: dict[bytes, bytes]


class StepJoins:
    """The joins of a slot; a :class:`kanon.gate.storage.protocols.JoinLog` without what only a writer's log needs.

    It holds one step at a time. Close it, or use it as a context.

    Args:
        log: the log.
        slot: the slot.
        numbers: the number of each type whose joins may be in the log, also of retired types.
        gathering: where what was read is kept if it takes long; None: nowhere, there is time enough.
    """

    def __init__(
        self, log: StepLog, slot: int, numbers: Mapping[str, int], gathering: "Gathering | None" = None
    ) -> None:
        self._log, self._slot, self._numbers, self._gathering = log, slot, numbers, gathering
        self._buffer: _Buffer | None = None

    def __enter__(self) -> "StepJoins":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Forget what was read."""
        if self._buffer is not None:
            self._buffer.close()
            self._buffer = None

    def count(self, step: int) -> int:
        """The number of joins of a step, repeated ones included.

        Raises:
            ConfigurationError: the log has joins of a type that has no number; or more than memory and the directory of
                temporary files hold; or rows may lie under a layout that is no longer listed.
            UndecodableJoinsError: joins are of no known format.
        """
        return self._read(step).count

    def joins(self, step: int, first: bytes, end: bytes | None) -> Joins:
        """The distinct joins of the sets from the key ``first`` up to ``end``, which is not included, sorted.

        Raises:
            ConfigurationError, UndecodableJoinsError: as :meth:`count`.
        """
        return self._read(step).joins(first, end)

    def sealed(self, step: int, first: bytes, end: bytes | None) -> dict[bytes, bytes]:
        """The sealed values of the sets from the key ``first`` up to ``end``, which is not included, by set key.

        Raises:
            ConfigurationError, UndecodableJoinsError: as :meth:`count`.
        """
        return self._read(step).sealed(first, end)

    def _read(self, step: int) -> "_Buffer":
        if self._buffer is None or self._buffer.step != step:
            self.close()
            layout = self._log.layouts.at(step)
            buffer = _Buffer(step, self._slot, layout)
            try:
                if self._gathering is None:
                    for page, _ in self._pages(self._ranges(step, layout), layout):
                        buffer.add(page)
                else:
                    self._gather(buffer, layout, self._gathering)
            except BaseException:
                buffer.close()
                raise
            self._buffer = buffer
        return self._buffer

    def _gather(self, buffer: "_Buffer", layout: Layout, gathering: "Gathering") -> None:
        """Read what no worker has read yet, and then get what others have put.

        Raises:
            OutOfTimeError: time ran out. What was read is put.
        """
        rest = gathering.rest(buffer.step)
        is_long, is_new, since = rest is not None, False, gathering.time_left()
        for page, left in self._pages(self._ranges(buffer.step, layout) if rest is None else rest, layout):
            buffer.add(page)
            is_new, is_short = True, bool(left) and gathering.time_left() < SECONDS_TO_HAND_OVER
            if is_short or since - gathering.time_left() > READING_SECONDS:
                gathering.put(buffer.step, buffer.unsaved(), left)
                is_long, is_new, since = True, False, gathering.time_left()
            if is_short:
                raise OutOfTimeError
        if is_long:
            if is_new:
                gathering.put(buffer.step, buffer.unsaved(), ())
            if gathering.time_left() < SECONDS_TO_HAND_OVER:
                raise OutOfTimeError
            for content in gathering.contents():
                buffer.load(content)

    def _pages(self, ranges: Iterable[Range], layout: Layout) -> Iterator[tuple[Page, list[Range]]]:
        """All pages of some ranges, in no order, each with the ranges that are then left. Those asked for are first."""
        readers = ThreadPoolExecutor(READERS)
        try:
            waiting = {readers.submit(self._page, part, layout): part for part in ranges}
            while waiting:
                for future in wait(waiting, return_when=FIRST_COMPLETED).done:
                    page = future.result()
                    del waiting[future]
                    waiting |= {readers.submit(self._page, part, layout): part for part in page.rest}
                    yield page, [*waiting.values()]
        finally:
            readers.shutdown(cancel_futures=True)

    def _ranges(self, step: int, layout: Layout) -> Iterator[Range]:
        """What to read at first: all of a partition at once, unless it has rows of other slots."""
        first, last = self._rows(layout)
        for partition, of in self._log.partitions(step, self._slot).items():
            if of.partitions is None:
                yield Range(partition, first, last)
            elif of == layout:
                yield Range(partition, FIRST_PACKED, last)
            else:
                yield from (Range(partition, FIRST_PACKED, LAST_PACKED), Range(partition, first, last))

    def _rows(self, layout: Layout) -> tuple[bytes, bytes]:
        """The first and the last key that a row of the slot can have."""
        lowest, highest = layout.keys_of(self._slot)
        return max(LAST_PACKED + b"\x00", lowest), highest + PAST_ANY_TOKEN

    def _page(self, part: Range, layout: Layout) -> Page:
        """Read one page."""
        found = self._found(part)
        packed = [joins for item in found.packed for joins in unpack_joins(item)]
        joins = _joined([self._singles(found), *self._packed(packed)])
        places = _leading_bits(joins) * layout.slots
        own = places >> 16 == self._slot
        buckets = (places[own] >> 8 & BUCKETS - 1).astype(np.uint8)
        joins = joins[own][np.argsort(buckets, kind="stable")]
        edges = np.concatenate(([0], np.cumsum(np.bincount(buckets, minlength=BUCKETS))))
        rest = [] if found.last is None else self._rest(part, found.last, layout)
        return Page(joins.tobytes(), edges, rest, (part.partition, part.first), self._sealed(found, packed, layout))

    def _found(self, part: Range) -> PartitionPage:
        """The items of a page. If the table is busy it is asked again, so that the pages read so far are not lost."""
        from botocore.exceptions import ClientError

        for attempt in range(TRIES - 1):
            try:
                return self._log.page(part.partition, part.first, part.last)
            except ClientError as error:
                if not is_throttle(error):
                    raise
            back_off(attempt)
        return self._log.page(part.partition, part.first, part.last)

    def _rest(self, part: Range, last_read: bytes, layout: Layout) -> list[Range]:
        """What is left of a range after a page that ended with this key."""
        first = last_read + b"\x00"
        if first <= LAST_PACKED < part.last:
            rows, _ = self._rows(layout)
            return [*part._replace(first=first, last=LAST_PACKED).parts(), part._replace(first=rows)]
        return part._replace(first=first).parts()

    def _singles(self, found: PartitionPage) -> Joins:
        """The joins that are rows."""
        rows = b"".join(key + bytes([self._number(type_name)]) for key, type_name in found.rows)
        if any(len(key) + 1 != JOIN.itemsize for key, _ in found.rows):
            raise UndecodableJoinsError("the log has a row whose key is not that of a join")
        return np.frombuffer(rows, JOIN)

    def _sealed(self, found: PartitionPage, packed: Iterable[PackedJoins], layout: Layout) -> dict[bytes, bytes]:
        """The first sealed value of each set of the slot. Packed items come before rows."""
        values: dict[bytes, bytes] = {}
        for set_key, value in (*(each for joins in packed for each in joins.sealed), *found.sealed):
            if layout.slot_of(set_key) == self._slot:
                values.setdefault(set_key, value)
        return values

    def _packed(self, packed: Iterable[PackedJoins]) -> Iterator[Joins]:
        """The joins of packed items."""
        entries: dict[tuple[str, int], list[bytes]] = {}
        for joins in packed:
            entries.setdefault((joins.type_name, joins.token_bytes), []).append(joins.entries)
        for (type_name, width), parts in entries.items():
            given = np.frombuffer(b"".join(parts), [("key", f"S{SET_KEY_BYTES}"), ("token", f">u{width}")])
            found = np.empty(len(given), JOIN)
            found["key"], found["token"], found["type"] = given["key"], given["token"], self._number(type_name)
            yield found

    def _number(self, type_name: str) -> int:
        if type_name not in self._numbers:
            raise ConfigurationError(
                f"the log has joins of type {type_name!r}, which is not configured: deploy the type again, or retire it"
                f" permanently with `kanon operate retire {type_name}`"
            )
        return self._numbers[type_name]


def _joined(parts: Iterable[Joins]) -> Joins:
    """Joins one after the other. ``np.concatenate`` would change the order of the bytes of a token."""
    return np.frombuffer(b"".join(part.tobytes() for part in parts), JOIN)


def _leading_bits(joins: Joins) -> NDArray[np.int64]:
    """The first 16 bits of the set keys."""
    entries = joins.view(np.uint8).reshape(-1, JOIN.itemsize)
    return entries[:, 0].astype(np.int64) << 8 | entries[:, 1]


def _records(content: bytes) -> Iterator[tuple[bytes, bytes]]:
    """The set key and the sealed value of each record."""
    at = 0
    while at < len(content):
        start = at + SET_KEY_BYTES + LENGTH_BYTES
        end = start + int.from_bytes(content[at + SET_KEY_BYTES : start], "big")
        yield content[at : at + SET_KEY_BYTES], content[start:end]
        at = end


class _Held(NamedTuple):
    """The joins of a page in a buffer, or its sealed values.

    Attributes:
        place: that of the page (:class:`Page`) if these are sealed values; None for joins.
        edges: where each bucket begins, and the last one ends, (BUCKETS + 1,), in bytes.
        content: the joins, or of each set the key, the length (2 bytes) and the value; or their place in the file.
    """

    place: tuple[bytes, bytes] | None
    edges: NDArray[np.int64]
    content: bytes | int


def _encoded(pages: Sequence[tuple[_Held, bytes]]) -> bytes:
    """An object with the pages: their places and edges as JSON after its length (4 bytes), and then the contents."""
    heads = [(held.place and [each.hex() for each in held.place], held.edges.tolist()) for held, _ in pages]
    head = json.dumps(heads).encode()
    return b"".join([len(head).to_bytes(4, "big"), head, *(content for _, content in pages)])


def _decoded(stored: bytes) -> Iterator[tuple[tuple[bytes, bytes] | None, NDArray[np.int64], bytes]]:
    """Place, edges and content of each page of an object."""
    at = 4 + int.from_bytes(stored[:4], "big")
    for texts, edges in json.loads(stored[4:at]):
        place = None if texts is None else (bytes.fromhex(texts[0]), bytes.fromhex(texts[1]))
        yield place, np.array(edges, np.int64), stored[at : at + edges[-1]]
        at += edges[-1]


class _Buffer:
    """The joins of a step, page by page, in memory or in a file."""

    def __init__(self, step: int, slot: int, layout: Layout) -> None:
        self.step, self.count = step, 0
        self._slot, self._layout = slot, layout
        self._held: list[_Held] = []
        self._saved = 0
        self._bytes = self._written = 0
        self._file: IO[bytes] | None = None
        self._descriptor = -1
        self._last: tuple[int, Joins] = (-1, np.zeros(0, JOIN))

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def add(self, page: Page) -> None:
        """Add a page."""
        if page.sealed:
            self._add_values(page)
        if not page.entries:
            return
        self._add(None, page.edges * JOIN.itemsize, page.entries)

    def _add_values(self, page: Page) -> None:
        """Add the sealed values of a page, in the order of their sets: set key, length (2 bytes) and value."""
        keys = sorted(page.sealed)
        records = [key + len(page.sealed[key]).to_bytes(LENGTH_BYTES, "big") + page.sealed[key] for key in keys]
        sizes = np.bincount([self._bucket(key) for key in keys], [len(each) for each in records], BUCKETS)
        self._add(page.place, np.concatenate(([0], np.cumsum(sizes.astype(np.int64)))), b"".join(records))

    def _add(self, place: tuple[bytes, bytes] | None, edges: NDArray[np.int64], content: bytes) -> None:
        self.count += len(content) // JOIN.itemsize if place is None else 0
        self._held.append(_Held(place, edges, self._hold(content)))

    def _hold(self, content: bytes) -> bytes | int:
        """Keep bytes in memory, or in the file; then the result is their place."""
        if self._bytes + len(content) > MOST_BYTES:
            return self._write(content)
        self._bytes += len(content)
        return content

    def _write(self, entries: bytes) -> int:
        """Write entries to the file. Returns their place."""
        at = self._written
        try:
            if self._file is None:
                self._file = TemporaryFile(buffering=0)  # noqa: SIM115, close() closes it
                self._descriptor = self._file.fileno()
            while self._written < at + len(entries):
                self._written += os.pwrite(self._descriptor, entries[self._written - at :], self._written)
        except OSError as error:
            raise ConfigurationError(
                f"slot {self._slot} has more joins in step {self.step} than the temporary files of a worker hold: raise"
                f" EphemeralStorage of `evaluate` in template.yaml, and use more slots from a later step on"
            ) from error
        return at

    def unsaved(self) -> Iterator[bytes]:
        """What was added since the last call, in contents of about MOST_CONTENT_BYTES for :meth:`load`."""
        some: list[tuple[_Held, bytes]] = []
        size, new, self._saved = 0, self._held[self._saved :], len(self._held)
        for held in new:
            some.append((held, self._slice(held, 0, BUCKETS)))
            size += int(held.edges[-1])
            if size > MOST_CONTENT_BYTES:
                yield _encoded(some)
                some, size = [], 0
        if some:
            yield _encoded(some)

    def load(self, content: bytes) -> None:
        """Add what another buffer had. It counts as saved."""
        for place, edges, held in _decoded(content):
            self._add(place, edges, held)
        self._saved = len(self._held)

    def joins(self, first: bytes, end: bytes | None) -> Joins:
        """The distinct joins from ``first`` up to ``end``, sorted."""
        buckets, together = self._buckets(first, end), self._together()
        groups = range(buckets.start // together, -(-buckets.stop // together))
        return _joined(_between(self._group(group, together), first, end) for group in groups)

    def sealed(self, first: bytes, end: bytes | None) -> dict[bytes, bytes]:
        """The first sealed value of each set from ``first`` up to ``end``. One page after the other is in memory."""
        buckets = self._buckets(first, end)
        found: dict[bytes, bytes] = {}
        pages = ((held.place, held) for held in self._held if held.place is not None)
        for _, page in sorted(pages, key=itemgetter(0)):
            for key, value in _records(self._slice(page, buckets.start, buckets.stop)):
                if first <= key and (end is None or key < end):
                    found.setdefault(key, value)
        return found

    def _buckets(self, first: bytes, end: bytes | None) -> range:
        """The buckets of a range of keys."""
        lowest, highest = self._layout.keys_of(self._slot)
        if (end is not None and end <= lowest) or first > highest:
            return range(0)
        last = highest if end is None else min(end, highest)
        return range(self._bucket(max(first, lowest)), self._bucket(last) + 1)

    def _bucket(self, key: bytes) -> int:
        return int.from_bytes(key[:2], "big") * self._layout.slots >> 8 & BUCKETS - 1

    def _together(self) -> int:
        """How many buckets are taken together: a power of two."""
        most = JOINS_A_BUCKET * BUCKETS // max(1, self.count)
        return 1 << min(most, BUCKETS).bit_length() - 1 if most else 1

    def _group(self, group: int, together: int) -> Joins:
        """The distinct joins of some buckets, sorted. The last ones are kept: the next range may begin in them."""
        if self._last[0] != group:
            low, high = group * together, (group + 1) * together
            parts = (self._slice(held, low, high) for held in self._held if held.place is None)
            entries = np.frombuffer(bytearray().join(parts), f"S{JOIN.itemsize}")
            entries.sort()  # in place: a set may have millions of joins
            new = np.ones(len(entries), bool)
            new[1:] = entries[1:] != entries[:-1]
            self._last = group, entries[new].view(JOIN)
        return self._last[1]

    def _slice(self, held: _Held, low: int, high: int) -> bytes:
        """What is held of the buckets from ``low`` up to ``high``, which is not included."""
        first, end = int(held.edges[low]), int(held.edges[high])
        if isinstance(held.content, bytes):
            return held.content[first:end]
        return b"".join(_read(self._descriptor, held.content + first, end - first))


def _read(file: int, at: int, size: int) -> Iterator[bytes]:
    while size:
        yield (found := os.pread(file, size, at))
        at, size = at + len(found), size - len(found)


def _between(joins: Joins, first: bytes, end: bytes | None) -> Joins:
    """The joins of a range, of sorted ones."""
    low = np.searchsorted(joins["key"], np.bytes_(first))
    return joins[low : None if end is None else np.searchsorted(joins["key"], np.bytes_(end))]
