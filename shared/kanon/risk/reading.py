"""One pass over a log: CSV or Parquet with any columns, in batches of bounded memory (pyarrow).

All columns are read as text, so that ``01`` and ``1`` are different values. A row whose user or value is missing or
empty is left out and counted. ``day``, ``hour`` and ``month`` are taken from the column ``time`` (UTC) unless the
log has columns of these names.
"""

import csv
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from io import TextIOWrapper
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
from numpy.typing import NDArray

from kanon.risk.errors import RiskError

ROWS_IN_BATCH = 1 << 19
BYTES_IN_BATCH = 48 << 20
_BLOCK_BYTES = 1 << 20

TIME = "time"
_YEAR_10000 = 253_402_300_800  # unix seconds; a larger number is probably milliseconds, and invalid
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


def batches(path: Path, columns: Iterable[str]) -> Iterator[Batch]:
    """The log's columns, some 500,000 rows at a time.

    Raises:
        RiskError: the file cannot be read, or lacks a column.
    """
    wanted = sorted(set(columns))
    try:
        names, tables = _parquet(path) if path.suffix == ".parquet" else _csv(path)
        read, derived = _needed(path, names, wanted)
        for table in _gathered(tables(read)):
            yield {name: _coded(table, name, derived) for name in wanted}
    except FileNotFoundError as error:
        raise RiskError(f"there is no file {path}") from error
    except OSError as error:
        raise RiskError(
            f"{path} cannot be read: {error.strerror or 'not a CSV (.csv, .csv.gz) or .parquet file'}"
        ) from error
    except pa.ArrowInvalid as error:  # its text may hold a row, so it is neither shown nor chained
        raise RiskError(f"{path} cannot be read: {_reason(error)}") from None


Tables = Callable[[list[str]], Iterator[Any]]
"""Reads the named columns as record batches."""


def _csv(path: Path) -> tuple[list[str], Tables]:
    with TextIOWrapper(pa.input_stream(str(path), compression="detect"), "utf-8-sig", newline="") as text:
        try:
            names = next(csv.reader(text), [])
        except UnicodeDecodeError as error:
            raise RiskError(f"{path} is not UTF-8 text") from error

    def read(columns: list[str]) -> Iterator[Any]:
        options = pacsv.ConvertOptions(include_columns=columns, column_types=dict.fromkeys(columns, pa.string()))
        with (
            pa.input_stream(str(path), compression="detect") as stream,
            pacsv.open_csv(
                stream,
                read_options=pacsv.ReadOptions(block_size=_BLOCK_BYTES, use_threads=False),
                parse_options=pacsv.ParseOptions(newlines_in_values=True),
                convert_options=options,
            ) as reader,
        ):
            yield from reader

    return names, read


def _parquet(path: Path) -> tuple[list[str], Tables]:
    names = pq.read_schema(path).names

    def read(columns: list[str]) -> Iterator[Any]:
        with pq.ParquetFile(path, pre_buffer=False, buffer_size=_BLOCK_BYTES) as file:
            yield from file.iter_batches(ROWS_IN_BATCH // 8, columns=columns, use_threads=False)

    return names, read


def _needed(path: Path, names: Sequence[str], wanted: Sequence[str]) -> tuple[list[str], set[str]]:
    """The columns to read, and those to derive from ``time``."""
    derived = {name for name in wanted if name not in names and name in _DERIVED and TIME in names}
    missing = [name for name in wanted if name not in names and name not in derived]
    if missing:
        raise RiskError(f"{path} has no column {missing[0]!r}; its columns are {', '.join(names) or 'none'}")
    read = sorted(set(wanted) - derived | ({TIME} if derived else set()))
    twice = [name for name in read if list(names).count(name) > 1]
    if twice:
        raise RiskError(f"{path} has two columns {twice[0]!r}: rename one")
    return read, derived


def _gathered(parts: Iterator[Any]) -> Iterator[pa.Table]:
    """Small record batches joined, so that a repeated text is hashed once for many rows."""
    waiting: list[Any] = []
    rows = size = 0
    for read in parts:
        part = _encoded(read)
        waiting.append(part)
        rows, size = rows + part.num_rows, size + part.nbytes
        if rows >= ROWS_IN_BATCH or size >= BYTES_IN_BATCH:
            yield pa.Table.from_batches(waiting)
            waiting, rows, size = [], 0, 0
    if rows:
        yield pa.Table.from_batches(waiting)


def _encoded(part: Any) -> Any:
    """Codes instead of repeated texts. Each part is encoded while the next one is read."""
    columns = []
    for column, field in zip(part.columns, part.schema, strict=True):
        try:
            columns.append(column.dictionary_encode())
        except pa.ArrowNotImplementedError as error:
            raise _unreadable(field.name, column.type) from error
    return pa.record_batch(columns, names=part.schema.names)


def _unreadable(name: str, held: pa.DataType) -> RiskError:
    return RiskError(f"column {name!r} holds {held}: only text, numbers, dates and times are read")


def _coded(table: pa.Table, name: str, derived: set[str]) -> Coded:
    encoded = table[TIME if name in derived else name].unify_dictionaries().combine_chunks()
    codes = encoded.indices.fill_null(-1).to_numpy().astype(np.int64)
    texts = encoded.dictionary
    if name in derived:
        encoded = _from_time(texts, name).dictionary_encode()
        codes = np.append(encoded.indices.fill_null(-1).to_numpy(), -1).astype(np.int64)[codes]
        texts = encoded.dictionary
    try:
        texts = texts.cast(pa.large_string()).cast(pa.large_binary())
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise _unreadable(name, texts.type) from error
    empty = pc.index(texts, pa.scalar(b"", pa.large_binary())).as_py()
    if empty >= 0:
        codes[codes == empty] = -1
    return Coded(codes, texts)


def _from_time(times: pa.Array, name: str) -> pa.Array:
    """Days, hours or months in UTC from unix seconds or ISO 8601 times."""
    try:
        seconds = _seconds(times)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        seconds = None
    if seconds is None or pc.any(pc.greater_equal(seconds.cast(pa.int64()), _YEAR_10000)).as_py():
        raise RiskError(f"column {TIME!r} must hold unix seconds or ISO 8601 times to give {name!r}")
    return pc.utf8_slice_codeunits(seconds.cast(pa.string()), 0, _DERIVED[name])


def _seconds(times: pa.Array) -> pa.Array:
    if pa.types.is_timestamp(times.type) or pa.types.is_date(times.type):
        return times.cast(pa.timestamp("s"), safe=False)
    if pa.types.is_string(times.type) or pa.types.is_large_string(times.type):
        times = pc.if_else(pc.equal(times, ""), None, times)
        for form in (pa.timestamp("s", "UTC"), pa.timestamp("s")):
            with suppress(pa.ArrowInvalid):
                return times.cast(form).cast(pa.timestamp("s"))
    return pc.floor(times.cast(pa.float64())).cast(pa.int64()).cast(pa.timestamp("s"))


def _reason(error: Exception) -> str:
    """The cause of an error of pyarrow, without the content of any row."""
    text = str(error)
    if "Expected" in text and "columns" in text:
        return "a row has more or fewer fields than the header"
    if "UTF8" in text or "utf-8" in text.lower():
        return "it is not UTF-8 text"
    if "straddl" in text:
        return f"a row is longer than {_BLOCK_BYTES >> 20} MiB"
    return "it is not a valid CSV (.csv, .csv.gz) or Parquet (.parquet) file"
