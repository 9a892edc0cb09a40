"""Use case: evaluate the closed steps of a slot whose states are sorted parts, and publish each one at its tick.

A step reads its joins range by range, in the order of set keys, merges them into the parts, and writes the parts that
changed as new files. Then one transaction publishes crossings, horizon, manifest and mark together. Before it, nothing
has happened: a process that stops evaluates the step again with the same joins, states and noise.

Steps at which nothing happens are not evaluated: no client joined, and no set crosses or may be forgotten. The mark
moves over them.
"""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from kanon.errors import ConfigurationError
from kanon.gate.evaluation import NoiseKeys
from kanon.gate.mechanism.tape import SET_KEY_BYTES, LogGeneration, Tapes
from kanon.gate.merging import Crossed, Deciding, Merged, merged
from kanon.gate.parts import Part
from kanon.gate.schedule import Schedule
from kanon.gate.storage.protocols import Control, JoinLog, Manifest, Parts, Piece, Status
from kanon.gate.types import Type

MOST_PART_BYTES = 16 << 20
"""A part that would be larger is split in the middle of its range. In memory it takes about ten times as much."""
MOST_JOINS_A_RANGE = 1 << 20
"""The joins of a range that are read at once; each takes 37 bytes, and more while they are merged."""
BYTES_A_SET, BYTES_A_MEMBER = 53, 6
MANIFESTS_KEPT = 3
DAY = 86_400


class Progress(NamedTuple):
    """The result of a run: steps completed, sets decided, and the largest delay of a step after its tick (s)."""

    steps: int = 0
    sets: int = 0
    late: int = 0


@dataclass
class Segments:
    """The use case with its storage, types and keys.

    Attributes:
        types: the types by name.
        numbers: the number of each type by name.
        retired: the names of the types that are retired.
        run: the number of this run.
        generation: the log generation in force; None for the first one.
        begin_at: the first step of a deployment that has no mark.
    """

    types: Mapping[str, Type]
    numbers: Mapping[str, int]
    retired: frozenset[str]
    noise_keys: NoiseKeys
    deployment: str
    schedule: Schedule
    log: JoinLog
    parts: Parts
    control: Control
    run: int
    begin_at: int
    generation: LogGeneration | None = None
    _tapes: dict[tuple[str, str], Tapes] = field(default_factory=dict)

    def evaluate(self, now: float) -> Progress:
        """Evaluate and publish the closed steps that are not evaluated yet.

        Raises:
            ConfigurationError: a noise key or a type is missing.
            LeaseLostError: another process has continued this deployment.
            UndecodableMembersError: a part is missing or damaged.
        """
        began = time.monotonic()
        done, last = Progress(), self.schedule.last_closed(now)
        self.log.close_through(last)
        before, mark, manifest = self.control.evaluated_through(), self._mark(), self.control.manifest() or Manifest(-1)
        while mark < last:
            step = min(self._next_with_work(mark, manifest), last)
            pieces, crossed, sets = self._step(step, mark, manifest)
            # A step may take longer than the margin, and then the tick that was next at ``now`` has passed.
            visible_from = self.schedule.visible_from(now + time.monotonic() - began)
            self.control.commit(self.run, before, step, pieces, crossed, visible_from)
            late = visible_from - self.schedule.tick_of(mark + 1)
            done = Progress(done.steps + step - mark, done.sets + sets, max(done.late, late))
            before, mark, manifest = step, step, Manifest(step, tuple(pieces))
        return done

    def lag(self, now: float) -> int:
        """The number of closed steps that are not evaluated yet."""
        return max(0, self.schedule.last_closed(now) - self._mark())

    def keep(self, now: float) -> None:
        """Delete what no recovery needs any more: old joins, crossings, manifests and their parts.

        The last manifests are kept, and one a day for the outage allowance; joins as long as the oldest of these.
        """
        oldest = self.schedule.oldest_in_log(now)
        kept = self.control.manifests()
        recent = kept[-MANIFESTS_KEPT:]
        days: dict[int, Manifest] = {}
        for manifest in kept:
            if manifest.step >= oldest:
                days.setdefault(manifest.step * self.schedule.period // DAY, manifest)
        wanted = {manifest.step for manifest in [*recent, *days.values()]}
        self.control.forget_manifests([manifest.step for manifest in kept if manifest.step not in wanted])
        named = {piece.name for manifest in kept if manifest.step in wanted for piece in manifest.pieces}
        self.parts.sweep(named, self.run)
        if wanted:
            self.log.forget_before(min(wanted) + 1)
        self.control.expire(now)

    def _mark(self) -> int:
        mark = self.control.evaluated_through()
        return self.begin_at - 1 if mark is None else mark

    def _begins_generation(self, step: int, mark: int) -> bool:
        """Whether the log generation begins after the mark, up to ``step``: every set gets new noise."""
        return self.generation is not None and mark < self.generation.from_step <= step

    def _next_with_work(self, mark: int, manifest: Manifest) -> int:
        """The first step after the mark at which something may happen."""
        with_joins = next((step for step in self.log.steps() if step > mark), None)
        begins = None if self.generation is None else self.generation.from_step
        steps = (with_joins, manifest.earliest, begins if begins is not None and begins > mark else None)
        return max(mark + 1, min((step for step in steps if step is not None), default=_NO_STEP))

    def _step(self, step: int, mark: int, manifest: Manifest) -> tuple[list[Piece], Iterator[Status], int]:
        """The pieces after ``step``, the crossings at it, and the number of sets decided."""
        count = self.log.count(step)
        all_due = self._begins_generation(step, mark)
        if not count and not all_due and (manifest.earliest is None or manifest.earliest > step):
            return list(manifest.pieces), iter(()), 0
        deciding = self._deciding(step)
        pieces: list[Piece] = []
        crossed: list[Crossed] = []
        sets = 0
        old = manifest.pieces or (_EVERYTHING,)
        splits = -(-count // (MOST_JOINS_A_RANGE * len(old))) or 1  # keys are uniform, so each range has its share
        for piece, end in _with_ends(old):
            due = all_due or (piece.earliest is not None and piece.earliest <= step)
            for new, found in self._ranges(step, piece, end, splits, deciding, due=due, all_due=all_due):
                pieces.append(new)
                crossed += found.crossed
                sets += found.decided
        self.parts.sync()
        return pieces, self._statuses(crossed), sets

    def _ranges(
        self, step: int, piece: Piece, end: bytes | None, splits: int, deciding: Deciding, *, due: bool, all_due: bool
    ) -> "Iterator[tuple[Piece, Merged]]":
        """The new pieces of a piece, each with what was decided in it. ``splits`` bounds the joins read at once."""
        whole: Part | None = None
        for first, until in _split(bytes.fromhex(piece.first), end, splits):
            joins = self.log.joins(step, first, until)
            if not len(joins) and not due and splits == 1:
                yield piece, Merged(Part.empty(), [], 0)
                return
            if whole is None:
                whole = self.parts.read(piece) if piece.name else Part.empty()
            result = merged(_between(whole, first, until), joins, deciding, all_due=all_due)
            found = result._replace(part=Part.empty())
            for lowest, highest in _split(first, until, _pieces_for(result.part)):
                part = _between(result.part, lowest, highest)
                yield self.parts.put(part, step, self.run, lowest.hex()), found
                found = Merged(Part.empty(), [], 0)

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

    def _statuses(self, crossed: Iterable[Crossed]) -> Iterator[Status]:
        for each in crossed:
            for key, crossings, needed in each.each():
                yield key, crossings, self.schedule.expiry(needed)


_NO_STEP = 2**62
_EVERYTHING = Piece(bytes(SET_KEY_BYTES).hex(), "", "", None)
_PAST_ALL = 1 << 8 * SET_KEY_BYTES


def _with_ends(pieces: Sequence[Piece]) -> Iterator[tuple[Piece, bytes | None]]:
    """Each piece with the first key after its range; None for the last one."""
    for piece, following in zip(pieces, [*pieces[1:], None], strict=True):
        yield piece, None if following is None else bytes.fromhex(following.first)


def _split(first: bytes, end: bytes | None, number: int) -> Iterator[tuple[bytes, bytes | None]]:
    """A range of keys in ``number`` ranges of equal width."""
    low, high = int.from_bytes(first, "big"), _PAST_ALL if end is None else int.from_bytes(end, "big")
    edges = [low + (high - low) * n // number for n in range(number)]
    keys = [edge.to_bytes(SET_KEY_BYTES, "big") for edge in edges]
    yield from zip(keys, [*keys[1:], end], strict=True)


def _between(part: Part, first: bytes, end: bytes | None) -> Part:
    """The sets of a range."""
    chosen = part.keys >= np.bytes_(first)
    return part.rows(chosen if end is None else chosen & (part.keys < np.bytes_(end)))


def _pieces_for(part: Part) -> int:
    """Into how many files a part goes: a power of two."""
    size = len(part) * BYTES_A_SET + len(part.tokens) * BYTES_A_MEMBER
    return 1 << max(0, -(-size // MOST_PART_BYTES) - 1).bit_length()
