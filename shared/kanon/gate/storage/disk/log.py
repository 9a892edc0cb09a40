"""The log of joins on disk: one SQLite file a step, so that old joins leave with their file.

A row is the set key, the token and the number of the type. The rows are kept in the order of their keys: so the file
does not show in which order joins arrived, or which came in one request; and a join that is repeated changes nothing.

One thread writes. It commits all joins that wait, at once, and then answers all of them: a join that was answered
survives a loss of power. A step is closed for good before it is evaluated, so no join can come too late for it.
"""

import queue
import sqlite3
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
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
JOINS_A_COMMIT = 10_000
MOST_WAITING = 100_000
"""More joins than this are not accepted until some are stored: the clients try again."""
SCHEMA = "CREATE TABLE IF NOT EXISTS joins (entry BLOB PRIMARY KEY) WITHOUT ROWID"
SEALED = "CREATE TABLE IF NOT EXISTS sealed (set_key BLOB PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID"
"""Only the file of a step with joins of a listed type has it."""

Read = TypeVar("Read")
_Waiting = tuple[Sequence[Row], "Future[bool]"]


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
        self._waiting: queue.Queue[_Waiting | None] = queue.Queue()
        self._count = 0
        self._lock = threading.Lock()
        self._files: dict[int, sqlite3.Connection] = {}
        directory.mkdir(exist_ok=True)
        self._writer = threading.Thread(target=self._write_all, name="log", daemon=True)
        self._writer.start()

    # Writing

    def put(self, row: Row) -> None:
        """Put one row; it is stored when this returns. Putting the same row again changes nothing.

        Raises:
            ThrottledError: it is not stored: its step is closed, or too many joins wait, or the disk is full.
        """
        if not self._put([row]).result():
            raise ThrottledError("the log did not store the join")

    def put_groups(self, groups: Sequence[Sequence[Row]]) -> list[bool]:
        """Put groups of rows. Returns for each group whether it is stored."""
        return [stored.result() for stored in [self._put(group) for group in groups]]

    def _put(self, rows: Sequence[Row]) -> "Future[bool]":
        for row in rows:
            check_set_key(row.set_key)
        stored: Future[bool] = Future()
        with self._lock:
            if self._count + len(rows) > MOST_WAITING:
                stored.set_result(False)
                return stored
            self._count += len(rows)
        self._waiting.put((rows, stored))
        return stored

    def _write_all(self) -> None:
        while (first := self._waiting.get()) is not None:
            waiting = [first]
            while len(waiting) < JOINS_A_COMMIT and not self._waiting.empty():
                following = self._waiting.get()
                if following is None:
                    self._waiting.put(None)
                    break
                waiting.append(following)
            self._write(waiting)

    def _write(self, waiting: Sequence[_Waiting]) -> None:
        """Store what waits, a transaction for each step, and answer."""
        with self._lock:
            self._count -= sum(len(rows) for rows, _ in waiting)
            stored = {step: self._store(step, waiting) for step in {row.step for rows, _ in waiting for row in rows}}
        for rows, answer in waiting:
            answer.set_result(all(stored[row.step] for row in rows))

    def _store(self, step: int, waiting: Sequence[_Waiting]) -> bool:
        if self._closed_through is not None and step <= self._closed_through:
            return False
        own = [row for rows, _ in waiting for row in rows if row.step == step]
        try:
            self._insert(step, map(self._entry, own), {row.set_key: row.sealed for row in reversed(own) if row.sealed})
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
            for closed in [each for each in self._files if each <= self._closed_through]:
                self._files.pop(closed).close()

    def steps(self) -> list[int]:
        """The steps that have joins, oldest first."""
        return sorted(int(path.name.removesuffix(SUFFIX)) for path in self._directory.glob(f"*{SUFFIX}"))

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
        """Store what waits, and stop."""
        self._waiting.put(None)
        self._writer.join()
        with self._lock:
            for database in self._files.values():
                database.close()
            self._files.clear()

    def _path(self, step: int) -> Path:
        return self._directory / f"{step}{SUFFIX}"
