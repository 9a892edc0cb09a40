"""Lists of the values that the crowd shares: published at each tick, kept as history, and read.

A list is post-processing of answers that are released anyway: the values of a listed type whose status is true at the
visible step. The lister opens each sealed value once. It publishes a list in one transaction, and does nothing for a
step that has one. So a repeated run changes nothing, and readers see a whole list or the one before.

``lists.db`` holds the last lists, and the values that were opened. All of it can be made again from the control file.
The history is a folder of Parquet files, ``lists/<type>/date=<day>/step=<step>/values.parquet``.
"""

import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

from kanon.created import flush
from kanon.disk import Database, transaction
from kanon.errors import ConfigurationError
from kanon.gate.lists import KEPT, ListEntry, ReadableList, day, place_of_step, true_since, write_parquet
from kanon.gate.mechanism.searches import Searches
from kanon.gate.publishing import clock_step, next_tick
from kanon.gate.ranges import ListStep, bits_for, encode, first_of, most_hashes, number_of
from kanon.gate.storage.disk.control import SLOT
from kanon.gate.types import Type
from kanon.serving.directory import LISTS, Directory
from kanon.serving.secret_files import LIST_KEY, list_key

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

NAME, FOLDER = LISTS, "lists"
SCHEMA = """
CREATE TABLE IF NOT EXISTS opened (set_key BLOB PRIMARY KEY, value TEXT) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS lists (
    type TEXT, step INTEGER, bits INTEGER NOT NULL, count INTEGER NOT NULL, PRIMARY KEY (type, step)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS entries (
    type TEXT, step INTEGER, digest BLOB, value TEXT NOT NULL, since INTEGER NOT NULL,
    PRIMARY KEY (type, step, digest)) WITHOUT ROWID;
"""


class ListsFile(Database):
    """The last lists of a directory."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory / NAME, SCHEMA)

    def newest(self, type_name: str) -> ReadableList | None:
        """The newest list of a type."""
        return self.of_step(type_name, None)

    def of_step(self, type_name: str, step: int | None) -> ReadableList | None:
        """The list of a step; None for the newest one."""
        row = self.database.execute(
            "SELECT step, bits, count FROM lists WHERE type = ?1 AND (?2 IS NULL OR step = ?2)"
            " ORDER BY step DESC LIMIT 1",
            (type_name, step),
        ).fetchone()
        return None if row is None else ReadableList(*row)

    def page(
        self, type_name: str, found: ReadableList, after: bytes, most: int
    ) -> list[tuple[bytes, ListEntry]] | None:
        """Values behind the hash ``after`` with their hashes, in the order of hashes; None if the list is gone."""
        rows = self.database.execute(
            "SELECT digest, value, since FROM entries WHERE type = ? AND step = ? AND digest > ?"
            " ORDER BY digest LIMIT ?",
            (type_name, found.step, after, most),
        )
        values = [(bytes(digest), ListEntry(value, since)) for digest, value, since in rows]
        return values if self._has(type_name, found) else None

    def digests(self, type_name: str, step: int, first: bytes, end: bytes | None) -> list[bytes]:
        """The hashes from ``first`` up to ``end``, which is not included, sorted."""
        rows = self.database.execute(
            "SELECT digest FROM entries WHERE type = ?1 AND step = ?2 AND digest >= ?3 AND (?4 IS NULL OR digest < ?4)"
            " ORDER BY digest",
            (type_name, step, first, end),
        )
        return [bytes(digest) for (digest,) in rows]

    def range_file(self, of: ListStep, found: ReadableList, name: str) -> bytes | None:
        """A range file; None if the list has none of this name, or is gone."""
        number = number_of(name, found.bits)
        if number is None:
            return None
        end = first_of(number + 1, found.bits) if number + 1 < 1 << found.bits else None
        digests = self.digests(of.type_name, found.step, first_of(number, found.bits), end)
        return encode(of, found.bits, digests) if self._has(of.type_name, found) else None

    def _has(self, type_name: str, found: ReadableList) -> bool:
        """Whether a list is still there, after it was read: the lister may have forgotten it meanwhile."""
        return self.of_step(type_name, found.step) is not None


@dataclass
class Lister:
    """Publishes the lists of a directory.

    Attributes:
        directory: the deployment.
        review: a value is listed so many steps after it turned true, so that somebody can suppress it before.
        days: how long the history is kept.
        unopened: the number of values that could not be opened at the last run.
    """

    directory: Directory
    review: int = 0
    days: int = 90
    unopened: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self.file = ListsFile(self.directory.path)
        self.directory.closes(self.file)
        for type_ in self.types:
            if not 0 <= self.review <= type_.parameters.window:
                raise ConfigurationError(
                    f"type {type_.name!r}: a review of {self.review} steps must not be longer than its window of"
                    f" {type_.parameters.window} steps"
                )

    @cached_property
    def _key(self) -> "X25519PrivateKey":
        return list_key(self.directory.path / "secrets" / LIST_KEY)

    @property
    def types(self) -> list[Type]:
        """The listed types."""
        return [type_ for type_ in self.directory.types.values() if type_.listed]

    def visible(self, now: float) -> int | None:
        """The step of the answers at ``now``."""
        _, horizons = self.directory.control.read((), (SLOT,))
        through = horizons[SLOT].at(now) if SLOT in horizons else None
        settings = self.directory.settings
        return None if through is None else min(through, clock_step(now, settings.period, settings.publish_delay))

    def next_tick(self, now: float) -> int:
        """The first tick after ``now`` (Unix s)."""
        return next_tick(now, self.directory.settings.period, self.directory.settings.publish_delay)

    def behind(self, now: float) -> int:
        """By how many steps the oldest list is behind the answers; each type must have one."""
        step = self.visible(now)
        if step is None:
            return 0
        newest = [self.file.newest(type_.name) for type_ in self.types]
        return max((step - found.step if found else step + 1 for found in newest), default=0)

    def publish(self, now: float) -> int:
        """Publish the list of each type at ``now``. Returns the number of lists that are new.

        Raises:
            ConfigurationError: the key of the lister is missing.
            OSError, sqlite3.Error: the disk is full, for example. The next run continues.
        """
        control = self.directory.control.database
        control.execute("BEGIN")  # horizon and statuses of one moment
        try:
            step = self.visible(now)
            self.unopened = 0
            done = 0 if step is None else sum(self._publish(type_, step) for type_ in self.types)
        finally:
            control.execute("ROLLBACK")
        self._keep(now)
        return done

    def _publish(self, type_: Type, step: int) -> bool:
        """Publish the list of a type at a step, unless there is one of this step or a later one.

        Statuses have two crossings of a set. If evaluation is more than a hold ahead of the step, as after an outage,
        they may lack the one that counts there. Then the list before stays.
        """
        newest, restart = self.file.newest(type_.name), type_.parameters.restart
        hold = type_.parameters.window if restart is None else restart.hold
        if (newest is not None and newest.step >= step) or self.directory.evaluated_through > step + hold:
            return False
        database = self.file.database
        with transaction(database):
            database.execute("DELETE FROM entries WHERE type = ? AND step = ?", (type_.name, step))
            rows = ((type_.name, step, sha, value, since) for sha, value, since in self._true(type_, step))
            database.executemany("INSERT INTO entries VALUES (?, ?, ?, ?, ?)", rows)
            digests = self.file.digests(type_.name, step, b"", None)
            by_value = database.execute(
                "SELECT value, since FROM entries WHERE type = ? AND step = ? ORDER BY value", (type_.name, step)
            )
            place = history_of(self.directory.path, type_.name) / place_of_step(step, self.directory.settings.period)
            write_history(place, (ListEntry(*row) for row in by_value))
            bits = bits_for(digests, most_hashes(type_.name))
            database.execute("INSERT INTO lists VALUES (?, ?, ?, ?)", (type_.name, step, bits, len(digests)))
            self._forget(type_.name)
        return True

    def _true(self, type_: Type, step: int) -> Iterator[tuple[bytes, str, int]]:
        """SHA-256, text and first true step of each value to list."""
        number = self.directory.segments.numbers[type_.name]
        for key, crossings, sealed in self.directory.control.listed(number):
            since = true_since(Searches.of(type_.parameters, key), crossings, step)
            if since is not None and since <= step - self.review and (value := self._opened(key, sealed)) is not None:
                yield sha256(value.encode()).digest(), value, since

    def _opened(self, key: bytes, sealed: bytes) -> str | None:
        """The value of a set, which is opened once; None if it cannot be."""
        known = self.file.database.execute("SELECT value FROM opened WHERE set_key = ?", (key,)).fetchone()
        if known is not None:
            return str(known[0])
        from kanon.gate.sealing import UnopenedValueError, opened

        try:
            value = opened(sealed, self._key, key).decode()
        except (UnopenedValueError, UnicodeDecodeError):
            self.unopened += 1
            return None
        self.file.database.execute("INSERT INTO opened VALUES (?, ?)", (key, value))
        return value

    def _forget(self, type_name: str) -> None:
        """Forget all lists of a type but the last ones."""
        database = self.file.database
        steps = database.execute("SELECT step FROM lists WHERE type = ? ORDER BY step DESC", (type_name,)).fetchall()
        for (old,) in steps[KEPT:]:
            database.execute("DELETE FROM entries WHERE type = ? AND step = ?", (type_name, old))
            database.execute("DELETE FROM lists WHERE type = ? AND step = ?", (type_name, old))

    def _keep(self, now: float) -> None:
        """Delete what is older than the history is kept, and values of sets whose statuses are gone."""
        oldest = day(now - self.days * 86_400)
        for folder in (self.directory.path / FOLDER).glob("*/date=*"):
            if folder.name.removeprefix("date=") < oldest:
                shutil.rmtree(folder)
        database = self.file.database
        database.execute("ATTACH DATABASE ? AS control", (str(self.directory.control.path),))
        try:
            database.execute("DELETE FROM opened WHERE set_key NOT IN (SELECT set_key FROM control.sealed)")
        finally:
            database.execute("DETACH DATABASE control")


# History


def history_of(directory: Path, type_name: str) -> Path:
    """The folder with the history of a type."""
    return directory / FOLDER / type_name


def write_history(file: Path, values: Iterable[ListEntry]) -> None:
    """Write the list of a step; whole, or not at all. One that exists is replaced."""
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    beside = file.with_name(".part")  # one process lists; what a killed one left is written again
    try:
        write_parquet(beside, values)
        flush(beside)
        beside.replace(file)
    finally:
        beside.unlink(missing_ok=True)
    flush(file.parent)
