"""Statuses in a database: the table ``statuses`` of a file of SQLite or DuckDB, and beside it who wrote it.

The rows are those of :mod:`kanon.serving.output`, and ``statuses_written`` has what the description of a file has. One
transaction writes both: a process that stops leaves both as they were.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import astuple
from pathlib import Path
from typing import Any, Protocol

from kanon.errors import ConfigurationError
from kanon.serving.gating import ReleasedStatuses
from kanon.serving.output import COLUMNS, TableDescription, changed, is_new

SQLITE, DUCKDB = (".db", ".sqlite"), (".duckdb",)
FORMS = (*SQLITE, *DUCKDB)
_MAKE = (
    "CREATE TABLE IF NOT EXISTS statuses (value {text}, type {text}, step {integer}, time {time}, status {boolean})",
    "CREATE TABLE IF NOT EXISTS statuses_written (deployment {text}, step {integer}, digest {text})",
)
_KINDS = {
    SQLITE: {"text": "TEXT", "integer": "INTEGER", "time": "TEXT", "boolean": "INTEGER"},
    DUCKDB: {"text": "VARCHAR", "integer": "BIGINT", "time": "TIMESTAMPTZ", "boolean": "BOOLEAN"},
}


_NAMES = {
    SQLITE: "SELECT name FROM sqlite_master",
    DUCKDB: "SELECT table_name FROM information_schema.tables",
}


class DatabaseConnection(Protocol):
    """A connection, of which SQLite and DuckDB have the same methods. Nothing is committed before COMMIT."""

    def execute(self, sql: str, parameters: Sequence[Any] = (), /) -> Any:
        """Run a statement."""

    def executemany(self, sql: str, parameters: Sequence[Sequence[Any]], /) -> Any:
        """Run it with each of several parameters."""


def is_database(file: Path) -> bool:
    """Whether the name of an output is that of a database."""
    return file.suffix.lower() in FORMS


def written(file: Path) -> TableDescription | None:
    """What was written to a database; None if it has no table of statuses.

    Raises:
        ConfigurationError: it is no database, or its table of statuses is not one of `kanon gate`.
    """
    if is_new(file):
        return None
    with _opened(file) as database:
        named = {name for (name,) in database.execute(_NAMES[_form(file)]).fetchall()}
        ours = named & {"statuses", "statuses_written"}
        rows = []
        if len(ours) == 2:
            rows = database.execute("SELECT deployment, step, digest FROM statuses_written").fetchall()
        if rows:  # a changed table is refused before rows are counted
            database.execute("SELECT value, type, step, time, status FROM statuses LIMIT 0")
    if not ours:
        return None
    try:
        (row,) = rows
        return TableDescription(*row)
    except ValueError as error:
        raise ConfigurationError(
            f"{file} has a table `statuses` that was not written by `kanon gate`: choose another name"
        ) from error


def append(file: Path, statuses: ReleasedStatuses, period: int) -> int:
    """Append what has changed to the table of statuses. Returns the number of changes.

    Raises:
        ConfigurationError: it cannot be read or written.
    """
    with _opened(file) as database:
        database.execute("BEGIN")
        for sql in _MAKE:
            database.execute(sql.format_map(_KINDS[_form(file)]))
        rows = database.execute("SELECT value, type, status FROM statuses ORDER BY step").fetchall()
        before = [dict(zip(("value", "type", "status"), row, strict=True)) for row in rows]
        changes = [tuple(row[name] for name in COLUMNS) for row in changed(before, statuses, period)]
        if _form(file) is SQLITE:
            changes = [(*row[:3], row[3].isoformat(sep=" "), row[4]) for row in changes]
        if changes:
            database.executemany("INSERT INTO statuses VALUES (?, ?, ?, ?, ?)", changes)
        database.execute("DELETE FROM statuses_written")
        described = TableDescription(statuses.deployment, statuses.step, statuses.digest)
        database.execute("INSERT INTO statuses_written VALUES (?, ?, ?)", astuple(described))
        database.execute("COMMIT")
    return len(changes)


def _form(file: Path) -> tuple[str, ...]:
    return DUCKDB if file.suffix.lower() in DUCKDB else SQLITE


@contextmanager
def _opened(file: Path) -> Iterator[DatabaseConnection]:
    """A connection. What was begun and not committed is undone.

    Raises:
        ConfigurationError: it is no database, or another process has it.
    """
    connect, error = _library(file)
    try:
        connection = connect(file)
        try:
            yield connection
        finally:
            connection.close()
    except error as problem:
        raise ConfigurationError(
            f"{file} cannot be used as a database ({problem}): close it in other programs, or choose another name"
        ) from problem


def _library(file: Path) -> tuple[Any, type[Exception]]:
    """How to connect to a database, and the errors of that."""
    if _form(file) is SQLITE:
        import sqlite3

        return (lambda path: sqlite3.connect(path, isolation_level=None)), sqlite3.Error
    import duckdb

    return (lambda path: duckdb.connect(str(path))), duckdb.Error
