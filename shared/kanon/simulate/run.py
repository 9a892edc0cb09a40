"""Simulates a whole log: reads it once, divides its sets into parts, and adds up the outcomes of the parts.

A log of up to :data:`ROWS_IN_MEMORY` joins is one part. A longer one is written to :data:`PARTS` temporary files, by a
hash of the set, and worker processes compute the parts. So memory does not grow with the log.
"""

import multiprocessing
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import lru_cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from kanon.gate.types import Type
from kanon.joinlog import LogError
from kanon.joinlog.batches import Batch
from kanon.simulate.keys import Keys
from kanon.simulate.outcome import Outcome, added
from kanon.simulate.part import Part, outcomes
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
    outcomes: tuple[Outcome, ...]


def simulate(batches: Iterable[Batch], types: Sequence[Type], keys: Keys, period: int) -> Simulation:
    """Run :func:`gather`, then :func:`decide`."""
    with gather(batches, period) as log:
        return decide(log, types, keys)


@contextmanager
def gather(batches: Iterable[Batch], period: int) -> Iterator["Log"]:
    """Read a log, in any order, into memory or into temporary files.

    Raises:
        LogError: the log holds no join, spans too many steps or cannot be read.
    """
    with ExitStack() as open_:
        log = Log(period, open_)
        for batch in batches:
            log.add(np.floor_divide(batch.times, period).astype(np.int64), batch.sets, batch.clients)
        log.finish()
        yield log


def decide(
    log: "Log", types: Sequence[Type], keys: Keys, advance: Callable[[int], None] = lambda _: None
) -> Simulation:
    """The outcome of each type on a log. The types have the log's period.

    Types of one name share set keys and tokens, which saves time. ``advance`` is called with 1 after each part.
    """
    work = partial(_outcomes, types=tuple(types), keys=keys, steps=log.steps)
    found: list[list[Outcome]] = []
    for part in _each(work, log.parts):
        found.append(part)
        advance(1)
    return Simulation(log.steps, log.period, tuple(types), tuple(map(added, zip(*found, strict=True))))


def _outcomes(part: "pa.Table | Path", types: Sequence[Type], keys: Keys, steps: range) -> list[Outcome]:
    if isinstance(part, Path):
        with pa.memory_map(str(part)) as file:
            part = pa.ipc.open_stream(file).read_all()
    return outcomes(Part.of(part["step"].to_numpy(), part["set"], part["client"]), types, keys, steps)


def _each(
    work: Callable[["pa.Table | Path"], list[Outcome]], parts: Sequence["pa.Table | Path"]
) -> Iterator[list[Outcome]]:
    """The outcomes of the parts: a single part is computed in this process, several in worker processes."""
    if len(parts) == 1:
        yield from map(work, parts)
        return
    workers = min(len(os.sched_getaffinity(0)), _MOST_WORKERS)
    # Arrow has threads in this process, so it must not be forked.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context) as pool:
        try:
            yield from pool.map(work, parts)
        finally:
            pool.shutdown(cancel_futures=True)


@dataclass
class Log:
    """A log: in memory, or in files by a hash of the set.

    Attributes:
        period: seconds per step.
        joins: their number.
        parts: tables or files with all joins; each set is in one part.
    """

    period: int
    open_: ExitStack
    joins: int = 0
    parts: list["pa.Table | Path"] = field(default_factory=list)
    _first: int = 0
    _last: int = 0
    _waiting: list[pa.RecordBatch] = field(default_factory=list)
    _rows: int = 0
    _files: list[pa.RecordBatchStreamWriter] = field(default_factory=list)

    @property
    def steps(self) -> range:
        """The steps from the first join to the last one."""
        return range(self._first, self._last + 1)

    def add(self, steps: Ints, sets: pa.StringArray, clients: pa.StringArray) -> None:
        """Add joins."""
        if not steps.size:
            return
        low, high = int(steps.min()), int(steps.max())
        self._first = low if not self.joins else min(self._first, low)
        self._last = max(self._last, high)
        self.joins += len(steps)
        self._waiting.append(pa.record_batch([pa.array(steps), sets, clients], SCHEMA))
        self._rows += len(steps)
        if self._rows >= ROWS_IN_MEMORY:
            self._spill()

    def finish(self) -> None:
        """Close the log after its last join."""
        if not self.joins:
            raise LogError("the log holds no join: check the file")
        if len(self.steps) > MOST_STEPS:
            raise LogError(
                f"the log spans {len(self.steps):,} steps, more than {MOST_STEPS:,}: give a longer --period or a part"
                f" of the log"
            )
        if not self._files:
            self.parts = [pa.Table.from_batches(self._waiting, SCHEMA)]
            return
        self._spill()
        for file in self._files:
            file.close()

    def _spill(self) -> None:
        if not self._files:
            folder = Path(self.open_.enter_context(TemporaryDirectory(prefix="kanon-simulate-")))
            self.parts = [folder / f"{number}" for number in range(PARTS)]
            self._files = [self.open_.enter_context(pa.ipc.new_stream(str(path), SCHEMA)) for path in self.parts]
        if not self._waiting:
            return
        rows = pa.Table.from_batches(self._waiting, SCHEMA).combine_chunks()
        numbers = hashes(rows["set"].chunk(0)) >> np.uint64(64 - (PARTS - 1).bit_length())
        order = np.argsort(numbers.astype(np.uint8), kind="stable")
        ends = np.cumsum(np.bincount(numbers.astype(np.int64), minlength=PARTS)).tolist()
        sorted_ = pc.take(rows, pa.array(order))
        for file, start, end in zip(self._files, [0, *ends], ends, strict=False):
            file.write_table(sorted_.slice(start, end - start))
        self._waiting, self._rows = [], 0


SCHEMA = pa.schema({"step": pa.int64(), "set": pa.string(), "client": pa.string()})


def hashes(texts: pa.StringArray) -> NDArray[np.uint64]:
    """A 64-bit hash of each text. None may be empty.

    The sum of the bytes times fixed random words, mixed. Two given texts collide with a probability below 2^-56 over
    the words. It is not keyed: it only divides work and counts clients, and never leaves the process.
    """
    _, offsets_buffer, data_buffer = texts.buffers()
    offsets = np.frombuffer(offsets_buffer, np.int32)[texts.offset : texts.offset + len(texts) + 1].astype(np.int64)
    data = np.frombuffer(data_buffer, np.uint8)[offsets[0] : offsets[-1]]
    lengths, starts = np.diff(offsets), offsets[:-1] - offsets[0]
    places = np.arange(len(data)) - np.repeat(starts, lengths)
    words = _words(1 << int(lengths.max()).bit_length())
    sums = np.add.reduceat(words[places] * (data.astype(np.uint64) + np.uint64(1)), starts)
    sums ^= sums >> np.uint64(32)
    return sums * np.uint64(0x9E3779B97F4A7C15)


@lru_cache(maxsize=2)
def _words(number: int) -> NDArray[np.uint64]:
    return np.random.default_rng(18).integers(0, 1 << 64, number, np.uint64)
