"""Reads a join log row by row. This is the definition of what a log may hold, and of every error message.

A log has one join per line: time, set and client. The reader detects the format from the first bytes, yields the joins
in the order of the file, and never holds more than a piece of it.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import sys
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast

from kanon.joinlog.unpacked import Unpacked

STANDARD_INPUT = "-"
YEAR_10000 = 253_402_300_800
_GZIP, BOM = b"\x1f\x8b", b"\xef\xbb\xbf"
LONGEST_LINE = 1 << 20


class LogError(ValueError):
    """A join log cannot be read; the message names the file and the line and says what to change."""


class Join(NamedTuple):
    """One line of a log. ``time`` in Unix seconds."""

    time: float
    set: str
    client: str


class Columns(NamedTuple):
    """The names of the columns of a log."""

    time: str = "time"
    set: str = "set"
    client: str = "client"


def read_joins(path: Path | str, columns: Columns = Columns()) -> Iterator[Join]:  # noqa: B008, a constant
    """Yield the joins of a log in the order of its lines.

    Args:
        path: the file, or ``-`` for standard input.
        columns: the names of its columns; others are ignored.

    The time of a join is a number of Unix seconds, or an ISO 8601 time (UTC if it names no offset). Set and client
    are text; whole numbers are read as their digits. Parquet needs pyarrow and a file.

    Raises:
        LogError: the file or a line of it cannot be read.
    """
    where = Where.of(path)
    with where.naming_errors(), open_log(path) as file:
        if (form := form_of(file)) == "parquet":
            rows = _parquet(file, columns, where)
        else:
            rows = (json_lines if form == "json" else csv_rows)(lines_of(file, where), columns, where)
        for row in rows:
            yield join_of(row, columns)


@dataclass
class Where:
    """The position of the reader, for its messages. ``line`` is a row number in Parquet, 0 before the first row."""

    name: str
    unit: str = "line"
    line: int = 0

    @classmethod
    def of(cls, path: Path | str) -> Where:
        """The beginning of a log."""
        return cls("standard input" if str(path) == STANDARD_INPUT else str(path))

    @contextmanager
    def naming_errors(self) -> Iterator[None]:
        """Turn errors of reading into a ``LogError`` that says where they happened."""
        try:
            yield
        except LogError:
            raise
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise LogError(f"{self}: the gzip data is damaged ({error}): compress the log again") from error
        except UnicodeDecodeError as error:
            raise LogError(f"{self}: not UTF-8: convert the log to UTF-8") from error
        except OSError as error:
            raise LogError(f"{self.name} cannot be read ({error.strerror or error}): check the path") from error
        except ValueError as error:
            raise LogError(f"{self}: {error}") from error

    def __str__(self) -> str:
        return f"{self.name}, {self.unit} {self.line}" if self.line else self.name


@contextmanager
def open_log(path: Path | str) -> Iterator[io.BufferedReader]:
    """The bytes of a log, decompressed."""
    if str(path) == STANDARD_INPUT:
        yield _decompress(cast(io.BufferedReader, sys.stdin.buffer))
        return
    with Path(path).open("rb") as file:
        yield _decompress(file)


def _decompress(file: io.BufferedReader) -> io.BufferedReader:
    if not file.peek(2).startswith(_GZIP):
        return file
    return io.BufferedReader(Unpacked(file))


def form_of(file: io.BufferedReader) -> Literal["parquet", "json", "csv"]:
    """The format of a log, by its first bytes."""
    start = file.peek(64)
    if start.startswith(b"PAR1"):
        return "parquet"
    return "json" if start.removeprefix(BOM).lstrip().startswith(b"{") else "csv"


def lines_of(file: io.BufferedReader | io.BytesIO, where: Where) -> Iterator[str]:
    """The lines of a text, counted. A line that is too long for a join is refused, not read into memory."""
    while line := file.readline(LONGEST_LINE + 1):
        where.line += 1
        if len(line) > LONGEST_LINE:
            raise ValueError(f"more than {LONGEST_LINE:,} bytes in one line: check that this is a join log")
        yield line.removeprefix(BOM).decode() if where.line == 1 else line.decode()


def csv_rows(
    lines: Iterable[str], columns: Columns, where: Where, names: Sequence[str] | None = None
) -> Iterator[Mapping[str, Any]]:
    """The rows of CSV text. Its first line is the header, unless ``names`` are given."""
    rows = csv.DictReader(lines, names, strict=True)
    try:
        require(columns, rows.fieldnames or (), where, "add a header line")
        for row in rows:
            if None in row:
                raise ValueError("more values than columns: put a value that holds a comma in quotes")
            yield row
    except csv.Error as error:
        raise ValueError(f"not CSV ({error}): check the quotes") from error


def json_lines(lines: Iterable[str], columns: Columns, where: Where) -> Iterator[Mapping[str, Any]]:
    """The rows of JSON lines."""
    for line in lines:
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise ValueError("not JSON: write one object per line") from error
        if not isinstance(row, dict):
            raise ValueError("not a JSON object: write one object per line")
        require(columns, row, where, "write it in every line")
        yield row


def _parquet(file: io.BufferedReader, columns: Columns, where: Where) -> Iterator[Mapping[str, Any]]:
    with parquet_table(file, columns, where) as table:
        for batch in table.iter_batches(columns=list(columns)):
            yield from table_rows(microseconds(batch), where)


@contextmanager
def parquet_table(file: io.BufferedReader, columns: Columns, where: Where) -> Iterator[Any]:
    """A Parquet file that has the columns, as pyarrow opens it.

    Raises:
        LogError: pyarrow is missing; the file is a pipe or lacks a column; it, or its rows later, cannot be read.
    """
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ModuleNotFoundError as error:
        install = "pip install 'kanon[log]', or run `make simulate` in a checkout of kanon"
        raise LogError(f"{where.name} is Parquet, and {error.name} is missing: {install}") from error
    if not file.seekable():
        raise LogError(f"{where.name} is Parquet, which is read from its end: give the name of a file")
    where.unit = "row"
    try:
        table = parquet.ParquetFile(file)
        require(columns, table.schema_arrow.names, where, "name the columns the file has")
        yield table
    except pa.ArrowException as error:
        raise LogError(f"{where}: not readable as Parquet ({error}): write the file again") from error


def microseconds(batch: Any) -> Any:
    """The same rows; Python's ``datetime`` has no nanoseconds, so finer times are cut."""
    import pyarrow as pa

    fields = [f.with_type(pa.timestamp("us", f.type.tz)) if pa.types.is_timestamp(f.type) else f for f in batch.schema]
    table = pa.Table.from_batches([batch])
    return table.cast(pa.schema(fields), safe=False)


def table_rows(table: Any, where: Where) -> Iterator[Mapping[str, Any]]:
    """The rows of a table of pyarrow, counted."""
    for row in table.to_pylist():
        where.line += 1
        yield row


def require(columns: Columns, present: Iterable[str], where: Where, remedy: str) -> None:
    """Check that a log has the columns.

    Raises:
        LogError: one is missing.
    """
    if missing := sorted(set(columns) - set(present)):
        raise LogError(f"{where}: no column {', '.join(missing)}: {remedy}, or give the names of the columns")


def join_of(row: Mapping[str, Any], columns: Columns) -> Join:
    """The join in a row.

    Raises:
        ValueError: a value is missing or of another form.
    """
    return Join(
        _time(row[columns.time], columns.time),
        _text(row[columns.set], columns.set),
        _text(row[columns.client], columns.client),
    )


def _time(value: Any, column: str) -> float:
    try:
        if isinstance(value, bool) or value is None:
            raise ValueError
        seconds = value if isinstance(value, datetime) else _number_or_moment(value)
        if isinstance(seconds, datetime):
            seconds = (seconds if seconds.tzinfo else seconds.replace(tzinfo=UTC)).timestamp()
    except (ValueError, TypeError, OverflowError) as error:
        raise ValueError(f"{column} is {value!r}: write Unix seconds, or ISO 8601 as 2026-01-31T12:00:00Z") from error
    if not 0 <= seconds < YEAR_10000:
        raise ValueError(f"{column} is {value!r}, before 1970 or after 9999: write seconds, not milliseconds")
    return seconds


def _number_or_moment(value: Any) -> float | datetime:
    try:
        return float(value)
    except ValueError:
        return datetime.fromisoformat(value)


def _text(value: Any, column: str) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int) or value == "":
        shown = "empty" if value in ("", None) else repr(value)
        raise ValueError(f"{column} is {shown}: write text or a whole number")
    return str(value)
