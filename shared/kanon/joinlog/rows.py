"""Reads a log row by row. This is the definition of what a log may hold, and of every error message.

A log is CSV (separated by commas, tabs, semicolons or bars), JSON lines, a JSON array of objects, or Parquet. The
reader detects the format from the first bytes and never holds more than a piece of the file. Each physical line of
text is one row and is parsed alone, so an invalid line never changes another row.
"""

from __future__ import annotations

import codecs
import gzip
import io
import json
import os
import re
import stat
import sys
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast

from kanon.errors import Error
from kanon.joinlog.unpacked import Unpacked
from kanon.joinlog.values import DAY, DECIMALS, MICRO, NOT_PLAIN, NOT_UTF8, SPACES, Dates, Unreadable, moment, number
from kanon.joinlog.values import text as text_of
from kanon.joinlog.wanted import CellValue, Column, Kind, Wanted

STANDARD_INPUT = "-"
LONGEST_LINE = 1 << 20
BOM = b"\xef\xbb\xbf"
SEPARATORS = {",": "commas", "\t": "tabs", ";": "semicolons", "|": "bars"}
_REFUSED = {
    b"\x1f\x8b": "gzip data: name the file .gz, and compress it once",
    b"PK\x03\x04": "a zip or Excel file: save it as CSV (UTF-8)",
    b"\xff\xfe": "UTF-16: save it as UTF-8",
    b"\xfe\xff": "UTF-16: save it as UTF-8",
    b"\xd0\xcf\x11\xe0": "an Excel file: save it as CSV (UTF-8)",
    b"ARROW1": "an Arrow or Feather file: write it as Parquet",
    b"\x28\xb5\x2f\xfd": "zstd data: decompress it, or use gzip",
    b"BZh91AY&SY": "bzip2 data: decompress it, or use gzip",
    b"\xfd7zXZ": "xz data: decompress it, or use gzip",
}

TOO_LONG = f"more than {LONGEST_LINE:,} bytes in one line: check that this is a log"
QUOTES = (
    "unbalanced or stray quotes: put the whole value in quotes and double each quote in it; write values with line"
    " ends as JSON lines or Parquet"
)
RETURN = "a carriage return within the line: end lines with LF or CRLF"
ZERO = "a zero byte: remove it, or save UTF-16 as UTF-8"
MORE = "more values than columns: put a value that holds the separator in quotes"
FEWER = "fewer values than columns: write every value, an empty one too"
NOT_JSON = "not a JSON object: write one object per line"
NOT_ARRAY = "not a JSON array of objects: write one object per line, without the brackets"
FATAL = {DECIMALS, NOT_ARRAY}
"""Reasons that are no matter of one row: a wrong option would leave out most rows, and an array has no lines."""
OR_SKIP = " (--skip-bad-rows leaves out such rows)"
NAMED_TWICE = "a JSON object with the same name twice: rename one"


class LogError(Error, ValueError):
    """A log cannot be read; the message names the file and the line and says what to change. It holds no value."""


class LoggedJoin(NamedTuple):
    """One line of a join log. ``time`` in Unix seconds."""

    time: float
    set: str
    client: str


class Columns(NamedTuple):
    """The names of the columns of a join log."""

    time: str = "time"
    set: str = "set"
    client: str = "client"


class Fault(NamedTuple):
    """Why a row cannot be read. ``column`` is empty for the whole line."""

    column: str
    reason: str


@dataclass
class LogReading:
    """How a log is read, and what was met.

    Attributes:
        dates: the order of dates such as 01/02/2026; None: they are refused.
        skip: leave invalid rows out and count them; otherwise the first one is an error.
        rows: rows so far, invalid ones too.
        left_out: invalid rows by column and reason.
        unnamed: columns of conditions that no row had so far; None before the first row.
    """

    dates: Dates | None = None
    skip: bool = False
    rows: int = 0
    left_out: Counter[Fault] = field(default_factory=Counter)
    unnamed: frozenset[str] | None = field(default=None, compare=False)  # only pieces note it

    def add(self, fault: Fault, where: Where) -> None:
        """Count an invalid row.

        Raises:
            LogError: it may not be left out.
        """
        if not self.skip or fault.reason in FATAL:
            raise refusal(fault, where)
        self.left_out[fault] += 1

    def add_unnamed(self, names: frozenset[str]) -> None:
        """Note the columns of conditions that no row of a piece has."""
        self.unnamed = names if self.unnamed is None else self.unnamed & names


def refusal(fault: Fault, where: Where) -> LogError:
    """The error for an invalid row."""
    place = where.name if fault.reason in FATAL else str(where)
    column = f", column {fault.column}" if fault.column else ""
    return LogError(f"{place}{column}: {fault.reason}{'' if fault.reason in FATAL else OR_SKIP}")


def read_joins(
    path: Path | str,
    columns: Columns = Columns(),  # noqa: B008, a constant
    reading: LogReading | None = None,
) -> Iterator[LoggedJoin]:
    """Yield the joins of a log in the order of its lines.

    Args:
        path: the file, or ``-`` for standard input. Parquet needs pyarrow and a file.
        columns: the names of its columns; others are ignored.
        reading: how to read it; by default an invalid row is an error.

    Raises:
        LogError: the file or a row of it cannot be read.
    """
    reading = reading or LogReading()
    wanted = joins_wanted(columns, reading)
    where = Where.of(path)
    with where.naming_errors(), open_log(path) as file:
        for row in _rows(file, wanted, where):
            reading.rows += 1
            found = judged(row, wanted)
            if isinstance(found, Fault):
                reading.add(found, where)
            elif found is not None:
                time, set_, client = cast(tuple[int, str, str], found)
                yield LoggedJoin(time / MICRO, set_, client)


def joins_wanted(columns: Columns, reading: LogReading) -> Wanted:
    """What is read of a join log."""
    if len(set(columns)) < len(columns):
        raise LogError("time, set and client must be three columns")
    kinds: tuple[Kind, ...] = ("time", "text", "text")
    return Wanted(tuple(map(Column, columns, kinds)), dates=reading.dates)


LogRow = Mapping[str, Any]
"""The cells of a row by column: texts, or what JSON holds."""


def _rows(file: io.BufferedReader, wanted: Wanted, where: Where) -> Iterator[LogRow | Fault]:
    form = form_of(file, where)
    if form == "parquet":
        with parquet_file(file, wanted.names, where) as table:
            for batch in table.iter_batches(columns=list(wanted.names)):
                for row in plain_rows(batch):
                    where.line += 1
                    yield row
    elif form == "array":
        yield from array_items(file, where)
    else:
        layout = layout_of(form, file, wanted.names, where)
        yield from (row_of(line, layout) for line in lines_of(file, where) if line)


@dataclass
class Where:
    """The position of the reader, for its messages. ``line`` is 0 before the first row."""

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
        except (EOFError, gzip.BadGzipFile, zlib.error):
            raise LogError(f"{self}: the gzip data is damaged: compress the log again") from None
        except FileNotFoundError:
            raise LogError(f"there is no file {self.name}: check the path") from None
        except OSError as error:
            raise LogError(f"{self.name} cannot be read ({error.strerror or 'damaged'}): check the path") from None

    def __str__(self) -> str:
        return f"{self.name}, {self.unit} {self.line:,}" if self.line else self.name


@contextmanager
def open_log(path: Path | str) -> Iterator[io.BufferedReader]:
    """The bytes of a log, decompressed.

    Raises:
        LogError: at the end, if the file has changed since it was opened: its last row may be a half.
    """
    if str(path) == STANDARD_INPUT:
        yield _decompress(cast(io.BufferedReader, sys.stdin.buffer))
        return
    with Path(path).open("rb") as file:
        before = _written(file)
        yield _decompress(file)
        if _written(file) != before:
            raise LogError(f"{path} changed while it was read: copy it, and give the copy")


def _written(file: io.BufferedReader) -> tuple[int, int] | None:
    """The size of a file and when it was written; None of a pipe."""
    found = os.fstat(file.fileno())
    return (found.st_size, found.st_mtime_ns) if stat.S_ISREG(found.st_mode) else None


def _decompress(file: io.BufferedReader) -> io.BufferedReader:
    if not file.peek(2).startswith(b"\x1f\x8b"):
        return file
    return io.BufferedReader(Unpacked(file), 1 << 18)


Form = Literal["parquet", "json", "array", "csv"]


def form_of(file: io.BufferedReader[Any], where: Where) -> Form:
    """The format of a log, by its first bytes. A byte order mark is skipped.

    Raises:
        LogError: it is none that can be read.
    """
    start = file.peek(64)
    for magic, told in _REFUSED.items():
        if start.startswith(magic):
            raise LogError(f"{where.name} is {told}")
    if start.startswith(b"PAR1"):
        return "parquet"
    if start.startswith(BOM):
        file.read(len(BOM))
        start = start.removeprefix(BOM)
    text = start.lstrip()
    if text.startswith(b"{"):
        return "json"
    return "array" if text.startswith(b"[") else "csv"


# --- text -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LogLayout:
    """How a text is parsed: by the header and the separator of CSV, or as JSON lines (no names)."""

    names: tuple[str, ...] = ()
    separator: str = ""


def layout_of(form: Form, file: io.BufferedReader[Any], needed: Sequence[str], where: Where) -> LogLayout:
    """The layout of a text. The header of CSV is read.

    Raises:
        LogError: the header cannot be read; a column is missing, or there twice.
    """
    if form != "csv":
        return LogLayout()
    names, separator = header(next(lines_of(file, where), b""), needed, where)
    require(needed, names, where, separator)
    return LogLayout(names, separator)


def header(head: bytes, needed: Iterable[str], where: Where) -> tuple[tuple[str, ...], str]:
    """The names in a header and its separator, the one with which most of the needed columns are found.

    If none is found, it is the one with the most columns.

    Raises:
        LogError: it is empty, or cannot be read with any separator.
    """
    if not head:
        raise LogError(f"{where.name}: line 1 is empty; it must name the columns")
    wanted = set(needed)
    parsed: list[tuple[tuple[str, ...], str]] = []
    reason = ""
    for separator in SEPARATORS:
        try:
            parsed.append((tuple(fields(head, separator)), separator))
        except Unreadable as error:
            reason = str(error)
    if not parsed:
        raise LogError(f"{where}: {reason}")

    def fits(names: Sequence[str]) -> tuple[int, int]:
        found = len(wanted & set(names))
        return found, 0 if found else len(names)

    return max(parsed, key=lambda one: fits(one[0]))


def require(needed: Sequence[str], names: Sequence[str], where: Where, separator: str = "") -> None:
    """Check that a log has each column once. ``separator`` is that of CSV.

    The message names no column of the log but one that is nearly the needed one: without a header, line 1 is data.

    Raises:
        LogError: a column is missing, or there twice.
    """
    for name in needed:
        if names.count(name) > 1:
            raise LogError(f"{where.name} has two columns {name!r}: rename one")
        if name not in names:
            folded = {one.strip().casefold(): one for one in names}
            near = get_close_matches(name.casefold(), folded, 1, 0.75)
            hint = f"it has {folded[near[0]]!r}" if near else _found_and_expected(needed, len(names), separator)
            raise LogError(f"{where.name} has no column {name!r}: {hint}")


def _found_and_expected(needed: Sequence[str], number: int, separator: str) -> str:
    columns = "1 column" if number == 1 else f"{number:,} columns"
    expected = f"expected {', '.join(needed)}; check"
    if not separator:
        return f"it has {columns}; {expected} the names of columns"
    apart = f" separated by {SEPARATORS[separator]}" if number > 1 else ""
    return f"line 1 has {columns}{apart}; {expected} that line 1 is the header, and the names of columns"


def lines_of(file: io.BufferedReader[Any], where: Where) -> Iterator[bytes]:
    """The physical lines, counted, without their ends. Of a line that is too long only the beginning is kept."""
    while line := file.readline(LONGEST_LINE + 2):
        rest = line
        while len(rest) == LONGEST_LINE + 2 and not rest.endswith(b"\n"):
            rest = file.readline(LONGEST_LINE + 2)
        where.line += 1
        yield line.removesuffix(b"\n").removesuffix(b"\r")


def row_of(line: bytes, layout: LogLayout) -> LogRow | Fault:
    """The cells of a physical line."""
    try:
        if len(line) > LONGEST_LINE:
            raise Unreadable(TOO_LONG)
        if not layout.names:
            return _json_row(line)
        cells = fields(line, layout.separator)
        if len(cells) != len(layout.names):
            raise Unreadable(MORE if len(cells) > len(layout.names) else FEWER)
        return dict(zip(layout.names, cells, strict=True))
    except Unreadable as error:
        return Fault("", str(error))


@cache
def _field(separator: str) -> re.Pattern[str]:
    return re.compile(rf'(?:"((?:[^"]|"")*+)"|([^"{re.escape(separator)}]*+))({re.escape(separator)}|\Z)')


def fields(line: bytes, separator: str) -> list[str]:
    """The values of a line of CSV (RFC 4180). Invalid UTF-8 becomes surrogates.

    Raises:
        Unreadable: quotes do not match, or there is a carriage return or a zero byte.
    """
    if b"\r" in line or b"\0" in line:
        raise Unreadable(RETURN if b"\r" in line else ZERO)
    text = line.decode("utf-8", "surrogateescape")
    if '"' not in text:
        return text.split(separator)
    found, at, form = [], 0, _field(separator)
    while True:
        cell = form.match(text, at)
        if cell is None:
            raise Unreadable(QUOTES)
        found.append(cell[2] if cell[1] is None else cell[1].replace('""', '"'))
        at = cell.end()
        if not cell[3]:
            return found


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise Unreadable(NAMED_TWICE)
    return found


_SPACE = re.compile(r"[ \t\r\n]*")
_JSON = json.JSONDecoder(object_pairs_hook=_pairs, parse_int=str, parse_float=str, parse_constant=str)
"""Numbers stay texts: floats would change them."""


def _json_row(line: bytes) -> dict[str, Any]:
    try:
        row = _JSON.decode(line.decode("utf-8", "surrogateescape"))
    except Unreadable:
        raise
    except (ValueError, RecursionError):
        raise Unreadable(NOT_JSON) from None
    if not isinstance(row, dict):
        raise Unreadable(NOT_JSON)
    return row


def array_items(file: io.BufferedReader[Any], where: Where) -> Iterator[dict[str, Any]]:
    """The objects of a JSON array, counted. It is read in pieces, and an error refuses all of it: it has no lines.

    Raises:
        LogError: it is not such an array.
    """
    where.unit = "element"
    damaged = refusal(Fault("", NOT_ARRAY), where)
    decode = codecs.getincrementaldecoder("utf-8")("surrogateescape").decode
    text, at, before = "", 0, ""
    while True:
        if len(text) - at < LONGEST_LINE and (piece := file.read(LONGEST_LINE)):
            text, at = text[at:] + decode(piece), 0
            continue
        at = _SPACE.match(text, at).end()  # type: ignore[union-attr]
        sign = text[at : at + 1]
        if (before, sign) in {("", "["), ("{", ",")}:
            at, before = at + 1, sign
        elif before in ("[", "{") and sign == "]" and not text[at + 1 :].strip(SPACES):
            return
        elif before in ("[", ",") and sign == "{":
            try:
                row, at = _JSON.raw_decode(text, at)
            except (ValueError, RecursionError):
                raise damaged from None
            where.line, before = where.line + 1, "{"
            yield row
        else:
            raise damaged


# --- Parquet --------------------------------------------------------------------------------------


@contextmanager
def parquet_file(file: io.BufferedReader, needed: Sequence[str], where: Where) -> Iterator[Any]:
    """A Parquet file that has the columns, as pyarrow opens it.

    Raises:
        LogError: pyarrow is missing; the file is a pipe or lacks a column; it, or its rows later, cannot be read.
    """
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ModuleNotFoundError as error:
        install = "pip install 'kanon-dp[desk]', or run `make simulate` in a checkout of kanon"
        raise LogError(f"{where.name} is Parquet, and {error.name} is missing: {install}") from error
    if not file.seekable():
        raise LogError(f"{where.name} is Parquet, which is read from its end: give the name of a file, not gzipped")
    where.unit = "row"
    try:
        table = parquet.ParquetFile(file, pre_buffer=False, buffer_size=LONGEST_LINE)
        require(needed, table.schema_arrow.names, where)
        for name in needed:
            check_type(name, table.schema_arrow.field(name).type, where)
        yield table
    except (pa.ArrowException, OSError):  # the text of the error may hold a row
        raise LogError(f"{where.name} is not readable as Parquet: write the file again") from None


def check_type(name: str, held: Any, where: Where) -> None:
    """Check that a column of Arrow holds plain values.

    Raises:
        LogError: it does not.
    """
    from pyarrow import types

    held = held.value_type if types.is_dictionary(held) else held
    held = getattr(held, "storage_type", held)  # a UUID is binary
    if (
        types.is_nested(held)
        or types.is_binary(held)
        or types.is_large_binary(held)
        or types.is_fixed_size_binary(held)
    ):
        raise not_plain(name, held, where)


def not_plain(name: str, held: object, where: Where) -> LogError:
    """The error for a column of another type than plain values."""
    return LogError(f"{where.name}: column {name!r} holds {held}: only text, numbers, dates and times are read")


def plain_rows(batch: Any) -> Iterator[dict[str, str]]:
    """The rows of a batch of Arrow as texts."""
    from kanon.joinlog.columns import as_texts

    columns = {name: as_texts(batch.column(i)).to_pylist() for i, name in enumerate(batch.schema.names)}
    for cells in zip(*columns.values(), strict=True):
        yield dict(zip(columns, cells, strict=True))


# --- cells ----------------------------------------------------------------------------------------


class _CellError(Exception):
    """A cell of a row cannot be read; holds a ``Fault``."""


def judged(row: LogRow | Fault, wanted: Wanted) -> tuple[CellValue, ...] | Fault | None:
    """The values of a row, or why it cannot be read; None if it is not used."""
    if isinstance(row, Fault):
        return row
    try:
        if any((_cell(row, name) == text) != equal for name, equal, text in wanted.conditions):
            return None
        if wanted.days is not None and not _lies_within(row, wanted):
            return None
        return tuple(_value(row, column, wanted) for column in wanted.columns)
    except _CellError as error:
        return cast(Fault, error.args[0])


def _lies_within(row: LogRow, wanted: Wanted) -> bool:
    day = cast(int, _value(row, Column(wanted.time, "day"), wanted))
    return any(start <= day < end for start, end in wanted.days or ())


def _value(row: LogRow, column: Column, wanted: Wanted) -> CellValue:
    cell = _cell(row, column.name)
    try:
        if column.kind == "number":
            return number(cell, wanted.scale)
        if column.kind in ("time", "day"):
            return moment(cell, wanted.dates) // (DAY * MICRO if column.kind == "day" else 1)
        if column.kind == "optional" and not cell.strip(SPACES):
            return None
        return text_of(cell)
    except Unreadable as error:
        raise _CellError(Fault(column.name, str(error))) from None


def _cell(row: LogRow, name: str) -> str:
    """The text of a cell; empty if it is missing."""
    cell = row.get(name)
    if cell is None:
        return ""
    if isinstance(cell, bool):
        return str(cell).lower()
    if not isinstance(cell, str):
        raise _CellError(Fault(name, NOT_PLAIN))
    try:
        cell.encode()
    except UnicodeEncodeError:
        raise _CellError(Fault(name, NOT_UTF8)) from None
    return cell
