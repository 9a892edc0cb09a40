"""Use case on AWS: publish the values that the crowd shares, at each tick.

The list of a step is made of the listed sets of every slot at this step, and is published whole or not at all. The
step is the one that all slots show: while one is late, the list before stays. See :mod:`kanon.gate.storage.aws.lists`
for what is stored, and why a lister that is late, or repeats the work of another one, changes nothing.

It streams slot by slot: only the hashes of a list are in memory, its values are in files. A sealed value is opened
once; the opened values of each slot are kept where only the lister reads them.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from operator import itemgetter
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile
from typing import TYPE_CHECKING, NamedTuple
from uuid import uuid4

from kanon.errors import ConfigurationError, Error
from kanon.gate.listed_sets import ListedSet
from kanon.gate.lists import ListEntry, ReadableList, true_since
from kanon.gate.mechanism.searches import Searches
from kanon.gate.publishing import Horizon, clock_step
from kanon.gate.ranges import bits_for, most_hashes, name_of
from kanon.gate.sealing import UnopenedValueError, opened
from kanon.gate.slots import Layout, Layouts
from kanon.gate.storage.aws.control import Control, Place
from kanon.gate.storage.aws.lists import ListGoneError, ListObjects, ListTable, pair
from kanon.gate.storage.aws.statuses import Statuses
from kanon.gate.storage.aws.true_objects import step_of
from kanon.gate.true_sets import PREFIX
from kanon.gate.types import Type

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

FILES = 16
"""The files of a list, by the first bits of a hash: each is sorted in memory."""
MOST_WAITING = 10_000
"""The values, of 512 bytes at most, that are in memory before they are written to files."""
ATTEMPTS = 3


class NotReadyError(Error):
    """The listed sets of a slot at the step are not all known: the list cannot be published."""


class VisibleSlots(NamedTuple):
    """What readers see: the step of all slots, the layout at it, and the horizons of its slots."""

    step: int
    layout: Layout
    horizons: Mapping[int, Horizon]


@dataclass
class ListOutcome:
    """What a run has done.

    Attributes:
        behind: the steps by which the oldest list is behind the clock.
        unopened: whether a value did not open.
        waiting: whether lists are missing because a slot is not ready.
    """

    behind: int = 0
    unopened: bool = False
    waiting: bool = False


@dataclass
class Listing:
    """The use case with its key and storage.

    Attributes:
        types: the listed types by name.
        review: a value is listed so many steps after it turned true, so that somebody can suppress it before.
        listed_sets: the listed sets beside an object of true sets, sorted; None if it does not have all of them.
    """

    types: Mapping[str, Type]
    layouts: Layouts
    period: int
    publish_delay: int
    review: int
    control: Control
    statuses: Statuses
    listed_sets: Callable[[str], Iterator[ListedSet] | None]
    table: ListTable
    objects: ListObjects
    key: "X25519PrivateKey"

    def run(self, now: float) -> ListOutcome:
        """Publish the lists that are visible at ``now`` and not published yet.

        Raises:
            UndecodableMembersError: an object of states is missing or damaged. The next run tries again.
        """
        outcome, visible = ListOutcome(), self._visible(now)
        if visible is None:
            return outcome
        for attempt in range(ATTEMPTS):
            pointers = {name: self.table.pointer(name) for name in self.types}
            for name, lists in pointers.items():
                if lists:
                    self._keep_history(name, lists[0])
            due = {name: lists for name, lists in pointers.items() if not lists or lists[0].step < visible.step}
            if not due:
                break
            try:
                self._publish(visible, due, outcome, again=attempt > 0)
            except NotReadyError:
                outcome.waiting = True
                break
        clock = clock_step(now, self.period, self.publish_delay)
        newest = [self.table.pointer(name)[:1] for name in self.types]
        outcome.behind = max((clock - (found[0].step if found else visible.step - 1) for found in newest), default=0)
        return outcome

    def _visible(self, now: float) -> VisibleSlots | None:
        """What all slots show at ``now``, as ``query`` sees it; None before the first step."""
        at = clock_step(now, self.period, self.publish_delay)
        layouts = [layout for layout in self.layouts.entries if layout.from_step <= at]
        slots = range(max((layout.slots for layout in layouts), default=0))
        _, horizons = self.statuses.read((), slots, consistent=True)
        for layout in reversed(layouts):
            steps = [horizons[slot].at(now) if slot in horizons else None for slot in range(layout.slots)]
            seen = [step for step in steps if step is not None and step >= layout.from_step]
            if len(seen) == layout.slots:
                return VisibleSlots(min(at, *seen), layout, horizons)
            at = layout.from_step - 1
        return None

    def _publish(
        self, visible: VisibleSlots, due: Mapping[str, tuple[ReadableList, ...]], outcome: ListOutcome, *, again: bool
    ) -> None:
        """Publish the lists of some types. What another lister has published, or an operator changed, is refused."""
        if again:  # a suppression may be newer
            self.statuses.read((), (), consistent=True)
        stamp = self.table.stamp()
        unlisted = self.objects.unlisted()  # read later: a value that is not there yet changes the stamp
        if stamp and not unlisted:
            raise ConfigurationError("the bucket of lists has lost which values are unlisted: unlist them again")
        hidden = unlisted | self.statuses.suppressed
        numbers = self.control.type_numbers(())
        named = {numbers[name]: name for name in self.types if name in numbers}
        with Spool(due) as spool:
            for slot in range(visible.layout.slots):
                place = Place(visible.layout.from_step, slot)
                for found in self._values(place, visible, named, hidden, outcome):
                    if found.type_name in due:
                        spool.add(found)
            self.objects.forget_opened(visible.layout.from_step)
            for name, before in due.items():
                new = self._put(name, visible.step, spool)
                if self.table.publish(name, before, new, stamp):
                    self._keep_history(name, new)
                    self.objects.keep(name, (new, *before[:1]))
                else:
                    self.objects.forget(name, new)

    def _put(self, type_name: str, step: int, spool: "Spool") -> ReadableList:
        """Store the values of a list under a name of its own."""
        digests = sorted(spool.digests[type_name])
        bits = bits_for(digests, most_hashes(type_name))
        found = ReadableList(step, bits, len(digests), uuid4().hex)
        rows = spool.rows(type_name)
        row = next(rows, None)
        for number in range(1 << bits):
            some = []
            while row is not None and int.from_bytes(row[0], "big") >> 256 - bits == number:
                some.append(row[1])
                row = next(rows, None)
            self.objects.put(type_name, found, name_of(number, bits), some)
        return found

    def _keep_history(self, type_name: str, found: ReadableList) -> None:
        """Write the history of the newest list, if a lister has stopped before it or an operator unlisted since.

        It is a copy of what readers see. What was unlisted meanwhile is gone there, so the copy is made again:

            this lister   reads the list ---------------------------------> writes what it read, with the old stamp
            operator               unlists, takes it out of the list
            this lister                                      stops: the next run sees the old stamp, and copies again

        A late lister does not write over what another one, or the operator, has written since. And no lister publishes
        the next list before the history of this one has the stamp, so what is wrong is always that of the newest list.
        """
        while True:
            stamp = self.table.stamp()
            before = self.objects.written_history(type_name, found.step)
            if before is not None and before.stamp == stamp:
                return
            try:
                rows = (row for _, row in self.objects.rows(type_name, found))
                self.objects.put_history(type_name, found.step, rows, stamp, before)
            except ListGoneError:
                return  # later lists were published since

    # The sets of a slot

    def _values(
        self,
        place: Place,
        visible: VisibleSlots,
        named: Mapping[int, str],
        hidden: frozenset[bytes],
        outcome: ListOutcome,
    ) -> Iterator["ListableValue"]:
        """The values of a slot to list, each with its type and the step since which it is true."""
        name = self._object(place, visible)
        sets = iter(()) if name is None else self.listed_sets(name)
        if sets is None:
            raise NotReadyError
        known, changed = Known(self.objects.opened(place)), False
        with TemporaryFile() as kept:
            for each in sets:
                type_name = named.get(each.number)
                since = None if type_name is None or each.key in hidden else self._since(type_name, each, visible.step)
                if type_name is None or since is None:
                    continue
                value = known.of(each.key)
                if value is None:
                    changed, value = True, self._opened(each)
                if value is None:
                    outcome.unopened = True
                    continue
                kept.write(pair(each.key, value))
                yield ListableValue(type_name, value.decode(), since)
            if changed or known.left_out():
                self.objects.put_opened(place, kept)

    def _since(self, type_name: str, each: ListedSet, step: int) -> int | None:
        """The step since which a set is true that is to be listed."""
        if each.last < step:
            return None
        since = true_since(Searches.of(self.types[type_name].parameters, each.key), each.crossings, step)
        return since if since is not None and since <= step - self.review else None

    def _opened(self, each: ListedSet) -> bytes | None:
        try:
            value = opened(each.sealed, self.key, each.key)
            value.decode()
        except (UnopenedValueError, UnicodeDecodeError):
            return None
        return value

    def _object(self, place: Place, visible: VisibleSlots) -> str | None:
        """The object of true sets of a slot at the visible step; None: the slot has no sets.

        The horizon has three steps, each with its object. That of a later step has the sets of this one too if it was
        made at this step or before: then no set has crossed since.

        Raises:
            NotReadyError: none of the objects is of this step.
        """
        horizon = visible.horizons[place.slot]
        shown = [
            (horizon.through, horizon.shows),
            (horizon.earlier, horizon.earlier_shows),
            (horizon.earliest, horizon.earliest_shows),
        ]
        later = [(step, name) for step, name in shown if step is not None and step >= visible.step]
        name = min(later, key=itemgetter(0))[1] if later else None
        if name is None:
            row = self.control.row(place)
            if row.manifest is not None or row.retired or not later:
                raise NotReadyError
        elif not name.startswith(PREFIX + place.folder) or step_of(name) > visible.step:
            raise NotReadyError
        return name


class ListableValue(NamedTuple):
    """A value to list."""

    type_name: str
    value: str
    since: int


class Known:
    """Opened values, which are asked for in the order of their keys."""

    def __init__(self, pairs: Iterable[tuple[bytes, bytes]]) -> None:
        self._pairs = iter(pairs)
        self._next = next(self._pairs, None)
        self._skipped = False

    def of(self, set_key: bytes) -> bytes | None:
        """The value of a set; None if it was not opened."""
        while self._next is not None and self._next[0] < set_key:
            self._skip()
        if self._next is None or self._next[0] != set_key:
            return None
        value = self._next[1]
        self._next = next(self._pairs, None)
        return value

    def left_out(self) -> bool:
        """Whether there are values that nobody has asked for."""
        return self._skipped or self._next is not None

    def _skip(self) -> None:
        self._skipped, self._next = True, next(self._pairs, None)


class Spool:
    """The values of lists, in files of one folder; use it as a context manager.

    However many types there are, one file is open at a time.

    Attributes:
        digests: the hashes of the values of each type.
    """

    def __init__(self, types: Iterable[str]) -> None:
        self.digests: dict[str, list[bytes]] = {name: [] for name in types}
        self._numbers = {name: number for number, name in enumerate(self.digests)}
        self._folder = TemporaryDirectory()
        self._waiting: dict[Path, list[str]] = {}
        self._count = 0

    def add(self, value: "ListableValue") -> None:
        """Add a value."""
        digest = sha256(value.value.encode()).digest()
        self.digests[value.type_name].append(digest)
        line = f"{json.dumps([value.value, value.since])}\n"
        self._waiting.setdefault(self._file(value.type_name, digest[0] * FILES >> 8), []).append(line)
        self._count += 1
        if self._count == MOST_WAITING:
            self._write()

    def rows(self, type_name: str) -> Iterator[tuple[bytes, ListEntry]]:
        """The values of a type with their hashes, sorted by hash."""
        self._write()
        for file in (self._file(type_name, number) for number in range(FILES)):
            if file.exists():
                with file.open("rb") as lines:
                    values = [ListEntry(*json.loads(line)) for line in lines]
                yield from sorted((sha256(each.value.encode()).digest(), each) for each in values)

    def _file(self, type_name: str, number: int) -> Path:
        return Path(self._folder.name) / f"{self._numbers[type_name]}-{number}"

    def _write(self) -> None:
        for path, lines in self._waiting.items():
            with path.open("ab") as file:
                file.write("".join(lines).encode())
        self._waiting, self._count = {}, 0

    def __enter__(self) -> "Spool":
        return self

    def __exit__(self, *_: object) -> None:
        self._folder.cleanup()
