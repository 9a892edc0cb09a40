"""One pass over a log with any columns, in batches of bounded memory; ``kanon.joinlog`` reads and checks the rows.

All columns are text, so that ``01`` and ``1`` are different values. Every row has a user; a value may be missing.
``day``, ``hour`` and ``month`` are taken from the column ``time`` (UTC) unless the log has columns of these names.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from kanon.joinlog import LogError, LogReading
from kanon.joinlog.batches import gathered, names_of, read_tables
from kanon.joinlog.rows import STANDARD_INPUT
from kanon.joinlog.wanted import Column, Kind, Wanted
from kanon.risk.errors import RiskError

ROWS_IN_BATCH = 1 << 19
BYTES_IN_BATCH = 48 << 20

TIME = "time"
_DERIVED = {"hour": 13, "day": 10, "month": 7}
"""Columns derived from ``time``, and the length of their prefix of ``2012-02-05 17:48:52``."""


@dataclass(frozen=True)
class Coded:
    """A column of a batch: row i has the text ``texts[codes[i]]``; code -1 is a missing value."""

    codes: NDArray[np.int64]
    texts: pa.BinaryArray

    def texts_of(self, codes: NDArray[np.int64]) -> list[bytes]:
        """The texts of these codes."""
        found: list[bytes] = self.texts.take(pa.array(codes)).to_pylist()
        return found


Batch = dict[str, Coded]


def batches(path: Path, columns: Iterable[str], user: str, reading: LogReading | None = None) -> Iterator[Batch]:
    """The log's columns, some 500,000 rows at a time.

    Raises:
        RiskError: the file or a row of it cannot be read.
    """
    names = sorted({*columns, user})
    reading = reading or LogReading()
    try:
        derived = _derived(path, names)
        kinds: dict[str, Kind] = {name: "text" if name == user else "optional" for name in names}
        taken = [Column(TIME, "time") if name in derived else Column(name, kinds[name]) for name in names]
        read = map(_encoded, read_tables(path, Wanted(tuple(taken), dates=reading.dates), reading))
        for table in gathered(read, ROWS_IN_BATCH, BYTES_IN_BATCH):
            yield {name: _coded(table.column(i), name if name in derived else None) for i, name in enumerate(names)}
    except LogError as error:
        raise RiskError(str(error)) from None


def _derived(path: Path, names: Sequence[str]) -> set[str]:
    """The columns that are taken from ``time``.

    Raises:
        LogError: the file cannot be read, or is a pipe: its header is read before its rows.
    """
    if _DERIVED.keys().isdisjoint(names):
        return set()
    if str(path) == STANDARD_INPUT or path.is_fifo():
        raise LogError("hour, day and month are taken from a file, not from a pipe: save the log, and name its file")
    present = names_of(path, [*names, TIME])
    return {name for name in names if name in _DERIVED and name not in present and TIME in present}


def _encoded(table: pa.Table) -> pa.Table:
    """Each text once, so that it is hashed once for many rows."""
    return pa.table([column.dictionary_encode() for column in table.columns], table.column_names)


def _coded(column: pa.ChunkedArray, derived: str | None) -> Coded:
    encoded = column.unify_dictionaries().combine_chunks()
    codes = encoded.indices.fill_null(-1).to_numpy().astype(np.int64)
    texts = encoded.dictionary
    if derived:
        times = pc.utf8_slice_codeunits(texts.cast(pa.timestamp("us")).cast(pa.string()), 0, _DERIVED[derived])
        encoded = times.dictionary_encode()
        codes, texts = encoded.indices.to_numpy().astype(np.int64)[codes], encoded.dictionary
    return Coded(codes, texts.cast(pa.large_string()).cast(pa.large_binary()))
