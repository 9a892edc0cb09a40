"""The bounded table by Spark SQL, on a cluster or on one machine.

Spark reads lines, or the columns of Parquet, and ``kanon.joinlog`` checks them where they are: the workers need kanon.

Spark may run a task again at any time. So each result is fetched once, into a file that only this user can read. The
noisy half reads that file: noise is added to exactly the numbers that were digested.
"""

import json
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import reduce
from importlib import import_module
from io import BufferedReader, BytesIO
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from kanon.joinlog import LogError
from kanon.joinlog.batches import Checked, check_array, check_batch, check_block
from kanon.joinlog.columns import schema
from kanon.joinlog.rows import (
    BOM,
    FATAL,
    Fault,
    Form,
    LogLayout,
    LogReading,
    Where,
    form_of,
    layout_of,
    not_plain,
    refusal,
    require,
)
from kanon.joinlog.wanted import Wanted
from kanon.release.bounding import Bounding
from kanon.release.engines.sql import NO_ROWS, SPARK, UNREADABLE, SqlTexts, operator_report, refuse_unnamed
from kanon.release.errors import InputError
from kanon.release.noising import GroupRow, PrivateTable

_SOURCE = "kanon_source"
_PLACE = pa.schema(
    [("file", pa.string()), ("block", pa.int64()), ("place", pa.int64()), ("rows", pa.int64()), ("column", pa.string()),
     ("reason", pa.string())]
)  # fmt: skip
"""Beside the values of a row. A row with a reason is invalid. A row with a number of rows says how many were read,
and its column which columns of conditions none of them has."""
BatchCheck = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


class Spark:
    """The engine beyond one machine.

    Args:
        session: a session; by default the active one, or a new one as the environment configures it.
    """

    def __init__(self, session: SparkSession | None = None) -> None:
        import_module("pandas")  # Spark needs it to hand over columns
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # of local workers
        try:
            self._session = session or SparkSession.builder.appName("kanon release").getOrCreate()
        except PySparkException:
            raise InputError("Spark does not start: it needs Java 17 or newer, on the path or as JAVA_HOME") from None
        self._session.sparkContext.setLogLevel("OFF")  # log messages of tasks may hold parts of rows
        for name, value in (
            ("spark.sql.session.timeZone", "UTC"),
            ("spark.sql.ansi.enabled", "false"),
            ("spark.sql.caseSensitive", "true"),
        ):
            self._session.conf.set(name, value)

    @contextmanager
    def table(self, sources: Sequence[Path | str], bounding: Bounding, secret: str) -> Iterator[PrivateTable]:
        """The bounded table of files in the session's file system, such as ``s3://bucket/name.parquet``.

        The secret appears in the engine's texts and so in the history of its queries.

        Raises:
            InputError: a file or a row of it cannot be read. No message holds a value.
        """
        texts = SqlTexts(bounding, SPARK, _SOURCE, secret)
        with self._registered(sources, bounding), tempfile.TemporaryDirectory(prefix="kanon-") as folder:
            fetched = Path(folder) / "bounded.jsonl"  # the folder has mode 0700
            self._fetch(texts.table(), fetched)
            bins: dict[str, dict[int, int]] = {column: dict(self._run(text)) for column, text in texts.bins().items()}

            def rows() -> Iterator[GroupRow]:
                with fetched.open(encoding="utf-8") as lines:
                    yield from map(tuple, map(json.loads, lines))

            yield PrivateTable.of_rows(bounding, rows, bins)

    def operator_report(self, sources: Sequence[Path | str], bounding: Bounding, secret: str) -> dict[str, Any]:
        """Exact numbers for the operator alone."""
        with self._registered(sources, bounding) as reading:
            (counts,) = self._run(SqlTexts(bounding, SPARK, _SOURCE, secret).operator_counts())
        return operator_report(counts, reading)

    @contextmanager
    def _registered(self, sources: Sequence[Path | str], bounding: Bounding) -> Iterator[LogReading]:
        """Register the checked rows and the public groups under the names in the SQL."""
        reading = LogReading(skip=bounding.skip_bad_rows)
        frames: list[DataFrame] = []
        try:
            for source in map(str, sources):
                for unit, frame in self._checked(source, bounding.wanted):
                    frames.append(frame.persist())
                    self._tell(source, unit, frames[-1], reading)
            refuse_unnamed(reading)
            rows = reduce(DataFrame.unionByName, frames).where("rows is null and reason is null")
            if bounding.listed is None and rows.isEmpty():
                raise InputError(NO_ROWS)
            values = [rows[str(i)].alias(name) for i, name in enumerate(bounding.columns)]
            rows.select(values).createOrReplaceTempView(_SOURCE)
            if bounding.listed is not None:
                names = self._session.createDataFrame([(name,) for name in bounding.listed], "grp string")
                names.createOrReplaceTempView("listed")
            yield reading
        except LogError as error:
            raise InputError(str(error)) from None
        finally:
            for view in (_SOURCE, "listed"):
                self._session.catalog.dropTempView(view)
            for frame in frames:
                frame.unpersist()

    def _checked(self, place: str, wanted: Wanted) -> Iterator[tuple[str, DataFrame]]:
        """The rows of a file or of a directory of files, as columns and places, and what a place counts."""
        try:
            heads = {} if place.rstrip("/").endswith(".parquet") else self._heads(place)
            forms, layouts = _layouts(place, heads, wanted)
            if "parquet" in forms or not heads:
                yield "row", self._mapped(self._columns(place, wanted), _check_columns(wanted), wanted)
                return
            lines, arrays = ([name for name, form in forms.items() if (form == "array") == array] for array in (0, 1))
            if lines:
                yield "line", self._mapped(self._text(lines), _check_lines(layouts, wanted), wanted)
            if arrays:
                yield "element", self._mapped(self._text(arrays, wholetext=True), _check_arrays(wanted), wanted)
        except PySparkException:
            raise InputError(f"{place} cannot be read: {UNREADABLE}") from None

    def _text(self, files: str | Sequence[str], *, wholetext: bool = False) -> DataFrame:
        """The physical lines of files, or the files, as bytes, with their file and the start of their block in it."""
        paths = files if isinstance(files, str) else list(map(unquote, files))
        frame = self._session.read.text(paths, wholetext=wholetext, lineSep=None if wholetext else "\n")
        return frame.select(frame.value.cast("binary"), "_metadata.file_path", "_metadata.file_block_start")

    def _heads(self, place: str) -> dict[str, bytes]:
        """The first line of each file."""
        heads = {}
        for file in self._text(place).inputFiles():
            first = self._text([file]).head(1)  # the first block is read first
            if first and first[0].file_block_start:
                raise InputError(f"{place} cannot be read: {UNREADABLE}")
            heads[first[0].file_path if first else file] = bytes(first[0].value) if first else b""
        return heads

    def _columns(self, place: str, wanted: Wanted) -> DataFrame:
        frame = self._session.read.parquet(place)
        where = Where(place)
        require(wanted.names, frame.columns, where)
        for name in wanted.names:
            if (held := frame.schema[name].dataType.typeName()) in ("array", "map", "struct", "binary", "variant"):
                raise not_plain(name, held, where)
        columns = [f.col(f"`{name.replace('`', '``')}`").alias(str(i)) for i, name in enumerate(wanted.names)]
        return frame.select(*columns, "_metadata.file_path", "_metadata.row_index")

    def _mapped(self, frame: DataFrame, check: BatchCheck, wanted: Wanted) -> DataFrame:
        fields = pa.unify_schemas([schema(wanted), _PLACE])
        types = {pa.string(): "string", pa.int64(): "bigint"}
        return frame.mapInArrow(check, ", ".join(f"`{field.name}` {types[field.type]}" for field in fields))

    def _tell(self, place: str, unit: str, frame: DataFrame, reading: LogReading) -> None:
        """Count the rows and the invalid rows.

        Raises:
            LogError: a row may not be left out.
        """
        first = f.min(f.struct("file", "block", "place")).alias("first")
        counted = frame.where("rows is not null or reason is not null").groupBy("column", "reason")
        found = self._fetched(counted.agg(f.sum("rows").alias("read"), f.count("*").alias("number"), first))
        for row in found:
            if row.reason is None:
                reading.rows += row.read
                reading.add_unnamed(frozenset(json.loads(row.column)))
        faults = {Fault(row.column, row.reason): row for row in found if row.reason is not None}
        for fault, row in sorted(faults.items(), key=lambda item: (item[0].reason not in FATAL, item[1].first)):
            if not reading.skip or fault.reason in FATAL:
                raise refusal(fault, self._where(place, unit, row.first))
            reading.left_out[fault] += row.number

    def _where(self, place: str, unit: str, first: Any) -> Where:
        before = 0
        if unit == "line" and first.block:
            before = self._text([first.file]).where(f"file_block_start < {first.block}").count()
        name = unquote(first.file).removeprefix("file:").replace("///", "/")
        return Where(place if name.endswith(place) else name, unit, before + first.place + 1)

    def _fetch(self, text: str, at: Path) -> None:
        """Write the rows of a text to a file, sorted by the bytes of the first column."""
        with at.open("w", encoding="utf-8") as file:
            for row in self._run(f"select * from ({text}) bounded order by grp"):
                cells = [cell if isinstance(cell, str) else int(cell) for cell in row]
                file.write(json.dumps(cells) + "\n")

    def _run(self, text: str) -> Iterator[Any]:
        try:
            yield from self._session.sql(text).toLocalIterator()
        except PySparkException:
            raise InputError(UNREADABLE) from None

    def _fetched(self, frame: DataFrame) -> list[Any]:
        try:
            return list(frame.collect())
        except PySparkException as error:
            lacking = "the workers of Spark need kanon-dp[spark]: install it there"
            raise InputError(lacking if "ModuleNotFoundError" in str(error) else UNREADABLE) from None


def _layouts(place: str, heads: Mapping[str, bytes], wanted: Wanted) -> tuple[dict[str, Form], dict[str, LogLayout]]:
    """The form of each file, and the layouts of those with lines, from their first lines."""
    forms: dict[str, Form] = {}
    layouts = {}
    for name, head in heads.items():
        where = Where(place)
        first = BufferedReader(BytesIO(head))
        forms[name] = form_of(first, where)
        if forms[name] in ("csv", "json"):
            layouts[name] = layout_of(forms[name], first, wanted.names, where)
    return forms, layouts


def _check_lines(layouts: Mapping[str, LogLayout], wanted: Wanted) -> BatchCheck:
    """Check lines on a worker. The header of CSV is line 0 of block 0."""

    def check(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        seen: Counter[tuple[str, int]] = Counter()
        for batch in batches:
            for (file, block), part in _runs(batch):
                lines, first, layout = part.column(0).to_pylist(), seen[file, block], layouts[file]
                seen[file, block] += len(lines)
                if block == first == 0:
                    lines[0] = b"" if layout.names else lines[0].removeprefix(BOM)
                checked = check_block(b"\n".join(lines) + b"\n", layout, wanted)
                yield from _placed(checked, file, block, first)

    return check


def _check_arrays(wanted: Wanted) -> BatchCheck:
    """Check whole JSON arrays on a worker."""

    def check(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for content, file, _ in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                yield from _placed(check_array(content.removeprefix(BOM), wanted), file, 0, 0)

    return check


def _check_columns(wanted: Wanted) -> BatchCheck:
    """Check rows of Parquet on a worker."""

    def check(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for (file, first), part in _runs(batch, index=True):
                cells = pa.RecordBatch.from_arrays(part.columns[:-2], names=list(wanted.names))
                yield from _placed(check_batch(cells, wanted), file, 0, first)

    return check


def _runs(batch: pa.RecordBatch, *, index: bool = False) -> Iterator[tuple[tuple[str, int], pa.RecordBatch]]:
    """The parts of a batch that come from one block of a file, or with ``index`` from consecutive rows of one file."""
    *_, files, numbers = batch.columns
    changes = np.diff(files.dictionary_encode().indices.to_numpy()) != 0
    changes |= np.diff(numbers.to_numpy()) != (1 if index else 0)
    edges = [0, *(np.flatnonzero(changes) + 1).tolist(), batch.num_rows]
    for start, end in pairwise(edges):
        if end > start:
            yield (files[start].as_py(), numbers[start].as_py()), batch.slice(start, end - start)


def _placed(checked: Checked, file: str, block: int, first: int) -> Iterator[pa.RecordBatch]:
    """The rows of a piece: used ones with values, invalid ones with a reason, and one with the number of rows."""
    told: list[tuple[Any, ...]] = [(file, block, first + place, None, *fault) for place, fault in checked.faults]
    told.append((file, block, first, checked.rows, json.dumps(sorted(checked.unnamed)), None))
    columns = [pa.array(column, field.type) for column, field in zip(zip(*told, strict=True), _PLACE, strict=True)]
    values = checked.table
    for table in (
        pa.Table.from_arrays([*values.columns, *(pa.nulls(len(values), field.type) for field in _PLACE)],
                             names=values.column_names + _PLACE.names),
        pa.Table.from_arrays([*(pa.nulls(len(told), field.type) for field in values.schema), *columns],
                             names=values.column_names + _PLACE.names),
    ):  # fmt: skip
        yield from table.combine_chunks().to_batches()
