"""Simulates a whole log: reads it once, divides its sets into parts, and adds up the outcomes of the parts.

A log of up to :data:`ROWS_IN_MEMORY` joins is one part. A longer one is written to :data:`PARTS` temporary files, by a
hash of the set, and worker processes compute the parts. So memory does not grow with the log.
"""

import multiprocessing
import os
import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from io import BufferedWriter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple
from zlib import crc32

import numpy as np

from kanon.gate.types import Type
from kanon.joinlog import LogError
from kanon.joinlog.numbered import JoinBatch, Texts, together
from kanon.simulate.outcome import TypeOutcome, added
from kanon.simulate.part import LogPart, PartKeys, outcomes
from kanon.simulate.presence import Ints

ROWS_IN_MEMORY = 1 << 19
PARTS = 64
MOST_STEPS = 1 << 20
_MOST_WORKERS = 8


@dataclass(frozen=True)
class Simulation:
    """The result. ``steps``: the steps from the first join of the log to its last one."""

    steps: range
    period: int
    types: tuple[Type, ...]
    outcomes: tuple[TypeOutcome, ...]


def simulate(batches: Iterable[JoinBatch], types: Sequence[Type], keys: PartKeys, period: int) -> Simulation:
    """Run :func:`gather`, then :func:`decide`."""
    with gather(batches, period) as log:
        return decide(log, types, keys)


@dataclass(frozen=True)
class GatheredLog:
    """A log that was read.

    Attributes:
        period: seconds per step.
        steps: the steps from the first join to the last one.
        parts: rows or files with all joins; each set is in one part.
    """

    period: int
    steps: range
    parts: Sequence["JoinColumns | Path"]


@contextmanager
def gather(batches: Iterable[JoinBatch], period: int) -> Iterator[GatheredLog]:
    """Read a log, in any order, into memory or into temporary files.

    Raises:
        LogError: the log holds no join, spans too many steps or cannot be read.
    """
    with ExitStack() as open_:
        parts, ends = _Parts(open_), []
        for batch in batches:
            if len(batch.times):
                steps = np.floor_divide(batch.times, period).astype(np.int64)
                ends += [int(steps.min()), int(steps.max())]
                parts.add(JoinColumns(steps, batch.sets, batch.clients))
        if not ends:
            raise LogError("the log holds no join: check the file")
        span = range(min(ends), max(ends) + 1)
        check_span(span, period, "give a longer --period or a part of the log")
        yield GatheredLog(period, span, parts.finished())


def check_span(steps: range, period: int, remedy: str) -> None:
    """Check the steps from the first join of a log to its last one.

    Raises:
        LogError: they are more than :data:`MOST_STEPS`.
    """
    if len(steps) > MOST_STEPS:
        first, last = (datetime.fromtimestamp(step * period, UTC).date() for step in (steps[0], steps[-1]))
        raise LogError(
            f"the log spans {len(steps):,} steps, more than {MOST_STEPS:,}, from {first} to {last}: check these times,"
            f" or {remedy}"
        )


def decide(
    log: GatheredLog, types: Sequence[Type], keys: PartKeys, advance: Callable[[int], None] = lambda _: None
) -> Simulation:
    """The outcome of each type on a log. The types have the log's period.

    Types of one name share set keys and tokens, which saves time. ``advance`` is called with 1 after each part.
    """
    work = partial(_outcomes, types=tuple(types), keys=keys, steps=log.steps)
    found: list[list[TypeOutcome]] = []
    for part in _each(work, log.parts):
        found.append(part)
        advance(1)
    return Simulation(log.steps, log.period, tuple(types), tuple(map(added, zip(*found, strict=True))))


def _outcomes(part: "JoinColumns | Path", types: Sequence[Type], keys: PartKeys, steps: range) -> list[TypeOutcome]:
    rows = JoinColumns.stored(part) if isinstance(part, Path) else part
    return outcomes(LogPart.of(*rows), types, keys, steps)


def _each(
    work: Callable[["JoinColumns | Path"], list[TypeOutcome]], parts: Sequence["JoinColumns | Path"]
) -> Iterator[list[TypeOutcome]]:
    """The outcomes of the parts: a single part is computed in this process, several in worker processes."""
    if len(parts) == 1:
        yield from map(work, parts)
        return
    workers = min(len(os.sched_getaffinity(0)), _MOST_WORKERS)
    # Arrow may have threads in this process, so it must not be forked.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context) as pool:
        try:
            yield from pool.map(work, parts)
        finally:
            pool.shutdown(cancel_futures=True)


class JoinColumns(NamedTuple):
    """Joins: the step, the set and the client of each."""

    steps: Ints
    sets: Texts
    clients: Texts

    @classmethod
    def together(cls, parts: Sequence["JoinColumns"]) -> "JoinColumns":
        """The rows of the parts, one part after the other."""
        steps, sets, clients = zip(*parts, strict=True)
        return cls(np.concatenate(steps), together(sets), together(clients))

    def take(self, rows: Ints) -> "JoinColumns":
        """Some of the rows."""
        return JoinColumns(self.steps[rows], self.sets.take(rows), self.clients.take(rows))

    @classmethod
    def stored(cls, path: Path) -> "JoinColumns":
        """The rows of a file of :class:`_Parts`."""
        parts = []
        with path.open("rb") as file:
            while file.peek(1):
                parts.append(pickle.load(file))  # noqa: S301, a temporary file of this command
        return cls.together(parts)


class _Parts:
    """The parts of a log: rows in memory, or from :data:`ROWS_IN_MEMORY` on files by a hash of the set."""

    def __init__(self, open_: ExitStack) -> None:
        self._open = open_
        self._waiting: list[JoinColumns] = []
        self._rows = 0
        self._files: list[BufferedWriter] = []

    def add(self, rows: JoinColumns) -> None:
        """Add some rows."""
        self._waiting.append(rows)
        self._rows += len(rows.steps)
        if self._rows >= ROWS_IN_MEMORY:
            self._spill()

    def finished(self) -> list[JoinColumns | Path]:
        """The parts, after the last row."""
        if not self._files:
            return [JoinColumns.together(self._waiting)]
        if self._waiting:
            self._spill()
        for file in self._files:
            file.close()
        return [path for path in (Path(file.name) for file in self._files) if path.stat().st_size]

    def _spill(self) -> None:
        if not self._files:
            folder = Path(self._open.enter_context(TemporaryDirectory(prefix="kanon-simulate-")))
            self._files = [self._open.enter_context((folder / f"{n}").open("wb")) for n in range(PARTS)]
        rows = JoinColumns.together(self._waiting)
        # The division depends on nothing but the sets; it is not keyed, and never leaves the process.
        part_of_set = np.array([crc32(text) % PARTS for text in rows.sets.texts], np.uint8)
        parts = part_of_set[rows.sets.numbers]
        order = np.argsort(parts, kind="stable")
        ends = np.cumsum(np.bincount(parts, minlength=PARTS)).tolist()
        for file, start, end in zip(self._files, [0, *ends], ends, strict=False):
            if start < end:
                pickle.dump(rows.take(order[start:end]), file)
        self._waiting, self._rows = [], 0
