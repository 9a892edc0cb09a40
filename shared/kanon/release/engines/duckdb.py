"""The bounded table by DuckDB: one machine, all files that ``kanon.joinlog`` reads, spilling to disk."""

import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

import duckdb
import pyarrow as pa

from kanon.joinlog import LogError
from kanon.joinlog.batches import gathered, read_tables
from kanon.joinlog.columns import schema
from kanon.joinlog.rows import LogReading
from kanon.release.bounding import Bounding
from kanon.release.engines.sql import DUCKDB, NO_ROWS, UNREADABLE, SqlTexts, operator_report
from kanon.release.errors import InputError, SpecificationError
from kanon.release.noising import PrivateTable, Sorting

T = TypeVar("T")

_INSERTED = 1 << 19
_TABLE = "bounded"
_SOURCE = "checked"


class DuckDB:
    """The engine for one machine.

    Args:
        memory: limit of its memory; the rest is spilled into a directory that only this user can read.
    """

    def __init__(self, memory: str = "1GiB") -> None:
        self._memory = memory

    @contextmanager
    def table(self, sources: Sequence[Path | str], bounding: Bounding, secret: str) -> Iterator[PrivateTable]:
        """The bounded table of local files. The secret appears in the engine's texts.

        Raises:
            InputError: a file or a row of it cannot be read. No message holds a value.
            SpecificationError: the memory limit is invalid.
        """
        with self._prepared(sources, bounding, secret) as (texts, connection, _):
            _run(connection, f"create temp table {_TABLE} as {texts.table()}")
            bins = {column: dict(_run(connection, text).fetchall()) for column, text in texts.bins().items()}
            measures = "".join(f", cast(m{i} as varchar) as m{i}" for i in range(len(bounding.measures)))

            def pieces(sorting: Sorting) -> Iterator[pa.Table]:
                end = " order by grp" if sorting == "by name" else ""
                return _pieces(connection, f"select grp, users{measures} from {_TABLE}{end}")

            yield PrivateTable(bounding, pieces, bins)

    def operator_report(self, sources: Sequence[Path | str], bounding: Bounding, secret: str) -> dict[str, Any]:
        """Exact numbers for the operator alone."""
        with self._prepared(sources, bounding, secret) as (texts, connection, reading):
            (counts,) = _run(connection, texts.operator_counts()).fetchall()
        return operator_report(counts, reading)

    @contextmanager
    def _prepared(
        self, sources: Sequence[Path | str], bounding: Bounding, secret: str
    ) -> Iterator[tuple[SqlTexts, duckdb.DuckDBPyConnection, LogReading]]:
        """The SQL texts of a bounding, and the connection that knows their source and list."""
        with tempfile.TemporaryDirectory(prefix="kanon-") as directory:  # mode 0700
            try:
                connection = duckdb.connect(
                    config={
                        "memory_limit": self._memory,
                        "temp_directory": directory,
                        "autoinstall_known_extensions": False,
                        "autoload_known_extensions": False,
                        "preserve_insertion_order": False,
                        "arrow_large_buffer_size": True,
                    }
                )
            except duckdb.Error:
                raise SpecificationError(f"--memory {self._memory}: write a size such as 1GiB or 800MB") from None
            with connection:
                if bounding.listed is not None:
                    connection.register("listed", pa.table({"grp": pa.array(bounding.listed, pa.string())}))
                reading = _load(connection, sources, bounding)
                yield SqlTexts(bounding, DUCKDB, _SOURCE, secret), connection, reading


def _load(connection: duckdb.DuckDBPyConnection, sources: Sequence[Path | str], bounding: Bounding) -> LogReading:
    """Read and check all files into a table with the bounding's columns."""
    reading = LogReading(skip=bounding.skip_bad_rows)
    names = list(bounding.columns)
    connection.register("rows", schema(bounding.wanted).empty_table().rename_columns(names))
    _run(connection, f"create temp table {_SOURCE} as select * from rows")
    empty = True
    try:
        files = (read_tables(path, bounding.wanted, reading) for path in map(_local, sources))
        for table in gathered(chain.from_iterable(files), _INSERTED):  # each one costs a query
            connection.register("rows", table.rename_columns(names))
            _run(connection, f"insert into {_SOURCE} select * from rows")
            empty = False
    except LogError as error:
        raise InputError(str(error)) from None
    connection.unregister("rows")
    if empty and bounding.listed is None:
        raise InputError(NO_ROWS)
    return reading


def _local(path: Path | str) -> Path:
    if isinstance(path, str):
        raise InputError(f"{path} is not a local file: use --engine spark, or copy it here")
    return path


def _run(connection: duckdb.DuckDBPyConnection, text: str) -> duckdb.DuckDBPyConnection:
    """Run SQL."""
    with _naming_errors():
        return _executed(connection, lambda: connection.execute(text))


def _pieces(connection: duckdb.DuckDBPyConnection, text: str) -> Iterator[pa.Table]:
    """The rows of a query in tables."""
    with _naming_errors():
        stream = _executed(connection, lambda: pa.RecordBatchReader.from_stream(connection.sql(text)))
        while (batch := _executed(connection, lambda: next(stream, None))) is not None:
            yield pa.Table.from_batches([batch])


@contextmanager
def _naming_errors() -> Iterator[None]:
    """An engine's message may hold parts of rows, so it is neither shown nor chained."""
    try:
        yield
    except (duckdb.OutOfMemoryException, pa.ArrowMemoryError):
        raise InputError("the engine ran out of memory or disk: raise --memory or free space for spilling") from None
    except (duckdb.Error, pa.ArrowException):
        raise InputError(UNREADABLE) from None


def _executed(connection: duckdb.DuckDBPyConnection, work: Callable[[], T]) -> T:
    """Work in another thread. With several threads of its own, DuckDB does not see Ctrl-C before a query ends."""
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(work)
        try:
            return running.result()
        except KeyboardInterrupt:
            connection.interrupt()
            raise
