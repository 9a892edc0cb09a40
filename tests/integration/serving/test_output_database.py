"""Statuses in a database: what files say, in one transaction, whatever else the database has."""

import sqlite3
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import duckdb
import pytest

from kanon.errors import ConfigurationError
from kanon.serving import output, output_database
from kanon.serving.gating import NamedSet, ReleasedStatuses
from kanon.serving.output import TableDescription
from kanon.serving.output_database import append, written
from tests.integration.serving.own_joins import FIRST, PERIOD

FORMS = ("s.db", "s.sqlite", "s.duckdb")
TEXTS = ['a "quoted", one', "two\nlines", "é漢", "NULL", " ", "'; DROP TABLE statuses; --"]
HISTORY = [{0, 1, 2}, {0, 1, 2}, {1, 3, 4, 5}, set(), {0, 5}]


def released(step: int, true: set[int], deployment: str = "d") -> ReleasedStatuses:
    return ReleasedStatuses(
        deployment, FIRST + step, f"digest {step}", frozenset(NamedSet("grid", TEXTS[n]) for n in true)
    )


def connect(file: Path) -> Any:
    return duckdb.connect(str(file)) if file.suffix == ".duckdb" else sqlite3.connect(file)


def asked(file: Path, sql: str) -> list[tuple[Any, ...]]:
    with closing(connect(file)) as connection:
        return connection.execute(sql).fetchall()


@pytest.mark.parametrize("name", FORMS)
def test_a_database_gets_the_rows_of_a_file(tmp_path: Path, name: str) -> None:
    file, table = tmp_path / name, tmp_path / "s.parquet"
    assert written(file) is None
    for step, true in enumerate(HISTORY):
        statuses = released(step, true)
        assert append(file, statuses, PERIOD) == output.append(table, statuses, PERIOD)
        assert written(file) == output.written(table) == TableDescription("d", FIRST + step, f"digest {step}")
    with duckdb.connect() as plain:
        expected = plain.execute(f"SELECT value, type, step, status FROM '{table}'").fetchall()
    assert asked(file, "SELECT value, type, step, status FROM statuses") == expected
    (time,) = asked(file, "SELECT CAST(time AS TEXT) FROM statuses")[0]
    assert datetime.fromisoformat(time).astimezone(UTC) == datetime.fromtimestamp(FIRST * PERIOD, UTC)


@pytest.mark.parametrize("name", FORMS)
def test_other_tables_stay(tmp_path: Path, name: str) -> None:
    file = tmp_path / name
    with closing(connect(file)) as connection:
        connection.execute("CREATE TABLE shop (item INTEGER)")
        connection.execute("INSERT INTO shop VALUES (7)")
        connection.commit()
    assert written(file) is None
    append(file, released(0, {0}), PERIOD)
    assert asked(file, "SELECT * FROM shop") == [(7,)]


class Dies(BaseException):
    """The process stops."""


class DiesAt:
    """A connection whose process stops before its n-th statement."""

    def __init__(self, connection: Any, number: int) -> None:
        self._connection, self._left = connection, number
        self.close = connection.close

    def __getattr__(self, name: str) -> Any:
        def statement(*given: Any) -> Any:
            self._left -= 1
            if not self._left:
                raise Dies
            return getattr(self._connection, name)(*given)

        return statement


@pytest.mark.parametrize("name", FORMS)
def test_a_process_that_stops_at_any_statement_leaves_rows_and_digest_as_they_were(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    file, right = tmp_path / name, output_database._library
    append(file, released(0, {0, 1}), PERIOD)
    everything = "SELECT value, statuses.step, status, digest FROM statuses, statuses_written"
    before, stops = asked(file, everything), 0
    for number in range(1, 100):
        connect_, error = right(file)
        dying = lambda path, number=number, connect_=connect_: DiesAt(connect_(path), number)  # noqa: E731
        monkeypatch.setattr(output_database, "_library", lambda _, dying=dying, error=error: (dying, error))
        try:
            append(file, released(1, {1, 2}), PERIOD)
        except Dies:
            stops += 1
            assert asked(file, everything) == before
        else:
            break
    assert stops == 8
    assert written(file) == TableDescription("d", FIRST + 1, "digest 1")
    assert len(asked(file, "SELECT value FROM statuses")) == 4


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("tables", [("statuses",), ("statuses_written",), ("statuses", "statuses_written")])
def test_tables_of_others_are_refused(tmp_path: Path, name: str, tables: tuple[str, ...]) -> None:
    with closing(connect(tmp_path / name)) as connection:
        for table in tables:
            connection.execute(f"CREATE TABLE {table} (deployment TEXT, step INTEGER, digest TEXT)")
        connection.commit()
    with pytest.raises(ConfigurationError, match="was not written by `kanon gate`: choose another name"):
        written(tmp_path / name)


@pytest.mark.parametrize("name", FORMS)
def test_a_table_that_was_changed_is_refused_before_anything_is_appended(tmp_path: Path, name: str) -> None:
    append(tmp_path / name, released(0, {1}), PERIOD)
    with closing(connect(tmp_path / name)) as connection:
        connection.execute("ALTER TABLE statuses RENAME COLUMN status TO state")
        connection.commit()
    with pytest.raises(ConfigurationError, match="cannot be used as a database"):
        written(tmp_path / name)


@pytest.mark.parametrize("name", FORMS)
def test_a_file_that_is_no_database_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("value,type\n" * 100)
    with pytest.raises(ConfigurationError, match=r"cannot be used as a database .*: close it in other programs, or"):
        written(tmp_path / name)


def test_a_database_that_another_program_writes_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "s.db"
    append(file, released(0, {0}), PERIOD)
    right = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", lambda *given, **more: right(*given, **more, timeout=0))
    with closing(right(file, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(ConfigurationError, match="database is locked"):
            append(file, released(1, {1}), PERIOD)
