"""Reads the joins of a log in batches whose texts are numbered.

With pyarrow a batch comes from ``kanon.joinlog.batches``, some fifteen times as fast; without it, from
``kanon.joinlog.rows``. The joins are the same.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import accumulate, chain, count, islice
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kanon.joinlog.rows import Columns, LogReading, joins_wanted, read_joins
from kanon.joinlog.values import MICRO

if TYPE_CHECKING:
    import pyarrow as pa

_ROWS = 1 << 16


class Texts(NamedTuple):
    """A column of texts: row i has ``texts[numbers[i]]``."""

    numbers: NDArray[np.int64]
    texts: list[bytes]

    def take(self, rows: NDArray[np.int64]) -> Texts:
        """Some rows, with the texts that they have."""
        kept, numbers = np.unique(self.numbers[rows], return_inverse=True)
        return Texts(numbers, list(map(self.texts.__getitem__, kept.tolist())))

    def distinct(self) -> Texts:
        """The same rows, with each text once."""
        new: dict[bytes, int] = defaultdict(count().__next__)
        numbers = np.fromiter(map(new.__getitem__, self.texts), np.int64, len(self.texts))
        return Texts(numbers[self.numbers], list(new))


def together(parts: Sequence[Texts]) -> Texts:
    """The rows of the parts, one part after the other. A text of several parts is there several times."""
    starts = accumulate((len(part.texts) for part in parts), initial=0)
    numbers = [part.numbers + start for part, start in zip(parts, starts, strict=False)]
    return Texts(np.concatenate(numbers), list(chain.from_iterable(part.texts for part in parts)))


class JoinBatch(NamedTuple):
    """Joins: ``times`` in Unix seconds, sets and clients. Each has n entries."""

    times: NDArray[np.float64]
    sets: Texts
    clients: Texts


def read_batches(
    path: Path | str,
    columns: Columns = Columns(),  # noqa: B008, a constant
    reading: LogReading | None = None,
) -> Iterator[JoinBatch]:
    """Yield the joins that :func:`kanon.joinlog.read_joins` yields, in batches. Parquet needs pyarrow.

    Raises:
        LogError: the file or a row of it cannot be read.
    """
    reading = reading or LogReading()
    try:
        import pyarrow  # noqa: F401, ICN001
    except ModuleNotFoundError:
        yield from _batches_of_rows(path, columns, reading)
        return
    from kanon.joinlog.batches import read_tables

    for table in read_tables(path, joins_wanted(columns, reading), reading):
        times, sets, clients = (column.combine_chunks() for column in table.columns)
        yield JoinBatch(times.to_numpy() / MICRO, _numbered(sets), _numbered(clients))


def _batches_of_rows(path: Path | str, columns: Columns, reading: LogReading) -> Iterator[JoinBatch]:
    joins = read_joins(path, columns, reading)
    while some := list(islice(joins, _ROWS)):
        times, sets, clients = zip(*some, strict=True)
        yield JoinBatch(np.array(times, np.float64), _each_once(sets), _each_once(clients))


def _each_once(column: Sequence[str]) -> Texts:
    return Texts(np.arange(len(column)), [text.encode() for text in column]).distinct()


def _numbered(column: pa.StringArray) -> Texts:
    encoded = column.dictionary_encode()
    return Texts(encoded.indices.to_numpy().astype(np.int64), encoded.dictionary.cast("binary").to_pylist())
