"""Durable storage in a directory: SQLite files, and files that are written once."""

import os
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from kanon.created import PRIVATE, flush

SYNCHRONOUS = "FULL"
"""What was answered survives a loss of power."""
SECONDS_TO_WAIT = 30.0
"""An operator's command beside a running service waits this long for a file."""
UNFINISHED = ".part"
"""How the name of a file ends while it is written. It begins with a dot."""


class Database:
    """A SQLite file. Any thread may use it; each has a connection of its own."""

    def __init__(self, path: Path, schema: str) -> None:
        self.path = path
        self._schema = schema
        self._of_thread = threading.local()
        self._connections: list[sqlite3.Connection] = []

    @property
    def database(self) -> sqlite3.Connection:
        """The connection of this thread."""
        found: sqlite3.Connection | None = getattr(self._of_thread, "connection", None)
        if found is None:
            found = connect(self.path)
            found.executescript(self._schema)
            self._of_thread.connection = found
            self._connections.append(found)
        return found

    def close(self) -> None:
        """Close the connections of all threads."""
        for connection in self._connections:
            connection.close()
        self._connections.clear()
        self._of_thread = threading.local()


def connect(path: Path) -> sqlite3.Connection:
    """A connection on which a statement outside of :func:`transaction` is one of its own, durable when it returns."""
    connection = sqlite3.connect(path, timeout=SECONDS_TO_WAIT, isolation_level=None, check_same_thread=False)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute(f"PRAGMA synchronous = {SYNCHRONOUS}")
    return connection


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """All statements take effect, or none."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:  # a full disk, for example, has ended it already
            connection.execute("ROLLBACK")
        raise


def put_file(path: Path, content: bytes) -> bool:
    """Write a file that only this user can read, unless it exists; whole, or not at all. Its folder must exist.

    Returns:
        Whether it was written. In both cases the file is durable when this returns.
    """
    beside = path.with_name(f".{os.urandom(8).hex()}{UNFINISHED}")
    handle = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(beside, path)
        except FileExistsError:
            written = False
        else:
            written = True
    finally:
        with suppress(FileNotFoundError):
            beside.unlink()
    flush(path.parent)
    return written


def forget_unfinished(folder: Path) -> None:
    """Delete what processes that stopped had begun to write."""
    for path in folder.rglob(f".*{UNFINISHED}"):
        path.unlink(missing_ok=True)
