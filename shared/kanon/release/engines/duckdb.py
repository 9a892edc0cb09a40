"""The bounded table by DuckDB: one machine, files of CSV (also gzipped) and Parquet, spilling to disk."""

import csv
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from io import TextIOWrapper
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from kanon.release.bounding import Bounding
from kanon.release.engines.sql import DUCKDB, UNREADABLE, Texts, require
from kanon.release.errors import InputError, SpecificationError
from kanon.release.publishing import PrivateTable, Row

Run = Callable[[str], duckdb.DuckDBPyConnection]

_FETCHED = 4096
_TABLE = "bounded"


class DuckDB:
    """The engine for one machine.

    Args:
        memory: limit of its memory; the rest is spilled into a directory that only this user can read.
    """

    def __init__(self, memory: str = "1GiB") -> None:
        self._memory = memory

    @contextmanager
    def table(self, sources: Sequence[Path | str], bounding: Bounding, secret: str) -> Iterator[PrivateTable]:
        """The bounded table of local files with a header. The secret appears in the engine's texts.

        Raises:
            InputError: a file cannot be read, or lacks a column. No message holds anything of a row.
            SpecificationError: the memory limit is invalid.
        """
        with self._prepared(sources, bounding, secret) as (texts, run):
            run(f"create temp table {_TABLE} as {texts.table()}")
            bins = {column: dict(run(text).fetchall()) for column, text in texts.bins().items()}

            def rows() -> Iterator[Row]:
                result = run(f"select * from {_TABLE} order by grp")
                while some := result.fetchmany(_FETCHED):
                    yield from some

            yield PrivateTable(bounding, rows, bins)

    def operator_counts(self, sources: Sequence[Path | str], bounding: Bounding, secret: str) -> tuple[int, ...]:
        """Exact numbers for the operator alone, in the order of ``Texts.operator_counts``."""
        with self._prepared(sources, bounding, secret) as (texts, run):
            (counts,) = run(texts.operator_counts()).fetchall()
        return tuple(counts)

    @contextmanager
    def _prepared(self, sources: Sequence[Path | str], bounding: Bounding, secret: str) -> Iterator[tuple[Texts, Run]]:
        """The SQL texts of a bounding, and the function that runs them where their source and list are known."""
        with tempfile.TemporaryDirectory(prefix="kanon-") as directory:  # mode 0700
            try:
                connection = duckdb.connect(
                    config={
                        "memory_limit": self._memory,
                        "temp_directory": directory,
                        "autoinstall_known_extensions": False,
                        "autoload_known_extensions": False,
                        "preserve_insertion_order": False,
                    }
                )
            except duckdb.Error:
                raise SpecificationError(f"--memory {self._memory}: write a size such as 1GiB or 800MB") from None
            with connection:
                if bounding.listed is not None:
                    connection.register("listed", pa.table({"grp": pa.array(bounding.listed, pa.string())}))
                texts = Texts(bounding, DUCKDB, source(sources, bounding.columns), secret)
                yield texts, lambda text: _run(connection, text)


def _run(connection: duckdb.DuckDBPyConnection, text: str) -> duckdb.DuckDBPyConnection:
    """Run SQL. An engine's message may hold parts of rows, so it is neither shown nor chained."""
    try:
        return _executed(connection, text)
    except duckdb.OutOfMemoryException:
        raise InputError("the engine ran out of memory or disk: raise --memory or free space for spilling") from None
    except duckdb.Error:
        raise InputError(UNREADABLE) from None


def _executed(connection: duckdb.DuckDBPyConnection, text: str) -> duckdb.DuckDBPyConnection:
    """Run SQL in another thread. With several threads of its own, DuckDB does not see Ctrl-C before the query ends."""
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(connection.execute, text)
        try:
            return running.result()
        except KeyboardInterrupt:
            connection.interrupt()
            raise


def source(files: Sequence[Path | str], columns: Sequence[str]) -> str:
    """A relation with the columns of all files, as texts.

    Raises:
        InputError: a file cannot be read or lacks a column.
    """
    return "(" + " union all ".join(f"select * from ({_file(path, columns)})" for path in files) + ")"


def _file(path: Path | str, columns: Sequence[str]) -> str:
    if isinstance(path, str):
        raise InputError(f"{path} is not a local file: use --engine spark, or copy it here")
    names = header(path)
    require(path, columns, names)
    parquet = path.suffix == ".parquet"
    twice = [name for name in (columns if parquet else names) if names.count(name) > 1]
    if twice:
        raise InputError(f"{path} has two columns {twice[0]!r}: rename one")
    if set("*?[") & set(str(path)):
        raise InputError(f"{path}: DuckDB reads *, ? and [ in a name as a pattern: rename the file or its directory")
    literal, identifier = DUCKDB.literal(str(path)), DUCKDB.identifier
    if parquet:
        wanted = ", ".join(f"cast({identifier(column)} as varchar) as {identifier(column)}" for column in columns)
        return f"select {wanted} from read_parquet({literal})"
    wanted = ", ".join(identifier(column) for column in columns)
    types = ", ".join(f"{DUCKDB.literal(name)}: 'VARCHAR'" for name in names)
    return (
        f"select {wanted} from read_csv({literal}, auto_detect = false, header = true, delim = ',', quote = '\"',"
        f" escape = '\"', nullstr = '', ignore_errors = true, columns = {{{types}}})"
    )


def header(path: Path) -> list[str]:
    """The names of a file's columns.

    Raises:
        InputError: the file cannot be read.
    """
    try:
        if path.suffix == ".parquet":
            return list(pq.read_schema(path).names)
        # DuckDB reads rows ahead: invalid UTF-8 in them is a row error, not a file error.
        stream = pa.input_stream(str(path), compression="detect")
        with TextIOWrapper(stream, "utf-8-sig", errors="replace", newline="") as text:
            return next(csv.reader(text), [])
    except FileNotFoundError:
        raise InputError(f"there is no file {path}") from None
    except (OSError, csv.Error, pa.ArrowException):
        raise InputError(f"{path} cannot be read: it must be CSV (.csv, .csv.gz) or Parquet (.parquet)") from None
