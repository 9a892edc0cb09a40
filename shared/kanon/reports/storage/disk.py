"""Reports in a directory: folders of objects, one SQLite file of jobs, budgets, arrivals and keys, and private keys.

``reports.db`` holds jobs and budgets, so one transaction spends the budget of a job and makes its result final. What is
left of a budget is not stored: it is the cap less what jobs took, and rows of jobs are all there is. Commits are
counted, so an older file, in which budget is left that is spent, is noticed.
"""

import base64
import json
import os
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from kanon.counted import Counted, counting
from kanon.created import flush
from kanon.disk import put_file, transaction
from kanon.reports.errors import REPLACED
from kanon.reports.job import Amount
from kanon.reports.storage.budgets import Charge
from kanon.reports.storage.key_ring import Key, StoredRing
from kanon.reports.storage.objects import NameTakenError, ObjectStore, Stored, missing, too_many
from kanon.reports.storage.report_jobs import BEFORE_COMMIT, KEPT, JobRow, State, has_deadline, keeps_secret

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

NAME = "reports.db"
MOST_CHARACTERS = 1 << 25
"""Of reports that are read at once: anybody may send reports, of up to 66,000 characters each."""
MOST_NAME_BYTES = 255
"""Of a part of a name between two slashes, as file systems have it."""
SCHEMA = """
PRAGMA secure_delete = ON;
CREATE TABLE IF NOT EXISTS jobs (
    job TEXT PRIMARY KEY, state TEXT NOT NULL, request TEXT NOT NULL, received_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL, secret BLOB, recorded TEXT NOT NULL, is_open INTEGER NOT NULL) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS open_jobs ON jobs (received_at) WHERE is_open = 1;
CREATE TABLE IF NOT EXISTS results (
    job TEXT, stage TEXT, number INTEGER, value TEXT NOT NULL, PRIMARY KEY (job, stage, number)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS taken (
    row BLOB, job TEXT, claim TEXT, hours TEXT NOT NULL, epsilon INTEGER NOT NULL, delta INTEGER NOT NULL,
    expires INTEGER NOT NULL, PRIMARY KEY (row, job, claim)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS arrivals (number INTEGER PRIMARY KEY, message TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS ring (one INTEGER PRIMARY KEY CHECK (one = 1), ring TEXT NOT NULL);
"""
COMMITS = counting("commits", f"UPDATE OF state ON jobs WHEN NEW.state = '{State.COMMITTED}'")
"""A commit with an older file, also one that spends nothing, could give the same noise to other reports."""


class ReportsFile(Counted):
    """The jobs of a directory and what they took, the reports on their way to objects, and the ring of public keys.

    With ``accept_older`` it is opened even if it was overwritten with an older one.
    """

    OLDER = "budget could be spent twice", "it ends keys and unfinished jobs of reports"

    def __init__(self, directory: Path, *, accept_older: bool = False) -> None:
        super().__init__(directory / NAME, SCHEMA + COMMITS, accept_older=accept_older)

    def changing(self) -> AbstractContextManager[None]:
        """A transaction, which may be within another one."""
        return nullcontext() if self.database.in_transaction else transaction(self.database)

    # Jobs: as kanon.reports.storage.report_jobs.ReportJobs

    def create(self, job: str, request: Mapping[str, Any], received_at: int, secret: bytes, **values: Any) -> bool:
        """Store a new job and record values as JSON; False if there is one with this id."""
        body = json.dumps(request, sort_keys=True)
        row = (job, State.RECEIVED, body, received_at, received_at, secret, json.dumps(values, sort_keys=True))
        made = self.database.execute("INSERT OR IGNORE INTO jobs VALUES (?, ?, ?, ?, ?, ?, ?, 1)", row)
        return made.rowcount > 0

    def read(self, job: str) -> JobRow | None:
        """The job; None if there is none."""
        found = self.database.execute(
            "SELECT state, request, received_at, updated_at, secret, recorded FROM jobs WHERE job = ?", (job,)
        ).fetchone()
        if found is None:
            return None
        state, request, received_at, updated_at, secret, recorded = found
        return JobRow(
            job, State(state), json.loads(request), received_at, updated_at, secret, json.loads(recorded)
        )  # fmt: skip

    def unfinished(self) -> list[str]:
        """The ids of the jobs that are not closed, oldest first."""
        rows = self.database.execute("SELECT job FROM jobs WHERE is_open = 1 ORDER BY received_at, job")
        return [job for (job,) in rows]

    def close_job(self, job: str) -> None:
        """A finished job has nothing left to do, and nothing in the work folder."""
        self.database.execute("UPDATE jobs SET is_open = 0 WHERE job = ? AND state = ?", (job, State.FINISHED))

    def move(self, row: JobRow, to: State, now: float, **values: Any) -> bool:
        """Move a job from the state of ``row`` to another one and record values; False if it has left that state."""
        with self.changing():
            stored = self.read(row.job)
            if stored is None or stored.state is not row.state:
                return False
            if has_deadline(row.state, to) and now >= stored.deadline:
                return False
            secret = stored.secret if keeps_secret(row.state, to) else None
            recorded = json.dumps(stored.values | values, sort_keys=True)
            self.database.execute(
                "UPDATE jobs SET state = ?, updated_at = ?, secret = ?, recorded = ? WHERE job = ?",
                (to, int(now), secret, recorded, row.job),
            )
        return True

    def forget_secrets(self) -> None:
        """Leave nothing of deleted secrets in the file beside this one, which SQLite writes first."""
        self.database.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def record(self, job: str, stage: str, number: int, value: Any, now: float) -> Any:  # noqa: ARG002, as in the table
        """Record a worker's result, unless another one was first. Returns the recorded result."""
        row = (job, stage, number, json.dumps(value, sort_keys=True))
        made = self.database.execute("INSERT OR IGNORE INTO results VALUES (?, ?, ?, ?)", row)
        return value if made.rowcount else self.recorded(job, stage)[number]

    def recorded(self, job: str, stage: str) -> dict[int, Any]:
        """The results of a stage by number."""
        rows = self.database.execute("SELECT number, value FROM results WHERE job = ? AND stage = ?", (job, stage))
        found = dict(rows.fetchall())
        return dict(zip(found, json.loads(f"[{','.join(found.values())}]"), strict=True))  # read often: one call

    def forget_work(self, job: str) -> None:
        """Delete the workers' results. It may be called again."""
        self.database.execute("DELETE FROM results WHERE job = ?", (job,))

    # What jobs took

    def take(self, charges: Iterable[Charge], job: str, claim: str, amount: Amount) -> None:
        """Record that a job takes an amount from every hour of its charges."""
        rows = (
            (charge.row, job, claim, json.dumps(charge.hours), amount.epsilon, amount.delta, charge.expires)
            for charge in charges
        )
        self.database.executemany("INSERT INTO taken VALUES (?, ?, ?, ?, ?, ?, ?)", rows)

    def taken(self, row: bytes) -> Iterator[tuple[str, tuple[int, ...], Amount]]:
        """The jobs that took from a row: id, hours, amount per hour."""
        rows = self.database.execute("SELECT job, hours, epsilon, delta FROM taken WHERE row = ? ORDER BY job", (row,))
        for job, hours, epsilon, delta in rows.fetchall():
            yield job, tuple(json.loads(hours)), Amount(epsilon, delta)

    def has_taken(self, charges: Iterable[Charge], job: str, claim: str) -> bool:
        """Whether a job has taken from any of these rows with this claim."""
        return any(
            self.database.execute(
                "SELECT 1 FROM taken WHERE row = ? AND job = ? AND claim = ?", (charge.row, job, claim)
            ).fetchone()
            for charge in charges
        )

    # Reports on their way

    def arrive(self, message: str) -> None:
        """Store a report; it is durable when this returns."""
        self.database.execute("INSERT INTO arrivals (message) VALUES (?)", (message,))

    def arrivals(self) -> int:
        """The number of reports that are not in an object yet."""
        return int(self.database.execute("SELECT COUNT(*) FROM arrivals").fetchone()[0])

    def arrived(self, most: int) -> dict[int, str]:
        """The first reports that are not in an object yet, by number: so many, or as many as fit into memory."""
        found, size = dict[int, str](), 0
        for number, message in self.database.execute("SELECT number, message FROM arrivals ORDER BY number"):
            found[number] = message
            size += len(message)
            if len(found) >= most or size >= MOST_CHARACTERS:
                break
        return found

    def stored(self, numbers: Iterable[int]) -> None:
        """These reports are in objects."""
        with self.changing():
            self.database.executemany("DELETE FROM arrivals WHERE number = ?", ((number,) for number in numbers))

    def expire(self, now: float) -> None:
        """Forget jobs 400 days after their end, and what was taken when no report of its day can be accepted."""
        with self.changing():
            self.database.execute("DELETE FROM taken WHERE expires < ?", (int(now),))
            self.database.execute("DELETE FROM jobs WHERE is_open = 0 AND updated_at < ?", (int(now) - KEPT,))


@dataclass(frozen=True)
class FileBudgets:
    """What is left of the budgets of a directory. The cap is that of each hour."""

    file: ReportsFile
    cap: Amount

    def left(self, rows: Iterable[bytes]) -> dict[bytes, dict[int, Amount]]:
        """The amount left in each charged hour of the rows; a missing hour is full."""
        return {row: self._left(row) for row in dict.fromkeys(rows)}

    def taken(self, row: bytes) -> Iterator[tuple[str, tuple[int, ...], Amount]]:
        """The jobs that took from a row: id, hours, amount per hour."""
        return self.file.taken(row)

    def _left(self, row: bytes) -> dict[int, Amount]:
        spent: dict[int, Amount] = {}
        for _, hours, took in self.taken(row):
            spent |= {hour: spent.get(hour, Amount(0, 0)) + took for hour in hours}
        return {
            hour: Amount(self.cap.epsilon - used.epsilon, self.cap.delta - used.delta)
            for hour, used in sorted(spent.items())
        }


class FileRing:
    """The ring of public keys of a directory."""

    def __init__(self, file: ReportsFile) -> None:
        self._file = file

    def read(self) -> StoredRing | None:
        """The ring; None before the first rotation."""
        found = self._file.database.execute("SELECT ring FROM ring").fetchone()
        if found is None:
            return None
        fields = json.loads(found[0])
        return StoredRing(**{**fields, "keys": tuple(Key(**key) for key in fields["keys"])})

    def change(self, seen: StoredRing | None, to: StoredRing) -> bool:
        """Replace the ring; False if it has changed since it was read."""
        with self._file.changing():
            if self.read() != seen:
                return False
            ring = json.dumps(asdict(replace(to, revision=seen.revision + 1 if seen else 1)))
            self._file.database.execute("INSERT OR REPLACE INTO ring VALUES (1, ?)", (ring,))
        return True


class KeyFiles:
    """The private keys of a directory, each in a file that only its owner can read."""

    PREFIX = "report-key-"

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def make(self, key_id: str) -> str:
        """Write a new private key under an id, unless it has one. Returns the public key, base64."""
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

        made = X25519PrivateKey.generate()
        put_file(self._path(key_id), base64.b64encode(made.private_bytes_raw()))
        kept = self.existing([key_id])[key_id]
        return base64.b64encode(kept.public_key().public_bytes_raw()).decode()

    def existing(self, ids: Sequence[str]) -> "dict[str, X25519PrivateKey]":
        """The private keys with these ids that still exist."""
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

        found = {}
        for key_id in ids:
            try:
                text = self._path(key_id).read_bytes()
            except FileNotFoundError:
                continue
            found[key_id] = X25519PrivateKey.from_private_bytes(base64.b64decode(text, validate=True))
        return found

    def destroy(self, key_id: str) -> None:
        """Delete a key. It may be called again."""
        self._path(key_id).unlink(missing_ok=True)
        flush(self._folder)

    def destroy_all(self) -> None:
        """Delete every key, also one that an older ring does not name. It may be called again."""
        for path in self._folder.glob(f"{self.PREFIX}*"):
            path.unlink(missing_ok=True)
        flush(self._folder)

    def _path(self, key_id: str) -> Path:
        return self._folder / f"{self.PREFIX}{key_id}"


class FolderObjects(ObjectStore):
    """A bucket that is a folder. The name of an object is the path of its file."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(mode=0o700, exist_ok=True)

    def listed(self, prefix: str, most: int, wanted: Callable[[str], bool] = bool) -> list[Stored]:
        """The objects under a prefix whose names are wanted, by name."""
        found: list[Stored] = []
        for name, path in self._files(prefix):
            if wanted(name):
                state = path.stat()
                found.append(Stored(name, state.st_size, _etag(state)))
            if len(found) > most:
                raise too_many(most)
        return sorted(found)

    def read(self, key: str, etag: str | None = None) -> bytes:
        """The bytes of an object, which must still have this etag."""
        path = self._path(key)
        try:
            if path is None:
                raise FileNotFoundError
            with path.open("rb") as file:
                if etag is not None and _etag(os.fstat(file.fileno())) != etag:
                    raise missing("an object", changed=True)
                return file.read()
        except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
            raise missing("an object", changed=False) from None

    def put_new(self, key: str, body: bytes) -> None:
        """Write an object, unless it exists with the same bytes; it is durable when this returns.

        Raises:
            NameTakenError: another object has this name, or the name cannot be that of a file.
        """
        path = self._path(key)
        try:
            if path is None:
                raise NotADirectoryError
            self._make(path.parent)
            same = put_file(path, body) or path.read_bytes() == body
        except (FileExistsError, NotADirectoryError, IsADirectoryError):
            same = False
        if not same:
            raise NameTakenError(
                "an object with other content has this name, or no file may have it: choose another name"
            )

    def delete_under(self, prefix: str) -> None:
        """Delete every object under a prefix, and the folders that are empty then. It may be called again."""
        self._delete([path for _, path in self._files(prefix)])

    def forget_before(self, moment: float) -> None:
        """Delete the objects that were written before a moment (Unix s)."""
        self._delete([path for _, path in self._files("") if path.stat().st_mtime < moment])

    def _delete(self, paths: Sequence[Path]) -> None:
        """Delete files, and all folders that are empty then: a process may have stopped before it deleted some."""
        for path in paths:
            path.unlink(missing_ok=True)
        for folder, _, _ in os.walk(self._folder, topdown=False):
            if Path(folder) != self._folder and not any(Path(folder).iterdir()):
                Path(folder).rmdir()

    def _files(self, prefix: str) -> Iterator[tuple[str, Path]]:
        """The objects under a prefix: names and files."""
        begin = self._folder / prefix.rpartition("/")[0]
        if ".." in PurePosixPath(prefix).parts or prefix.startswith("/"):
            return
        for folder, _, names in os.walk(begin):
            for name in names:
                path = Path(folder) / name
                key = path.relative_to(self._folder).as_posix()
                if key.startswith(prefix) and not name.startswith("."):
                    yield key, path

    def _path(self, key: str) -> Path | None:
        """The file of an object; None if no file may have this name."""
        parts = key.split("/")
        plain = all(part and part[0] != "." and len(part.encode()) <= MOST_NAME_BYTES for part in parts)
        return self._folder.joinpath(*parts) if plain and "\0" not in key else None

    def _make(self, folder: Path) -> None:
        """Make a folder and those around it, durably."""
        if not folder.is_dir():
            self._make(folder.parent)
            folder.mkdir(mode=0o700, exist_ok=True)
            flush(folder.parent)


def _etag(state: os.stat_result) -> str:
    """Changes with the content of a file that is written again."""
    return f"{state.st_size}-{state.st_mtime_ns}"


REPLACED_MESSAGE = "the service went on in a new generation, which ends all jobs"


def begin_again(file: ReportsFile, now: float) -> None:
    """End all keys and all jobs that have not committed: this file may lack what was taken since it was copied.

    No report of before can be opened any more, so none is charged twice. What was taken stays taken. The private keys
    must be destroyed. ``now`` is in Unix seconds.
    """
    ring = FileRing(file)
    with file.changing():
        seen = ring.read()
        if seen is not None:
            ring.change(seen, replace(seen.all_ended(), epoch=secrets.token_hex(16)))
        for job in file.unfinished():
            row = file.read(job)
            if row is not None and row.state in (*BEFORE_COMMIT, State.COMMITTING, State.ABORTING):
                file.move(row, State.FINISHED, now, code=REPLACED, message=f"{REPLACED_MESSAGE}. Nothing was spent.")
        file.database.execute("DELETE FROM arrivals")
    file.forget_secrets()
