"""Reads a join log as columns, in blocks of half a megabyte, with pyarrow.

``kanon.joinlog.rows`` defines what a log may hold. If a block is irregular for pyarrow, that module reads it row by
row. So both readers yield the same joins and raise the same errors.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import chain, islice, product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
import pyarrow.json as pajson
from numpy.typing import NDArray

from kanon.joinlog.rows import (
    BOM,
    LONGEST_LINE,
    YEAR_10000,
    Columns,
    Where,
    csv_rows,
    form_of,
    join_of,
    json_lines,
    lines_of,
    microseconds,
    open_log,
    parquet_table,
    require,
    table_rows,
)

BLOCK_BYTES = LONGEST_LINE // 2
_MOST_BYTES = 4 << 20
"""A block is cut here even if a quoted value seems to go on."""
_ROWS = 1 << 14
"""The most rows of a batch that is read row by row."""
_BESIDE_QUOTES = np.zeros(256, bool)
_BESIDE_QUOTES[list(b'",\r\n')] = True


class Batch(NamedTuple):
    """Joins in the order of the log: ``times`` in Unix seconds, sets and clients as text. Each has n entries."""

    times: NDArray[np.float64]
    sets: pa.StringArray
    clients: pa.StringArray


class _IrregularError(Exception):
    """These rows need the reader of ``kanon.joinlog.rows``."""


def read_batches(path: Path | str, columns: Columns = Columns()) -> Iterator[Batch]:  # noqa: B008, a constant
    """Yield the joins that :func:`kanon.joinlog.read_joins` yields, in batches.

    Raises:
        LogError: the file or a line of it cannot be read.
    """
    where = Where.of(path)
    with where.naming_errors(), open_log(path) as file:
        reader = {"parquet": _parquet, "json": _json, "csv": _csv}[form_of(file)]
        yield from reader(file, columns, where)


def _csv(file: io.BufferedReader, columns: Columns, where: Where) -> Iterator[Batch]:
    head = next(lines_of(file, where), "")
    if head.count('"') % 2 or _is_odd(head.encode()):
        yield from _slowly(csv_rows(chain([head], lines_of(file, where)), columns, where), columns)
        return
    names = next(csv.reader([head]), [])
    require(columns, names, where, "add a header line")
    for block in _blocks(file):
        lines = where.line + _lines(block)
        try:
            yield _csv_block(block, names, columns)
        except (_IrregularError, pa.ArrowInvalid):
            yield from _slowly(csv_rows(lines_of(io.BytesIO(block), where), columns, where, names), columns)
        where.line = lines


def _csv_block(block: bytes, names: list[str], columns: Columns) -> Batch:
    if len(set(names)) < len(names) or _too_long(block) or _is_odd(block):
        raise _IrregularError
    table = pacsv.read_csv(
        pa.BufferReader(block),
        pacsv.ReadOptions(column_names=names, use_threads=False, block_size=len(block) + 1),
        pacsv.ParseOptions(newlines_in_values=b'"' in block),
        pacsv.ConvertOptions(
            include_columns=list(columns),
            column_types=dict.fromkeys(columns, pa.string()),
            strings_can_be_null=False,
        ),
    )
    return _batch(table, columns)


def _is_odd(text: bytes) -> bool:
    """Whether CSV text has characters that pyarrow may read differently: a stray quote, a lone return, a zero byte."""
    if b"\0" in text or text.count(b"\r") != text.count(b"\r\n"):
        return True
    if b'"' not in text:
        return False
    padded = np.frombuffer(b"\n" + text + b"\n", np.uint8)
    quotes = np.flatnonzero(padded == ord('"'))
    return not np.all(_BESIDE_QUOTES[padded[quotes - 1]] | _BESIDE_QUOTES[padded[quotes + 1]])


def _json(file: io.BufferedReader, columns: Columns, where: Where) -> Iterator[Batch]:
    schemas = [
        pa.schema(dict(zip(columns, types, strict=True)))
        for types in product((pa.float64(), pa.string()), *[(pa.string(), pa.int64())] * 2)
    ]
    for number, block in enumerate(_blocks(file)):
        block = block.removeprefix(BOM) if number == 0 else block  # noqa: PLW2901
        lines = where.line + _lines(block)
        for schema in list(schemas):
            with suppress(_IrregularError, pa.ArrowInvalid):
                yield _json_block(block, schema, columns)
                schemas.remove(schema)
                schemas.insert(0, schema)  # the next block is probably irregular too
                break
        else:
            yield from _slowly(json_lines(lines_of(io.BytesIO(block), where), columns, where), columns)
        where.line = lines


def _json_block(block: bytes, schema: pa.Schema, columns: Columns) -> Batch:
    if _too_long(block):
        raise _IrregularError
    options = pajson.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore")
    read = pajson.ReadOptions(use_threads=False, block_size=len(block) + 1)
    table = pajson.read_json(pa.BufferReader(block), read, options)
    if table.num_rows != _lines(block):  # two objects on a line, or a line that pyarrow skips
        raise _IrregularError
    return _batch(table, columns)


def _lines(block: bytes) -> int:
    return block.count(b"\n") + (not block.endswith(b"\n"))


def _too_long(block: bytes) -> bool:
    return len(block) > LONGEST_LINE and max(map(len, block.splitlines())) > LONGEST_LINE


def _parquet(file: io.BufferedReader, columns: Columns, where: Where) -> Iterator[Batch]:
    with parquet_table(file, columns, where) as table:
        for rows in table.iter_batches(columns=list(columns), use_threads=False):
            line = where.line
            whole = microseconds(rows)
            try:
                yield _batch(whole, columns)
            except (_IrregularError, pa.ArrowInvalid, pa.ArrowNotImplementedError):
                yield from _slowly(table_rows(whole, where), columns)
            where.line = line + rows.num_rows


def _slowly(rows: Iterable[Mapping[str, Any]], columns: Columns) -> Iterator[Batch]:
    """The batches of rows that are read one by one."""
    joins = (join_of(row, columns) for row in rows)
    while some := list(islice(joins, _ROWS)):
        times, sets, clients = zip(*some, strict=True)
        yield Batch(np.array(times, np.float64), pa.array(sets, pa.string()), pa.array(clients, pa.string()))


def _batch(table: pa.Table, columns: Columns) -> Batch:
    """The batch of a table.

    Raises:
        _IrregularError, pa.ArrowInvalid: a value is missing, empty or of another form.
    """
    return Batch(_seconds(_whole(table, columns.time)), *(_texts(_whole(table, c)) for c in columns[1:]))


def _whole(table: pa.Table, name: str) -> Any:
    column = table.column(name)
    if column.null_count or table.schema.names.count(name) > 1:
        raise _IrregularError
    return column.combine_chunks()


def _seconds(times: Any) -> NDArray[np.float64]:
    seconds: NDArray[np.float64]
    kind = times.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        times = _parsed(times)
    if pa.types.is_timestamp(times.type):
        seconds = times.cast(pa.timestamp("us", times.type.tz)).cast(pa.int64()).to_numpy() / 1e6
    elif pa.types.is_integer(times.type) or pa.types.is_floating(times.type):
        seconds = times.cast(pa.float64()).to_numpy()
    else:
        raise _IrregularError
    if not np.all((seconds >= 0) & (seconds < YEAR_10000)):
        raise _IrregularError
    return seconds


def _parsed(times: Any) -> Any:
    """Texts as numbers, or as times with or without an offset."""
    for form in (pa.float64(), pa.timestamp("us", "UTC"), pa.timestamp("us")):
        with suppress(pa.ArrowInvalid):
            return times.cast(form)
    raise _IrregularError


def _texts(values: Any) -> pa.StringArray:
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    if pa.types.is_integer(values.type) or pa.types.is_large_string(values.type):
        values = values.cast(pa.string())
    if not pa.types.is_string(values.type) or (len(values) and pc.min(pc.binary_length(values)).as_py() == 0):
        raise _IrregularError
    return values


def _blocks(file: io.BufferedReader) -> Iterator[bytes]:
    """The text in blocks that end where a record ends."""
    rest = b""
    while piece := file.read(BLOCK_BYTES):
        block = rest + piece
        end = _record_end(block)
        while not end and len(block) < _MOST_BYTES and (piece := file.read(BLOCK_BYTES)):
            block += piece
            end = _record_end(block)
        end = end or block.rfind(b"\n") + 1 or len(block)
        yield block[:end]
        rest = block[end:]
    if rest:
        yield rest


def _record_end(block: bytes) -> int:
    """The end of the last line that ends outside quotes; 0 if there is none."""
    if b'"' not in block:
        return block.rfind(b"\n") + 1
    text = np.frombuffer(block, np.uint8)
    lines, quotes = np.flatnonzero(text == ord("\n")), np.flatnonzero(text == ord('"'))
    outside = lines[np.searchsorted(quotes, lines) % 2 == 0]
    return int(outside[-1]) + 1 if outside.size else 0
