"""The control file: marks, manifests, horizon, statuses and immutable values of a deployment in one directory.

It is one SQLite file, so that a step is published in one transaction: its crossings, the horizon, the manifest and the
mark. A process that stops before it has done nothing; the next one evaluates the step again, from the same log and the
same parts, with the same noise.
"""

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from kanon.counted import Counted, counting, counting_all
from kanon.disk import transaction
from kanon.errors import ConfigurationError, FingerprintMismatchError, LeaseLostError
from kanon.gate.mechanism.tape import check_set_key
from kanon.gate.publishing import Horizon, moved_horizon
from kanon.gate.storage.protocols import Manifest, Piece, Sealed, Status

NAME = "control.db"
KEYS_A_QUERY = 500
MOST_TYPES = 255
"""The number of a type is one byte of a join."""
SLOT = 0
"""The one slot of a directory."""

SCHEMA = """
CREATE TABLE IF NOT EXISTS texts (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS fingerprints (
    owner TEXT, name TEXT, value TEXT NOT NULL, PRIMARY KEY (owner, name)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS types (number INTEGER PRIMARY KEY, name TEXT UNIQUE NOT NULL);
CREATE TABLE IF NOT EXISTS progress (
    one INTEGER PRIMARY KEY CHECK (one = 1), run INTEGER NOT NULL, evaluated_through INTEGER,
    through INTEGER, visible_from INTEGER, earlier INTEGER, earlier_from INTEGER, earliest INTEGER);
CREATE TABLE IF NOT EXISTS manifests (step INTEGER PRIMARY KEY, pieces TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS statuses (
    set_key BLOB PRIMARY KEY, earlier INTEGER, newest INTEGER, expires INTEGER,
    suppressed INTEGER NOT NULL DEFAULT 0) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS replaced (old BLOB PRIMARY KEY, new BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS sealed (
    set_key BLOB PRIMARY KEY, type INTEGER NOT NULL, value BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS unlisted (set_key BLOB PRIMARY KEY) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS api_keys (digest BLOB PRIMARY KEY, name TEXT UNIQUE NOT NULL, made INTEGER) WITHOUT ROWID;
"""
COUNTED = ("texts", "fingerprints", "types", "progress", "manifests", "replaced", "unlisted", "api_keys")
"""Crossings and sealed values change with the mark, or are forgotten."""
COUNTING = (
    counting_all(*COUNTED)
    + counting("suppressed", "INSERT ON statuses WHEN NEW.suppressed")
    + counting("changed", "UPDATE OF suppressed ON statuses WHEN NEW.suppressed <> OLD.suppressed")
)


class ControlFile(Counted):
    """The control file of a directory.

    Args:
        directory: the directory.
        accept_older: open it even if it was overwritten with an older one.
    """

    OLDER = (
        "the same noise could meet other joins",
        "it gives the directory noise of its own, and nobody enrols until no earlier join counts",
    )

    def __init__(self, directory: Path, *, accept_older: bool = False) -> None:
        super().__init__(directory / NAME, SCHEMA + COUNTING, accept_older=accept_older)

    # Immutable values: the interface of kanon.dynamo.fingerprints.Fingerprints

    def recorded(self, owner: str) -> dict[str, str]:
        """The fingerprints recorded for an owner."""
        return dict(self.database.execute("SELECT name, value FROM fingerprints WHERE owner = ?", (owner,)))

    def check(self, owner: str, fingerprints: Mapping[str, str], old: Collection[str] = ()) -> None:
        """Record new fingerprints and compare known ones, in one transaction.

        Args:
            owner: who compares.
            fingerprints: by their names.
            old: names that must be recorded already, unless the owner has never started.

        Raises:
            FingerprintMismatchError: an immutable value has changed, or one of ``old`` is not recorded.
        """
        with transaction(self.database):
            known = self.recorded(owner)
            for name, value in fingerprints.items():
                if known.get(name, value) != value or (known and name in old and name not in known):
                    raise FingerprintMismatchError(
                        f"{name.strip()} differs from what this deployment started with: restore it; changed parameters"
                        f" need a new type name"
                    )
            self.record(owner, fingerprints)

    def record(self, owner: str, fingerprints: Mapping[str, str]) -> None:
        """Record fingerprints without a comparison."""
        rows = [(owner, *each) for each in fingerprints.items()]
        self.database.executemany("INSERT OR REPLACE INTO fingerprints VALUES (?, ?, ?)", rows)

    def unrecord(self, owner: str, names: Iterable[str]) -> None:
        """Forget fingerprints."""
        rows = [(owner, name) for name in names]
        self.database.executemany("DELETE FROM fingerprints WHERE owner = ? AND name = ?", rows)

    def text(self, name: str) -> str | None:
        """A text of the deployment, None if it has none."""
        row = self.database.execute("SELECT value FROM texts WHERE name = ?", (name,)).fetchone()
        return None if row is None else str(row[0])

    def put_text(self, name: str, value: str) -> None:
        """Put a text of the deployment."""
        self.database.execute("INSERT OR REPLACE INTO texts VALUES (?, ?)", (name, value))

    def type_numbers(self, names: Iterable[str] = ()) -> dict[str, int]:
        """The number of each type that this deployment has ever had, with these; a number is never used again.

        Raises:
            ConfigurationError: they are too many.
        """
        with transaction(self.database):
            for name in names:
                self.database.execute("INSERT OR IGNORE INTO types (name) VALUES (?)", (name,))
            numbers = {name: number for number, name in self.database.execute("SELECT number, name FROM types")}
            if max(numbers.values(), default=0) > MOST_TYPES:
                raise ConfigurationError(
                    f"a directory has at most {MOST_TYPES} types in its life, retired ones included: use another one"
                )
        return numbers

    # Marks and manifests

    def begin_run(self) -> int:
        """The number of a new run; it is never used again."""
        row = self.database.execute(
            "INSERT INTO progress (one, run) VALUES (1, 1) ON CONFLICT DO UPDATE SET run = run + 1 RETURNING run"
        ).fetchone()
        return int(row[0])

    def evaluated_through(self) -> int | None:
        """The mark; None before the first step."""
        row = self.database.execute("SELECT evaluated_through FROM progress").fetchone()
        return None if row is None else row[0]

    def manifest(self) -> Manifest | None:
        """The newest manifest; None if there is none."""
        newest = self.database.execute("SELECT step, pieces FROM manifests ORDER BY step DESC LIMIT 1").fetchone()
        return None if newest is None else _manifest(*newest)

    def manifests(self) -> list[Manifest]:
        """All manifests that are kept, oldest first."""
        rows = self.database.execute("SELECT step, pieces FROM manifests ORDER BY step")
        return [_manifest(*row) for row in rows]

    def forget_manifests(self, steps: Iterable[int]) -> None:
        """Forget manifests; their parts may then be swept."""
        self.database.executemany("DELETE FROM manifests WHERE step = ?", [(step,) for step in steps])

    def begin_with(self, step: int, pieces: Sequence[Piece], until: str) -> None:
        """Put the manifest of the step before the first one, and remove the text ``until`` that said it was coming."""
        with transaction(self.database):
            self._put_manifest(step, pieces)
            self.database.execute("DELETE FROM texts WHERE name = ?", (until,))

    def restate(self, run: int, manifests: Sequence[Manifest], entries: Mapping[bytes, bytes]) -> None:
        """Put other manifests in the place of all: recovery starts from no others any more.

        Args:
            run: the run that has made them.
            manifests: oldest first; the last one has the states after the last evaluated step.
            entries: the joins of later steps that change with them, and what each one becomes.

        Raises:
            LeaseLostError: another run has begun, or the mark has moved.
        """
        with transaction(self.database):
            self._refuse_others(run, manifests[-1].step, None)
            self.database.execute("DELETE FROM manifests")
            for each in manifests:
                self._put_manifest(each.step, each.pieces)
            self.database.executemany("INSERT OR REPLACE INTO replaced VALUES (?, ?)", entries.items())

    def replaced(self) -> dict[bytes, bytes]:
        """Joins that :meth:`restate` has changed, and that may be in the log as they were."""
        return {bytes(old): bytes(new) for old, new in self.database.execute("SELECT old, new FROM replaced")}

    def forget_replaced(self) -> None:
        """The log has changed too. Nothing of the joins as they were is left in the file."""
        self.database.execute("PRAGMA secure_delete = ON")
        self.database.execute("DELETE FROM replaced")
        self.database.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def commit(
        self,
        run: int,
        before: int | None,
        step: int,
        pieces: Sequence[Piece],
        statuses: Iterable[Status],
        visible_from: int,
        sealed: Iterable[Sealed] = (),
    ) -> None:
        """Publish everything up to ``step`` in one transaction: crossings, horizon, manifest and mark.

        Args:
            run: the run that has evaluated it.
            before: the mark that was read; None before the first step.
            step: the last step that is complete now.
            pieces: the parts after it.
            statuses: the crossings.
            visible_from: the tick at which readers see the step (Unix s).
            sealed: the sealed values of the sets that crossed.

        Raises:
            LeaseLostError: another run has begun, or the mark has moved.
        """
        with transaction(self.database):
            self._refuse_others(run, before)
            self._write_statuses(statuses)
            self.database.executemany("INSERT OR REPLACE INTO sealed VALUES (?, ?, ?)", sealed)
            self._move_horizon(step, visible_from)
            self._put_manifest(step, pieces)
            self.database.execute("UPDATE progress SET evaluated_through = ?", (step,))
        self.remember()

    def _refuse_others(self, run: int, *marks: int | None) -> None:
        """Check that this run is the current one, and the mark one of these."""
        row = self.database.execute("SELECT run, evaluated_through FROM progress").fetchone()
        if row is None or row[0] != run or row[1] not in marks:
            raise LeaseLostError("another process has continued this deployment")

    def _put_manifest(self, step: int, pieces: Sequence[Piece]) -> None:
        text = json.dumps([list(piece) for piece in pieces])
        self.database.execute("INSERT OR REPLACE INTO manifests VALUES (?, ?)", (step, text))

    # Statuses

    def _write_statuses(self, statuses: Iterable[Status]) -> None:
        """Record crossings, unless later ones are recorded. The row of a suppressed set keeps being suppressed.

        The state of a set that was forgotten has one crossing. The one before it is kept here: until the tick readers
        may need it.
        """
        rows = ((key, at[0] if len(at) > 1 else None, at[-1], expires) for key, at, expires in statuses)
        self.database.executemany(
            "INSERT INTO statuses (set_key, earlier, newest, expires) VALUES (?, ?, ?, ?)"
            " ON CONFLICT (set_key) DO UPDATE SET"
            " earlier = COALESCE(excluded.earlier, newest), newest = excluded.newest, expires = excluded.expires"
            " WHERE newest IS NULL OR newest < excluded.newest",
            rows,
        )

    def _move_horizon(self, step: int, visible_from: int) -> None:
        moved = moved_horizon(self._horizon(), step, visible_from)
        self.database.execute(
            "UPDATE progress SET through = ?, visible_from = ?, earlier = ?, earlier_from = ?, earliest = ?",
            (moved.through, moved.visible_from, moved.earlier, moved.earlier_from, moved.earliest),
        )

    def _horizon(self) -> Horizon | None:
        row = self.database.execute(
            "SELECT through, visible_from, earlier, earlier_from, earliest FROM progress"
        ).fetchone()
        return None if row is None or row[0] is None else Horizon(*row)

    def read(
        self, set_keys: Iterable[bytes], slots: Iterable[int]
    ) -> tuple[dict[bytes, tuple[int, ...]], dict[int, Horizon]]:
        """The crossings of the sets, and the horizon of the one slot if it is asked for and has one.

        A suppressed set has no crossings here, like an unknown one.
        """
        horizon = self._horizon() if SLOT in slots else None
        return dict(self._crossings(set_keys)), {} if horizon is None else {SLOT: horizon}

    def _crossings(self, set_keys: Iterable[bytes]) -> Iterator[tuple[bytes, tuple[int, ...]]]:
        wanted = list(dict.fromkeys(set_keys))
        for at in range(0, len(wanted), KEYS_A_QUERY):
            keys = wanted[at : at + KEYS_A_QUERY]
            places = ",".join("?" * len(keys))
            rows = self.database.execute(
                "SELECT set_key, earlier, newest FROM statuses"  # noqa: S608, only question marks are added
                f" WHERE suppressed = 0 AND newest IS NOT NULL AND set_key IN ({places})",
                keys,
            )
            yield from ((bytes(key), _crossings_of(*columns)) for key, *columns in rows)

    def all_crossings(self) -> Iterator[tuple[bytes, tuple[int, ...], bool]]:
        """Set key and stored crossings of every set that has any, and whether it is suppressed."""
        rows = self.database.execute(
            "SELECT set_key, earlier, newest, suppressed FROM statuses WHERE newest IS NOT NULL"
        )
        return ((bytes(key), _crossings_of(*columns), bool(suppressed)) for key, *columns, suppressed in rows)

    def suppress(self, set_key: bytes) -> None:
        """Force a set to read false, even if it crosses."""
        check_set_key(set_key)
        self.database.execute(
            "INSERT INTO statuses (set_key, suppressed) VALUES (?, 1)"
            " ON CONFLICT (set_key) DO UPDATE SET suppressed = 1",
            (set_key,),
        )

    def suppressed(self) -> frozenset[bytes]:
        """The suppressed sets."""
        rows = self.database.execute("SELECT set_key FROM statuses WHERE suppressed = 1")
        return frozenset(bytes(key) for (key,) in rows)

    def show(self, set_key: bytes) -> bool:
        """Stop suppressing a set; False if it was not suppressed."""
        changed = self.database.execute(
            "UPDATE statuses SET suppressed = 0, expires = COALESCE(expires, 0) WHERE set_key = ? AND suppressed = 1",
            (set_key,),
        )
        return changed.rowcount > 0

    def expire(self, now: float) -> None:
        """Forget the crossings that no reader needs any more."""
        with transaction(self.database):
            self.database.execute("DELETE FROM statuses WHERE suppressed = 0 AND expires < ?", (int(now),))
            self.database.execute("DELETE FROM sealed WHERE set_key NOT IN (SELECT set_key FROM statuses)")

    # Listed types

    def listed(self, type_number: int) -> Iterator[tuple[bytes, tuple[int, ...], bytes]]:
        """Set key, crossings and sealed value of each set of a type that a list may show."""
        rows = self.database.execute(
            "SELECT set_key, earlier, newest, value FROM statuses JOIN sealed USING (set_key)"
            " WHERE sealed.type = ? AND suppressed = 0 AND newest IS NOT NULL"
            " AND set_key NOT IN (SELECT set_key FROM unlisted)",
            (type_number,),
        )
        return ((bytes(key), _crossings_of(*columns), bytes(value)) for key, *columns, value in rows)

    def unlisted(self) -> frozenset[bytes]:
        """The sets that no list shows."""
        return frozenset(bytes(key) for (key,) in self.database.execute("SELECT set_key FROM unlisted"))

    def unlist(self, set_key: bytes) -> None:
        """Show a set in no list any more."""
        check_set_key(set_key)
        self.database.execute("INSERT OR IGNORE INTO unlisted VALUES (?)", (set_key,))


def _crossings_of(earlier: int | None, newest: int) -> tuple[int, ...]:
    return (newest,) if earlier is None else (earlier, newest)


def _manifest(step: int, pieces: str) -> Manifest:
    return Manifest(step, tuple(Piece(*piece) for piece in json.loads(pieces)))
