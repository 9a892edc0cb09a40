"""The log of joins on disk: one SQLite file a step, so that old joins leave with their file.

A row is the set key, the token and the number of the type. The rows are kept in the order of their keys: so the file
does not show in which order joins arrived, or which came in one request; and a join that is repeated changes nothing.

One thread writes at a time. It commits all joins that wait, at once, those of other threads too; then all of them are
answered: a join that was answered survives a loss of power. A step is closed for good before it is evaluated, so no
join can come too late for it.
"""

import sqlite3
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np

from kanon.disk import connect, transaction
from kanon.errors import ThrottledError
from kanon.gate.mechanism.tape import check_set_key
from kanon.gate.merging import JOIN, Joins
from kanon.gate.slots import Layout, Layouts
from kanon.gate.storage.aws.step_log import TOKEN_BYTES, Row

ONE_SLOT = Layouts((Layout(1, 0),))
"""On one machine there is one slot. Its parts are as many as its states need."""
SUFFIX = ".db"
GROUPS_A_COMMIT = 10_000
MOST_WAITING = 100_000
"""More joins than this are not accepted until some are stored: the clients try again."""
SCHEMA = "CREATE TABLE IF NOT EXISTS joins (entry BLOB PRIMARY KEY) WITHOUT ROWID"
SEALED = "CREATE TABLE IF NOT EXISTS sealed (set_key BLOB PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID"
"""Only the file of a step with joins of a listed type has it."""

Read = TypeVar("Read")


@dataclass(slots=True)
class _Group:
    """Rows that wait. ``stored``: whether they are stored; None while they wait."""

    rows: Sequence[Row]
    stored: bool | None = None


def entry_of(set_key: bytes, token: int, type_number: int) -> bytes:
    """A row of the log."""
    return set_key + token.to_bytes(TOKEN_BYTES, "big") + bytes([type_number])


class DiskLog:
    """The log of a directory.

    Args:
        directory: its folder.
        numbers: the number of each type.
        closed_through: no join may enter this step or an earlier one; None for all.
    """

    layouts = ONE_SLOT

    def __init__(self, directory: Path, numbers: Mapping[str, int], closed_through: int | None) -> None:
        self._directory, self._numbers, self._closed_through = directory, numbers, closed_through
        self._waiting: list[_Group] = []
        self._count = 0
        self._queue = threading.Lock()
        """For what waits. Who has both locks takes ``_lock`` first."""
        self._lock = threading.Lock()
        """For the files: held while joins are stored."""
        self._files: dict[int, sqlite3.Connection] = {}
        directory.mkdir(exist_ok=True)

    # Writing

    def put(self, row: Row) -> None:
        """Put one row; it is stored when this returns. Putting the same row again changes nothing.

        Raises:
            ThrottledError: it is not stored: its step is closed, or too many joins wait, or the disk is full.
        """
        if self.put_groups([[row]]) != [True]:
            raise ThrottledError("the log did not store the join")

    def put_groups(self, groups: Sequence[Sequence[Row]]) -> list[bool]:
        """Put groups of rows. Returns for each group whether it is stored."""
        own = [self._queued(group) for group in groups]
        with self._lock:  # the first thread stores what all of them wait for
            while any(group.stored is None for group in own):
                self._write(self._taken())
        return [bool(group.stored) for group in own]

    def _queued(self, rows: Sequence[Row]) -> _Group:
        for row in rows:
            check_set_key(row.set_key)
        with self._queue:
            if self._count + len(rows) > MOST_WAITING:
                return _Group(rows, stored=False)
            group = _Group(rows)
            self._waiting.append(group)
            self._count += len(rows)
            return group

    def _taken(self) -> list[_Group]:
        with self._queue:
            taken, self._waiting = self._waiting[:GROUPS_A_COMMIT], self._waiting[GROUPS_A_COMMIT:]
            self._count -= sum(len(group.rows) for group in taken)
            return taken

    def _write(self, groups: Sequence[_Group]) -> None:
        """Store groups, a transaction for each step. Whatever happens, none of them waits any more."""
        stored: dict[int, bool] = {}
        try:
            for step in {row.step for group in groups for row in group.rows}:
                stored[step] = self._store(step, [row for group in groups for row in group.rows if row.step == step])
        finally:
            for group in groups:
                group.stored = all(stored.get(row.step, False) for row in group.rows)

    def _store(self, step: int, rows: Sequence[Row]) -> bool:
        if self._closed_through is not None and step <= self._closed_through:
            return False
        sealed = {row.set_key: row.sealed for row in reversed(rows) if row.sealed}
        try:
            self._insert(step, map(self._entry, rows), sealed)
        except sqlite3.Error:  # for example a full disk; the client tries again
            return False
        return True

    def _insert(self, step: int, entries: Iterable[bytes], sealed: Mapping[bytes, bytes] | None = None) -> None:
        database = self._file(step)
        with transaction(database):
            database.executemany("INSERT OR IGNORE INTO joins VALUES (?)", ((entry,) for entry in entries))
            if sealed:
                database.execute(SEALED)
                database.executemany("INSERT OR IGNORE INTO sealed VALUES (?, ?)", sealed.items())

    def _entry(self, row: Row) -> bytes:
        return entry_of(row.set_key, row.token, self._numbers[row.type_name])

    def add(self, step: int, entries: Iterable[bytes]) -> None:
        """Put joins that are entries already into a step that is open; they are stored when this returns.

        Raises:
            ThrottledError: the step is closed.
            sqlite3.Error: the disk is full, for example.
        """
        with self._lock:
            if self._closed_through is not None and step <= self._closed_through:
                raise ThrottledError(f"step {step} is closed")
            self._insert(step, entries)

    def _file(self, step: int) -> sqlite3.Connection:
        if step not in self._files:
            database = connect(self._path(step))
            database.execute(SCHEMA)
            self._files[step] = database
        return self._files[step]

    # Reading

    def close_through(self, step: int) -> None:
        """Accept no join of ``step`` or an earlier step any more. What was answered is stored."""
        with self._lock:
            self._closed_through = step if self._closed_through is None else max(step, self._closed_through)
            self._close_before(self._closed_through + 1)

    def _close_before(self, step: int) -> None:
        for closed in [each for each in self._files if each < step]:
            self._files.pop(closed).close()

    def steps(self) -> list[int]:
        """The steps that have joins, oldest first."""
        return sorted(int(path.stem) for path in self._directory.glob(f"*{SUFFIX}") if path.stem.isdecimal())

    def count(self, step: int) -> int:
        """The number of joins of a step."""
        if not self._path(step).exists():
            return 0
        return int(self._read(step, lambda database: database.execute("SELECT COUNT(*) FROM joins").fetchone()[0]))

    def joins(self, step: int, first: bytes, end: bytes | None) -> Joins:
        """The joins of the sets from the key ``first`` up to the key ``end``, which is not included, sorted."""
        if not self._path(step).exists():
            return np.zeros(0, JOIN)

        def found(database: sqlite3.Connection) -> bytes:
            if end is None:
                rows = database.execute("SELECT entry FROM joins WHERE entry >= ?", (first,))
            else:
                rows = database.execute("SELECT entry FROM joins WHERE entry >= ? AND entry < ?", (first, end))
            return b"".join(entry for (entry,) in rows)

        return np.frombuffer(self._read(step, found), JOIN)

    def sealed(self, step: int, first: bytes, end: bytes | None) -> dict[bytes, bytes]:
        """The sealed values of the sets from the key ``first`` up to ``end``, which is not included, by set key."""

        def found(database: sqlite3.Connection) -> dict[bytes, bytes]:
            if database.execute("SELECT 1 FROM sqlite_master WHERE name = 'sealed'").fetchone() is None:
                return {}
            rows = database.execute(
                "SELECT set_key, value FROM sealed WHERE set_key >= ?1 AND (?2 IS NULL OR set_key < ?2)", (first, end)
            )
            return dict(rows)

        return self._read(step, found) if self._path(step).exists() else {}

    def _read(self, step: int, wanted: "Callable[[sqlite3.Connection], Read]") -> "Read":
        database = connect(self._path(step))
        try:
            database.execute(SCHEMA)  # a process that was killed may have left a file without the table
            return wanted(database)
        finally:
            database.close()

    # Keeping

    def forget_before(self, step: int) -> None:
        """Delete the files of the steps before ``step``."""
        with self._lock:  # a file that is deleted while it is open takes more joins, and loses them
            self._close_before(step)
        for old in self.steps():
            if old < step:
                for path in self._directory.glob(f"{old}{SUFFIX}*"):
                    path.unlink(missing_ok=True)

    def replace(self, entries: Mapping[bytes, bytes]) -> None:
        """Put other joins in the place of these, wherever they are. Free space keeps nothing of the old ones."""

        def replaced(database: sqlite3.Connection) -> None:
            database.execute("PRAGMA secure_delete = ON")
            with transaction(database):
                for old, new in entries.items():
                    if database.execute("DELETE FROM joins WHERE entry = ?", (old,)).rowcount:
                        database.execute("INSERT OR IGNORE INTO joins VALUES (?)", (new,))
            database.execute("PRAGMA wal_checkpoint(TRUNCATE)")

        for step in self.steps():
            self._read(step, replaced)

    def stop(self) -> None:
        """Accept no join any more, and close all files."""
        self.close_through(sys.maxsize)

    def _path(self, step: int) -> Path:
        return self._directory / f"{step}{SUFFIX}"
