"""A step of a slot whose states are sorted parts: its joins are merged into them, range by range, in the order of keys.

It publishes nothing. On one machine :mod:`kanon.gate.segments` does that, on AWS :mod:`kanon.gate.evaluation`.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import TYPE_CHECKING, NamedTuple, Self

import numpy as np

from kanon.errors import ConfigurationError
from kanon.gate.listed_sets import ListedSet
from kanon.gate.mechanism.parameters import Parameters
from kanon.gate.mechanism.tape import SET_KEY_BYTES, LogGeneration, Tapes
from kanon.gate.merging import Deciding, crossed_at, merged
from kanon.gate.parts import BYTES_A_MEMBER, BYTES_A_SET, Part
from kanon.gate.schedule import Schedule
from kanon.gate.showing import NO_ENTRIES, Entries, entries_of, listed_of
from kanon.gate.storage.protocols import JoinLog, Parts, Piece, Sealed, Status
from kanon.gate.types import Type
from kanon.noise.words import NoiseKey

if TYPE_CHECKING:
    from kanon.gate.settings import NoiseKeyEntry

MOST_PART_BYTES = 16 << 20
"""A part that would be larger is split in the middle of its range. In memory it takes about ten times as much."""
MOST_JOINS_A_RANGE = 1 << 18
"""The joins of a range that are read at once; each takes 37 bytes, and more while they are merged."""
LISTED_WEIGHT = 8
"""If a type is listed, a join counts there as so many: it may bring a sealed value of up to 592 bytes."""
_PAST_ALL = 1 << 8 * SET_KEY_BYTES


@dataclass(frozen=True)
class NoiseKeys:
    """The noise keys, oldest first, each with the step from which new searches use it; None: it cannot be read."""

    entries: tuple[tuple[int, NoiseKey | None], ...]

    @classmethod
    def of(cls, entries: Iterable["NoiseKeyEntry"], keys: Mapping[str, NoiseKey]) -> Self:
        """The keys of the entries, as far as ``keys`` has them."""
        return cls(tuple(sorted(((entry.from_step, keys.get(entry.id)) for entry in entries), key=itemgetter(0))))

    def for_search(self, first: int) -> NoiseKey:
        """The key of a search that begins at step ``first``: the latest entry not after it.

        Raises:
            ConfigurationError: no entry is that old, because an old key was removed too early; or the key of the entry
                cannot be read.
        """
        for start, key in reversed(self.entries):
            if start <= first:
                if key is None:
                    raise ConfigurationError(
                        f"the noise key that begins at step {start} is not in its secret as it was recorded: restore it"
                    )
                return key
        raise ConfigurationError(
            f"no noise key covers what began before step {self.entries[0][0]}: put the removed key back; `kanon operate"
            f" destroy-noise-key` says how long a key is needed"
        )


class Keys(NamedTuple):
    """A range of set keys: from ``first`` up to ``end``, which is not included; None is after all keys."""

    first: bytes = bytes(SET_KEY_BYTES)
    end: bytes | None = None

    def split(self, number: int) -> Iterator["Keys"]:
        """The range in ``number`` ranges of equal width."""
        low, high = int.from_bytes(self.first, "big"), _number(self.end)
        edges = [(low + (high - low) * n // number).to_bytes(SET_KEY_BYTES, "big") for n in range(number)]
        yield from map(Keys, edges, [*edges[1:], self.end])

    def within(self, other: "Keys") -> "Keys | None":
        """What both ranges have in common; None if it is nothing."""
        first, end = max(self.first, other.first), min(self.end, other.end, key=_number)
        return Keys(first, end) if int.from_bytes(first, "big") < _number(end) else None

    def of(self, part: Part) -> Part:
        """The sets of the range."""
        chosen = part.keys >= np.bytes_(self.first)
        return part.rows(chosen if self.end is None else chosen & (part.keys < np.bytes_(self.end)))


def _number(end: bytes | None) -> int:
    return _PAST_ALL if end is None else int.from_bytes(end, "big")


class Shown(NamedTuple):
    """Sets that crossed, for the objects of a slot: of true sets, and of the listed ones among them."""

    entries: Entries = NO_ENTRIES
    listed: Sequence[ListedSet] = ()


class Decided(NamedTuple):
    """A range of a slot after a step.

    Attributes:
        pieces: its parts.
        end: the first key after the range; None: there is none.
        new: whether they were written; otherwise nothing happened.
        crossed: the sets that crossed.
        sets: the number of sets decided.
        skipped: the number of joins of retired types.
        shown: the sets that crossed, for the objects of the slot.
        sealed: the sealed values of the sets that crossed and have one.
    """

    pieces: tuple[Piece, ...]
    end: bytes | None
    new: bool = False
    crossed: Sequence[Status] = ()
    sets: int = 0
    skipped: int = 0
    shown: Shown = Shown()
    sealed: Sequence[Sealed] = ()


@dataclass
class Decisions:
    """What decisions need, and the steps that follow from it.

    Attributes:
        types: the types by name.
        numbers: the number of each type by name.
        retired: the names of the types that are retired.
        generation: the log generation in force; None for the first one.
    """

    types: Mapping[str, Type]
    numbers: Mapping[str, int]
    retired: frozenset[str]
    noise_keys: NoiseKeys
    deployment: str
    schedule: Schedule
    generation: LogGeneration | None = field(default=None, kw_only=True)
    _tapes: dict[tuple[str, str], Tapes] = field(default_factory=dict, kw_only=True)

    def begins_generation(self, step: int, mark: int) -> bool:
        """Whether the log generation begins after the mark, up to ``step``: every set gets new noise."""
        return self.generation is not None and mark < self.generation.from_step <= step

    def decided(
        self, step: int, run: int, log: JoinLog, parts: Parts, pieces: Sequence[Piece], *,
        mark: int, keys: "Keys | None" = None, begin: bytes | None = None, write_all: bool = False,
    ) -> Iterator[Decided]:  # fmt: skip
        """Merge the joins of ``step`` into the parts of a slot, range by range.

        Args:
            step: the step after which the new parts are.
            run: the number of the run that puts them.
            log: the joins.
            parts: the storage of parts.
            pieces: the parts before, in the order of their keys. The first and the last one may reach beyond the slot.
            mark: the last step evaluated.
            keys: the keys of the slot; None for all.
            begin: the first key that is not decided yet; None for that of the slot.
            write_all: whether parts in which nothing happens are written too.
        """
        deciding, all_due, count = self._deciding(step), self.begins_generation(step, mark), log.count(step)
        old = list(in_range(pieces, Keys() if keys is None else keys))
        weight = count * LISTED_WEIGHT if self.lists else count
        splits = -(-weight // (MOST_JOINS_A_RANGE * len(old))) or 1  # keys are uniform, so each range has its share
        for piece, own in old:
            due = write_all or all_due or (piece.earliest is not None and piece.earliest <= step)
            whole: Part | None = None
            for some in own.split(splits):
                if begin is not None and _number(some.end) <= _number(begin):
                    continue
                joins = log.joins(step, some.first, some.end)
                if not len(joins) and not due and splits == 1:
                    yield Decided((piece,) if piece.name else (), some.end)
                    continue
                if whole is None:
                    whole = parts.read(piece) if piece.name else Part.empty()
                values = log.sealed(step, some.first, some.end) if self.lists else None
                part, sets, skipped = merged(some.of(whole), joins, deciding, values, all_due=all_due)
                put = tuple(
                    parts.put(each.of(part), step, run, each.first.hex()) for each in some.split(_pieces_for(part))
                )
                crossed, shown = self.crossed(part, step), self.shown(part, step, since=step)
                found = _sealed_of(part, crossed)
                yield Decided(
                    put, some.end, new=True, crossed=crossed, sets=sets, skipped=skipped, shown=shown, sealed=found
                )

    def crossed(self, part: Part, step: int) -> list[Status]:
        """The sets of a part that crossed at its ``step``, in the order of their keys."""
        crossed = crossed_at(part, step, self._parameters)
        return [(key, at, self.schedule.expiry(needed)) for key, at, needed in crossed]

    def shown(self, part: Part, step: int, since: int = 0) -> Shown:
        """The sets of a part that crossed at step ``since`` or later and are true at ``step``."""
        return Shown(entries_of(part, self._parameters, since, step), listed_of(part, self._listed, since, step))

    @property
    def lists(self) -> bool:
        """Whether a type is listed."""
        return any(type_.listed for type_ in self.types.values())

    @property
    def _listed(self) -> dict[int, Parameters]:
        """The parameters of each listed type by its number."""
        return {self.numbers[name]: type_.parameters for name, type_ in self.types.items() if type_.listed}

    @property
    def _parameters(self) -> dict[int, Parameters]:
        """The parameters of each type by its number."""
        return {self.numbers[name]: type_.parameters for name, type_ in self.types.items()}

    def _deciding(self, step: int) -> Deciding:
        names = {self.numbers[name]: name for name in self.types}
        unknown = set(self.numbers) - set(self.types) - self.retired
        if unknown:
            raise ConfigurationError(
                f"type {min(unknown)!r} is no longer configured: put it back, or retire it permanently"
            )
        begun = None if self.generation is None else self.generation.from_step
        parameters = {number: self.types[name].parameters for number, name in names.items()}
        return Deciding(step, parameters, lambda number, first: self._tapes_of(names[number], first), begun)

    def _tapes_of(self, type_name: str, first: int) -> Tapes:
        """The tapes of a type's searches that begin at step ``first``."""
        key = self.noise_keys.for_search(first)
        place = (key.id, type_name)
        if place not in self._tapes:
            parameters = self.types[type_name].parameters
            self._tapes[place] = Tapes(key, self.deployment, type_name, parameters, generation=self.generation)
        return self._tapes[place]


def in_range(pieces: Sequence[Piece], keys: Keys) -> Iterator[tuple[Piece, Keys]]:
    """The pieces of a range of keys, each with its keys there. One without a name stands for no sets."""
    if not pieces or bytes.fromhex(pieces[0].first) > keys.first:
        pieces = [Piece(keys.first.hex(), "", "", None), *pieces]
    firsts = [bytes.fromhex(piece.first) for piece in pieces]
    for piece, own in zip(pieces, map(Keys, firsts, [*firsts[1:], None]), strict=True):
        if (common := own.within(keys)) is not None:
            yield piece, common


def _sealed_of(part: Part, crossed: Sequence[Status]) -> list[Sealed]:
    """The sealed values of sets of a part, as far as it has them."""
    if part.sealed is None or not crossed:
        return []
    keys = np.array([key for key, *_ in crossed], part.keys.dtype)
    places = np.searchsorted(part.keys, keys).tolist()
    found = zip(crossed, part.types[places].tolist(), part.sealed[places], strict=True)
    return [(key, number, value) for (key, *_), number, value in found if value]


def _pieces_for(part: Part) -> int:
    """Into how many files a part goes: a power of two."""
    size = len(part) * BYTES_A_SET + len(part.tokens) * BYTES_A_MEMBER + part.sealed_bytes
    return 1 << max(0, -(-size // MOST_PART_BYTES) - 1).bit_length()
