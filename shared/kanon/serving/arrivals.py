"""The rows of a log that a deployment has counted: each one counts once, in the step in which it arrives.

It is a SQLite file of its own, because only ``kanon gate`` and ``kanon operate import`` need it. It holds

- a keyed hash of each row that was counted, for as long as a log may still bring the row again: one window;
- joins that are counted, and not in the log yet. They are recorded in one transaction with the hashes of their rows,
  and move to the log before anything is evaluated. So a process that stops counts no row twice, and loses none;
- the texts of the sets that may be true in the next window: answers name them;
- what was released at which step, as a chain of digests.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from kanon.counted import ONE_MORE, Counted, counting
from kanon.disk import transaction
from kanon.gate.names import client_token, set_key
from kanon.gate.storage.disk.log import entry_of
from kanon.gate.types import Type
from kanon.keys import Secret

if TYPE_CHECKING:
    from kanon.gate.storage.disk.log import DiskLog
    from kanon.gate.storage.protocols import Manifest
    from kanon.joinlog.numbered import JoinBatch, Texts

NAME = "arrivals.db"
ROW_BYTES = 16
ENTRIES_A_MOVE = 50_000
CACHE_KIB = 1 << 16
"""Hashes come in no order, so each may change another page of the file."""
SCHEMA = f"""
PRAGMA secure_delete = ON;
PRAGMA cache_size = -{CACHE_KIB};
CREATE TABLE IF NOT EXISTS seen (row BLOB PRIMARY KEY, through INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS waiting (step INTEGER, entry BLOB, PRIMARY KEY (step, entry)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS texts (
    set_key BLOB PRIMARY KEY, type TEXT NOT NULL, text TEXT NOT NULL, through INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS released (step INTEGER PRIMARY KEY, digest TEXT NOT NULL);
{counting("released", "INSERT ON released")}
"""


class Names(NamedTuple):
    """What names sets and clients in a deployment: its types, their numbers, and its secrets."""

    types: Mapping[str, Type]
    numbers: Mapping[str, int]
    pepper: Secret
    client_key: Secret

    @property
    def window(self) -> int:
        """The longest window: rows that are older count for nothing."""
        return max(type_.parameters.window for type_ in self.types.values())


@dataclass
class RowCounts:
    """What became of the rows of a log."""

    new: int = 0  # counted now
    known: int = 0  # counted before
    old: int = 0  # older than the window
    future: int = 0  # of a later time than now


@dataclass(frozen=True)
class Reader:
    """Turns the rows of a log into joins."""

    names: Names
    step: int  # that of now
    period: int  # the length of a step, s
    mark: int = -1  # the last step evaluated; after it, rows that had left the window were forgotten
    counted: RowCounts = field(default_factory=RowCounts)

    def usable(self, batch: "JoinBatch") -> Iterator[tuple[int, bytes, bytes, bytes]]:
        """Step, set, client and hash of each row that lies in the window."""
        steps = np.floor_divide(batch.times, self.period).astype(np.int64)
        old, future = steps <= max(self.step, self.mark) - self.names.window, steps > self.step
        self.counted.old += int(np.count_nonzero(old))
        self.counted.future += int(np.count_nonzero(future))
        rows = np.flatnonzero(~old & ~future)
        micros = np.rint(batch.times[rows] * 1e6).astype(np.int64)
        sets, clients = _texts(batch.sets, rows), _texts(batch.clients, rows)
        for step, micro, set_, client in zip(steps[rows].tolist(), micros.tolist(), sets, clients, strict=True):
            hashed = self.names.client_key.mac(b"row", micro.to_bytes(8, "big"), set_, client)
            yield step, set_, client, hashed[:ROW_BYTES]

    def entries(self, step: int, set_: bytes, client: bytes, keys: "dict[tuple[str, bytes], bytes]") -> Iterator[bytes]:
        """The joins of a row: one for each type whose window it lies in. ``keys`` keeps set keys."""
        names = self.names
        for name, type_ in names.types.items():
            if step > self.step - type_.parameters.window:
                key = keys.get((name, set_)) or keys.setdefault((name, set_), set_key(names.pepper, name, set_))
                token = client_token(names.client_key, key, "client", client, type_.parameters.client_bits)
                yield entry_of(key, token, names.numbers[name])


def _texts(column: "Texts", rows: "np.ndarray[tuple[int], np.dtype[np.int64]]") -> Iterator[bytes]:
    return map(column.texts.__getitem__, column.numbers[rows].tolist())


class Arrivals(Counted):
    """The record of a directory; ``accept_older`` opens it even if it is lost, or was overwritten with an older one."""

    OLDER = (
        "rows that it lacks would count again. Put it back from a backup, or accept that",
        "then they count once more",
    )

    def __init__(self, directory: Path, *, accept_older: bool = False) -> None:
        super().__init__(directory / NAME, SCHEMA, accept_older=accept_older)

    def wait(self, arrival: int, entries: Iterable[bytes]) -> None:
        """Let joins wait for the log, in the step ``arrival``."""
        rows = ((arrival, entry) for entry in entries)
        self.database.executemany("INSERT OR IGNORE INTO waiting VALUES (?, ?)", rows)

    def record(
        self,
        batches: "Iterable[JoinBatch]",
        reader: Reader,
        arrival: int,
        store: Callable[[int, Iterable[bytes]], None],
    ) -> None:
        """Record the new rows of a log with what ``store`` does with each; none of them, if one cannot be read."""
        database = self.database
        with transaction(database):
            for batch in batches:
                keys: dict[tuple[str, bytes], bytes] = {}
                for step, set_, client, row in reader.usable(batch):
                    through = step + reader.names.window - 1
                    if not database.execute("INSERT OR IGNORE INTO seen VALUES (?, ?)", (row, through)).rowcount:
                        reader.counted.known += 1
                        continue
                    reader.counted.new += 1
                    store(step, reader.entries(step, set_, client, keys))
                self._name(keys, reader, arrival)
            if reader.counted.new:
                database.execute(ONE_MORE)

    def _name(self, keys: "Mapping[tuple[str, bytes], bytes]", reader: Reader, arrival: int) -> None:
        rows = (
            (key, name, text.decode(), arrival + reader.names.types[name].parameters.window - 1)
            for (name, text), key in keys.items()
        )
        self.database.executemany(
            "INSERT INTO texts VALUES (?, ?, ?, ?) ON CONFLICT (set_key) DO UPDATE SET through = excluded.through", rows
        )

    def finish(self, log: "DiskLog") -> None:
        """Move the joins that wait to the log. Moving one twice changes nothing."""
        for (step,) in self.database.execute("SELECT DISTINCT step FROM waiting").fetchall():
            entries = (entry for (entry,) in self.database.execute("SELECT entry FROM waiting WHERE step = ?", (step,)))
            while some := list(islice(entries, ENTRIES_A_MOVE)):
                log.add(step, some)
            self.database.execute("DELETE FROM waiting WHERE step = ?", (step,))

    def expire(self, step: int, true: Iterable[bytes]) -> None:
        """After ``step``: forget rows that have left the window, and texts of sets that can no longer become true.

        The texts of the sets that are ``true`` stay, whatever their age: an answer will say that they turned false.
        """
        with transaction(self.database):
            kept = ((step, key) for key in true)
            self.database.executemany("UPDATE texts SET through = MAX(through, ?) WHERE set_key = ?", kept)
            self.database.execute("DELETE FROM texts WHERE through < ?", (step,))
            self.database.execute("DELETE FROM seen WHERE through < ?", (step,))

    @property
    def empty(self) -> bool:
        """Whether no row was ever counted."""
        return self.database.execute("SELECT 1 FROM seen UNION ALL SELECT 1 FROM waiting LIMIT 1").fetchone() is None

    def clear(self) -> None:
        """Forget all rows."""
        with transaction(self.database):
            for table in ("seen", "waiting", "texts"):
                self.database.execute(f"DELETE FROM {table}")  # noqa: S608, one of three names

    def text(self, key: bytes) -> tuple[str, str] | None:
        """Type and text of a set; None if no row has named it in its window."""
        found = self.database.execute("SELECT type, text FROM texts WHERE set_key = ?", (key,)).fetchone()
        return None if found is None else (found[0], found[1])

    # What was released

    def release(self, manifest: "Manifest", key: Secret) -> None:
        """Record that the answers of a step are released: a digest of its states, and of all before it in the chain.

        It is keyed. Otherwise a reader could test guesses of the states, such as that there is no member at all.
        """
        if self.released(manifest.step) is None:
            before = self.database.execute("SELECT digest FROM released ORDER BY step DESC LIMIT 1").fetchone()
            parts = (piece.digest.encode() for piece in manifest.pieces)
            digest = key.mac(b"released", (before or ("",))[0].encode(), str(manifest.step).encode(), *parts).hex()
            self.database.execute("INSERT INTO released VALUES (?, ?)", (manifest.step, digest))

    def released(self, step: int) -> str | None:
        """The digest of the answers of a step; None if they were not released here."""
        found = self.database.execute("SELECT digest FROM released WHERE step = ?", (step,)).fetchone()
        return None if found is None else str(found[0])


def finish(directory: Path, log: "DiskLog") -> None:
    """Move joins that a process counted, and did not bring to the log before it stopped."""
    if (directory / NAME).exists():
        with closing(Arrivals(directory)) as arrivals:
            arrivals.finish(log)
