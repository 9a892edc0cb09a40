"""Checks a directory of ``kanon serve --data``, also beside a running service. It reads, and changes nothing.

Its output contains no set, client, count of them, key or fingerprint.
"""

import os
import shutil
import sqlite3
import stat
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import closing
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from urllib.parse import quote

from kanon.counted import Counted
from kanon.disk import Database
from kanon.errors import ConfigurationError
from kanon.findings import Finding, Verdict, moment
from kanon.gate.fingerprints import fingerprints, noise_key_fingerprints
from kanon.gate.mechanism.steps import end_of
from kanon.gate.schedule import DAY, Schedule
from kanon.gate.storage.disk.control import NAME, ControlFile
from kanon.gate.storage.protocols import Manifest, Piece
from kanon.reports.storage import disk as reports
from kanon.reports.storage.report_jobs import STUCK
from kanon.serving import arrivals, lists
from kanon.serving.api_keys import ApiKeys
from kanon.serving.directory import (
    ACCOUNTS,
    AFTER_A_CLOCK_AHEAD,
    FIRST_STEP,
    IMPORTING,
    OWNER,
    PLACE,
    REPORTS,
    accounts_place,
    ahead,
    place_of,
    stored_settings,
)
from kanon.serving.secret_files import secrets_of

MEGABYTE = 1_000_000
SECONDS_TO_WAIT = 5.0
RESTORE = "stop the service and restore the directory from a backup"
NOT_OPENED = "check the disk, who may read the file, and that no command holds it"
DAMAGE = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})
DATABASES = (NAME, ACCOUNTS, reports.NAME, arrivals.NAME, lists.NAME)
ONLY_OWNER = stat.S_IRWXG | stat.S_IRWXO


class ReadOnly(Database):
    """A file that this process must not change."""

    @cached_property
    def database(self) -> sqlite3.Connection:
        """The one connection."""
        place = f"file:{quote(str(self.path.absolute()))}?mode=ro"
        return sqlite3.connect(place, uri=True, timeout=SECONDS_TO_WAIT, isolation_level=None)

    def close(self) -> None:
        """Close it, if it was opened."""
        if "database" in vars(self):
            self.database.close()


class ReadOnlyControl(ReadOnly, ControlFile):
    """The control file of a directory that this process must not change."""


class ReadOnlyCounted(ReadOnly, Counted):
    """A file of a directory that counts its changes, and that this process must not change."""


class ReadOnlyReports(ReadOnly, reports.ReportsFile):
    """The file of reports of a directory that this process must not change."""


class ReadOnlyLists(ReadOnly, lists.ListsFile):
    """The lists of a directory that this process must not change."""


def examine_directory(path: Path, now: float) -> list[Finding]:
    """The findings about a directory at ``now``.

    Raises:
        ConfigurationError: it holds no deployment, or its control file cannot be read.
    """
    if not (path / NAME).is_file():
        raise ConfigurationError(f"{path} holds no deployment: name a directory of `kanon serve --data`")
    unread = unread_files(path)
    try:
        with closing(ReadOnlyControl(path)) as control:
            return list(_findings(path, control, unread, now))
    except sqlite3.Error as error:
        why, advice = unread.get(path / NAME, (error, NOT_OPENED))
        raise ConfigurationError(f"{path / NAME} cannot be read: {why}: {advice}") from error


def unread_files(path: Path) -> dict[Path, tuple[str, str]]:
    """The databases of a directory that cannot be read, why, and what to do. Those of the log are not looked at."""
    found = ((path / name, _unread(path / name)) for name in DATABASES)
    return {file: why for file, why in found if why}


def _unread(file: Path) -> tuple[str, str] | None:
    try:
        with closing(ReadOnly(file, "")) as record:
            (found,) = record.database.execute("PRAGMA quick_check(1)").fetchone() if file.exists() else ("ok",)
    except sqlite3.Error as error:
        return str(error), RESTORE if _is_damage(error) else NOT_OPENED
    return None if found == "ok" else (str(found), RESTORE)


def _is_damage(error: sqlite3.Error) -> bool:
    """Whether the file is damaged. Otherwise a backup would not help, and cost a new generation."""
    return error.sqlite_errorcode & 0xFF in DAMAGE  # the first byte is the kind of an extended code


def _findings(
    path: Path, control: ControlFile, unread: Mapping[Path, tuple[str, str]], now: float
) -> Iterator[Finding]:
    schedule = Schedule.of(stored_settings(control))
    for file, (why, advice) in unread.items():
        yield Finding("files", Verdict.FAIL, f"{file} cannot be read: {why}", advice)
    yield _identity(path, control, unread)
    yield _process(path)
    yield _evaluation(control, schedule, now)
    yield _disk(path)
    yield _permissions(path)
    yield from _secrets(path, control)
    yield _old_joins(path, control, schedule, now)
    yield _keys(control)
    yield _parts(path, control)
    if path / arrivals.NAME not in unread and _overwritten(path / arrivals.NAME):
        seen = f"{arrivals.NAME} is lost, or was overwritten with an older file: rows would count again"
        yield Finding("rows", Verdict.FAIL, seen, RESTORE)
    if (path / lists.NAME).exists() and path / lists.NAME not in unread:
        with closing(ReadOnlyLists(path)) as of_lists:
            yield _lists(of_lists, control, schedule, now)
    of_reports = path / reports.NAME
    if control.text(REPORTS) is not None and of_reports.exists() and of_reports not in unread:
        with closing(ReadOnlyReports(path)) as stored:
            yield _public_keys(stored, now)
            yield _jobs(stored, now)


def _identity(path: Path, control: ControlFile, unread: Collection[Path]) -> Finding:
    begin = f"run `kanon operate new-generation --data {path} --original"
    others = [path / name for name in (ACCOUNTS, reports.NAME) if path / name not in unread]
    settings = stored_settings(control)
    if control.text(PLACE) != place_of(path):
        seen, advice = "a copy of a deployment, or moved to another file system", f"{begin} DIR`"
    elif control.overwritten or any(map(_overwritten, others)):
        seen, advice = f"{NAME}, {ACCOUNTS} or {reports.NAME} was overwritten with an older file", f"{begin} none`"
    elif control.text(ACCOUNTS) not in (None, "", accounts_place(path)):
        seen, advice = f"{ACCOUNTS} is missing or was put back: one person could enrol twice", f"{begin} none`"
    elif control.text(IMPORTING) is not None:
        seen, advice = "an import was not finished", "run `kanon operate import` again"
    else:
        return Finding("deployment", Verdict.OK, f"{settings.deployment}, steps of {settings.period} s")
    return Finding("deployment", Verdict.FAIL, seen, f"{advice}; the service refuses to start before")


def _secrets(path: Path, control: ControlFile) -> Iterator[Finding]:
    """Whether the secrets are not those with which the deployment started: then the service refuses to start."""
    settings, recorded = stored_settings(control), control.recorded(OWNER)
    entries = settings.noise_keys
    try:
        *keys, noise_keys = secrets_of(path / "secrets", [entry.id for entry in entries], None)
    except ConfigurationError as error:
        yield Finding("secrets", Verdict.FAIL, str(error), RESTORE)
        return
    current = fingerprints(settings, {}, keys) | noise_key_fingerprints(entries, noise_keys)
    if changed := sorted(name.strip() for name, value in current.items() if recorded.get(name, value) != value):
        yield Finding("secrets", Verdict.FAIL, f"changed since the first start: {', '.join(changed)}", RESTORE)


def _overwritten(file: Path) -> bool:
    with closing(ReadOnlyCounted(file, "")) as counted:
        try:
            return counted.overwritten
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_ERROR:
                raise
            return True  # it is empty: no table says how often it changed


def _process(path: Path) -> Finding:
    """Whether a process has the directory open. To try the lock could keep a service from starting."""
    try:
        locks, number = Path("/proc/locks").read_text(), (path / "lock").stat().st_ino
    except OSError as error:
        return Finding("process", Verdict.NOT_SEEN, str(error.strerror))
    held = any(line.split()[1] == "FLOCK" and line.split()[5].endswith(f":{number}") for line in locks.splitlines())
    if held:
        return Finding("process", Verdict.OK, "a process has the directory open")
    advice = f"start it: kanon serve --data {path}"
    return Finding("process", Verdict.WARN, "no process has the directory open: nothing is evaluated", advice)


def _evaluation(control: ControlFile, schedule: Schedule, now: float) -> Finding:
    mark = control.evaluated_through()
    first = int(control.text(FIRST_STEP) or 0)
    known = first - 1 if mark is None else mark
    is_usual = known <= schedule.last_closed(now) + 1  # `kanon gate` closes the step of now
    if early := "" if is_usual else ahead(known, schedule, now):
        return Finding("evaluation", Verdict.FAIL, early, AFTER_A_CLOCK_AHEAD)
    lag = max(0, schedule.last_closed(now) - known)
    last = "no step yet" if mark is None else f"step {mark}, which ended at {moment(end_of(mark, schedule.period))}"
    seen = f"{lag} closed steps are not evaluated; the last one that is: {last}"
    if schedule.tick_of(known + 1) > now:
        return Finding("evaluation", Verdict.OK, seen)
    if known + 1 < schedule.oldest_allowed(now):
        advice = "the log may lack joins of these steps: their counts will be too low for one window"
        return Finding("evaluation", Verdict.FAIL, seen, advice)
    return Finding("evaluation", Verdict.WARN, seen, "start the service, or read its log: it catches up by itself")


def _disk(path: Path) -> Finding:
    size, free = sum(_sizes(path)), shutil.disk_usage(path).free
    seen = f"{size / MEGABYTE:,.0f} MB used, {free / MEGABYTE:,.0f} MB free"
    if free < size:  # a step may write every part again before the old ones are deleted
        return Finding("disk", Verdict.WARN, seen, "make room: a step may need as much as the directory has now")
    return Finding("disk", Verdict.OK, seen)


def _sizes(path: Path) -> Iterator[int]:
    for folder, _, names in os.walk(path):
        for name in names:
            try:
                yield (Path(folder) / name).stat().st_size
            except FileNotFoundError:  # the service has deleted it
                continue


def _permissions(path: Path) -> Finding:
    secrets = path / "secrets"
    wrong = [each for each in (path, secrets, *secrets.glob("*")) if each.exists() and each.stat().st_mode & ONLY_OWNER]
    if wrong:
        named = ", ".join(str(each) for each in wrong)
        return Finding("permissions", Verdict.FAIL, f"others may use {named}", "chmod go= them; nobody else needs them")
    return Finding("permissions", Verdict.OK, "only the owner can read the secrets")


def _old_joins(path: Path, control: ControlFile, schedule: Schedule, now: float) -> Finding:
    """Joins are kept as long as the manifests from which a recovery may start: one a day."""
    mark = control.evaluated_through()
    steps = [int(file.stem) for file in (path / "log").glob("*.db") if file.stem.isdigit()]
    old = [step for step in steps if mark is not None and step <= mark and step < schedule.oldest_in_log(now - 2 * DAY)]
    if old:
        seen = f"joins of {len(old)} steps are older than the outage allowance"
        return Finding("log", Verdict.WARN, seen, "start the service: it deletes them after its next step")
    return Finding("log", Verdict.OK, "no joins are older than the outage allowance")


def _keys(control: ControlFile) -> Finding:
    keys = ApiKeys(lambda: control.database).all()
    if not keys:
        return Finding("API keys", Verdict.NOT_SEEN, "none: joins need one, unless --join-auth says otherwise")
    return Finding("API keys", Verdict.OK, ", ".join(f"{key.name} of {moment(key.made)}" for key in keys))


def _parts(path: Path, control: ControlFile) -> Finding:
    manifests = control.manifests()
    bad = _damaged(path, manifests)
    if bad:  # a running service may have deleted old parts meanwhile
        manifests = control.manifests()
        bad = _damaged(path, manifests)
    if not bad:
        return Finding("parts", Verdict.OK, f"all parts of {len(manifests)} manifests are as they were written")
    newest = set(manifests[-1].pieces) & bad
    seen = f"{len(bad)} parts are missing or damaged, {len(newest)} of them in use"
    advice = f"stop the service and run `kanon operate replay --data {path}`; if it refuses, restore a backup"
    return Finding("parts", Verdict.FAIL if newest else Verdict.WARN, seen, advice)


def _lists(file: lists.ListsFile, control: ControlFile, schedule: Schedule, now: float) -> Finding:
    """A list follows its tick at once; a late one is as old as it says."""
    names = [name for name, type_ in stored_settings(control).read_types().items() if type_.listed]
    newest = [found.step if (found := file.newest(name)) else None for name in names]
    known = [step for step in newest if step is not None]
    if len(known) == len(names) and all(schedule.tick_of(step + 2) > now for step in known):
        return Finding("lists", Verdict.OK, f"{len(known)}, the oldest of step {min(known, default=None)}")
    seen = f"{len(names) - len(known)} of {len(names)} were never published; the oldest is of step"
    advice = "start the service, or read its log: it catches up by itself"
    return Finding("lists", Verdict.WARN, f"{seen} {min(known, default=None)}", advice)


def _public_keys(file: reports.ReportsFile, now: float) -> Finding:
    ring = reports.FileRing(file).read()
    published = ring.published(now) if ring else ()
    if published:
        seen = f"{len(published)} are published, the newest until {moment(published[-1].published_until)}"
        return Finding("keys of reports", Verdict.OK, seen)
    return Finding("keys of reports", Verdict.WARN, "none is published", "start the service: it makes one at once")


def _jobs(file: reports.ReportsFile, now: float) -> Finding:
    rows = [row for job in file.unfinished() if (row := file.read(job)) is not None]
    stuck = sum(now - row.received_at >= STUCK for row in rows)
    seen = f"{len(rows)} are not finished, {stuck} of them for 12 hours"
    advice = "read the log of the service; getJob says which summaries could not be written"
    return Finding("jobs", Verdict.WARN, seen, advice) if stuck else Finding("jobs", Verdict.OK, seen)


def _damaged(path: Path, manifests: Iterable[Manifest]) -> set[Piece]:
    """The pieces whose file is missing or has another digest."""
    pieces = {piece for manifest in manifests for piece in manifest.pieces if piece.name}
    return {piece for piece in pieces if _digest(path / "parts" / piece.name) != piece.digest}


def _digest(file: Path) -> str:
    try:
        return sha256(file.read_bytes()).hexdigest()
    except OSError:
        return ""
