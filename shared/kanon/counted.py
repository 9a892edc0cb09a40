"""Files that notice when they are lost, or were overwritten with an older one.

A counted file holds the number of its changes. The name of an empty file, such as ``seen/control.db-17``, repeats it:
after the change, and before anybody is told of it. So wherever a process stops, no name is ahead of its file. One that
is ahead says that somebody put an older file there. A whole older directory that is copied over this one brings the
names that it had, and takes none away.

It notices no file that is older by changes of which nobody was told: that is as if the process had stopped before them.
"""

import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from kanon.created import PRIVATE, flush
from kanon.disk import Database
from kanon.errors import ConfigurationError

FOLDER = "seen"
TABLE = "CREATE TABLE IF NOT EXISTS changes (one INTEGER PRIMARY KEY CHECK (one = 1), number INTEGER NOT NULL);"
ONE_MORE = "INSERT INTO changes VALUES (1, 1) ON CONFLICT (one) DO UPDATE SET number = number + 1"
EVENTS = ("INSERT", "UPDATE", "DELETE")


def counting(name: str, event: str) -> str:
    """A statement that counts each row of an ``event``, such as ``DELETE ON types``."""
    return f"CREATE TRIGGER IF NOT EXISTS counted_{name} AFTER {event} BEGIN {ONE_MORE}; END;"


def counting_all(*tables: str) -> str:
    """Statements that count each row that is changed in these tables."""
    return "".join(counting(f"{table}_{event}", f"{event} ON {table}") for table in tables for event in EVENTS)


class Counted(Database):
    """A file that counts its changes, with what of its ``schema`` counts them.

    Attributes:
        OLDER: what could happen with an older file, and what a new generation does.

    Args:
        path, schema: as of a database.
        accept_older: open it even if it was overwritten.
    """

    OLDER = "it lacks what was done since", "it ends what the file may lack"

    def __init__(self, path: Path, schema: str, *, accept_older: bool = False) -> None:
        super().__init__(path, TABLE + schema)
        self._accepted = accept_older

    @property
    def database(self) -> sqlite3.Connection:
        """The connection of this thread.

        Raises:
            ConfigurationError: the file was overwritten with an older one.
        """
        found = super().database
        if not self._accepted:
            if self._last_seen() > _number(found):
                harm, cure = self.OLDER
                raise ConfigurationError(
                    f"{self.path} is lost, or was overwritten with an older file: {harm}. Run `kanon operate"
                    f" new-generation --data {self.path.parent} --original none`: {cure}"
                )
            self._accepted = True
        return found

    @property
    def overwritten(self) -> bool:
        """Whether the file is older than it was, or missing."""
        seen = self._last_seen()  # first: another process may change the file now
        return seen > 0 and (not self.path.exists() or seen > _number(self.database))

    def remember(self) -> None:
        """Repeat the number of changes outside of the file; durable when this returns."""
        if self.database.in_transaction:
            return  # what it counts may yet be undone
        number, before = _number(self.database), list(self._names())
        if number <= max((each for each, _ in before), default=0):
            return
        folder = self.path.parent / FOLDER
        folder.mkdir(mode=0o700, exist_ok=True)
        os.close(os.open(folder / f"{self.path.name}-{number}", os.O_WRONLY | os.O_CREAT, PRIVATE))
        flush(folder)
        for _, path in before:
            path.unlink(missing_ok=True)

    def count_on(self) -> None:
        """Accept an older file: its next changes are counted from the last one that was seen."""
        self.database.execute(
            "INSERT INTO changes VALUES (1, ?1) ON CONFLICT (one) DO UPDATE SET number = MAX(number, ?1)",
            (self._last_seen() + 1,),
        )

    def remove(self) -> None:
        """Delete the file, and then what is known of its changes."""
        self.close()
        for each in (*self.path.parent.glob(f"{self.path.name}*"), *(path for _, path in self._names())):
            each.unlink(missing_ok=True)

    def close(self) -> None:
        """Remember the changes, and close the connections of all threads."""
        try:
            if self._accepted and self._connections and self.path.exists():
                self.remember()
        finally:
            super().close()

    def _last_seen(self) -> int:
        return max((number for number, _ in self._names()), default=0)

    def _names(self) -> Iterator[tuple[int, Path]]:
        for path in (self.path.parent / FOLDER).glob(f"{self.path.name}-*"):
            number = path.name.rpartition("-")[2]
            if number.isdecimal():  # what an editor or a copying program left is no name
                yield int(number), path


def _number(database: sqlite3.Connection) -> int:
    row = database.execute("SELECT number FROM changes").fetchone()
    return 0 if row is None else int(row[0])
