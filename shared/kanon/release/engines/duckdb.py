"""The bounded table by DuckDB: one machine, all files that ``kanon.joinlog`` reads, spilling to disk."""

import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from queue import Full, Queue
from typing import Any, TypeVar

import duckdb
import pyarrow as pa

from kanon.joinlog import LogError
from kanon.joinlog.batches import read_tables
from kanon.joinlog.columns import schema
from kanon.joinlog.rows import LogReading
from kanon.release.bounding import Bounding
from kanon.release.engines.sql import DUCKDB, NO_ROWS, UNREADABLE, SqlTexts, operator_report, refuse_unnamed
from kanon.release.errors import InputError, SpecificationError
from kanon.release.noising import PrivateTable, Sorting

T = TypeVar("T")

_TABLE = "bounded"
_SOURCE = "checked"
_FAILED = object()


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
        texts = SqlTexts(bounding, DUCKDB, _SOURCE, secret)
        with self._connected(bounding) as connection:
            rows = _Rows(sources, bounding)
            if texts.read_source_once:
                rows.store(connection, _SOURCE, _TABLE, texts.table())
            else:
                rows.store(connection, "rows", _SOURCE, "select * from rows")
                _run(connection, f"create temp table {_TABLE} as {texts.table()}")
            bins = {column: dict(_run(connection, text).fetchall()) for column, text in texts.bins().items()}
            measures = "".join(f", cast(m{i} as varchar) as m{i}" for i in range(len(bounding.measures)))

            def pieces(sorting: Sorting) -> Iterator[pa.Table]:
                end = " order by grp" if sorting == "by name" else ""
                return _pieces(connection, f"select grp, users{measures} from {_TABLE}{end}")

            yield PrivateTable(bounding, pieces, bins)

    def operator_report(self, sources: Sequence[Path | str], bounding: Bounding, secret: str) -> dict[str, Any]:
        """Exact numbers for the operator alone."""
        rows = _Rows(sources, bounding)
        with self._connected(bounding) as connection:
            text = SqlTexts(bounding, DUCKDB, _SOURCE, secret).operator_counts()
            rows.store(connection, _SOURCE, "counts", text)
            (counts,) = _run(connection, "select * from counts").fetchall()
        return operator_report(counts, rows.reading)

    @contextmanager
    def _connected(self, bounding: Bounding) -> Iterator[duckdb.DuckDBPyConnection]:
        """A connection that knows the list of a bounding."""
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
                yield connection


class _Rows:
    """The rows of all files with the bounding's columns, read and checked while the engine takes them, once."""

    def __init__(self, sources: Sequence[Path | str], bounding: Bounding) -> None:
        self._files, self._wanted, self._names = list(map(_local, sources)), bounding.wanted, list(bounding.columns)
        self.reading = LogReading(skip=bounding.skip_bad_rows)
        self._lacking = bounding.listed is None  # until there is a row
        self._waiting: Queue[Any] = Queue(4)

    def store(self, connection: duckdb.DuckDBPyConnection, name: str, table: str, text: str) -> None:
        """Store in a table what SQL computes from the rows, which it calls ``name``.

        Raises:
            InputError: a file or a row of it cannot be read, there are no rows, or none has a column of --where.
        """
        fields = schema(self._wanted).empty_table().rename_columns(self._names).schema
        connection.register(name, pa.RecordBatchReader.from_batches(fields, self._taken()))
        try:
            with _naming_errors():
                _executed(connection, lambda: connection.execute(f"create temp table {table} as {text}"), self._give)
        except LogError as error:
            raise InputError(str(error)) from None
        connection.unregister(name)
        refuse_unnamed(self.reading)
        if self._lacking:
            raise InputError(NO_ROWS)

    def _give(self, running: Future[Any]) -> None:
        """Read the files, for as long as the engine takes their rows. Here Ctrl-C ends a wait for a pipe."""
        last: object = _FAILED
        try:
            for batch in self._batches():
                if not _put(self._waiting, batch, running):
                    return
            last = None
        finally:
            _put(self._waiting, last, running)

    def _taken(self) -> Iterator[pa.RecordBatch]:
        """The rows that :meth:`_give` has read, in the engine's thread."""
        while (batch := self._waiting.get()) is not None:
            if batch is _FAILED:
                raise ValueError("the files are not read to their end")
            yield batch

    def _batches(self) -> Iterator[pa.RecordBatch]:
        for file in self._files:
            for table in read_tables(file, self._wanted, self.reading):
                self._lacking = False
                yield from table.rename_columns(self._names).to_batches()


def _put(waiting: Queue[Any], item: Any, running: Future[Any]) -> bool:
    """Whether an item is in the queue; it is not, if nobody takes one any more."""
    while not running.done():
        with suppress(Full):
            waiting.put(item, timeout=0.1)
            return True
    return False


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


def _executed(
    connection: duckdb.DuckDBPyConnection,
    work: Callable[[], T],
    meanwhile: Callable[[Future[T]], None] = lambda _: None,
) -> T:
    """Work in another thread. With several threads of its own, DuckDB does not see Ctrl-C before a query ends."""
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(work)
        try:
            meanwhile(running)
            return running.result()
        except KeyboardInterrupt:
            connection.interrupt()
            raise
