"""One deployment in one directory: its settings, its secrets, its joins, its states and its answers.

One process has it open. A copy of a directory would run the same noise on other joins, so a directory that is not in
the place where it was made is refused until a new log generation gives it noise of its own.
"""

import fcntl
import json
import os
import shutil
import sqlite3
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any, Self

from pydantic import ValidationError

from kanon import clock
from kanon.counted import Counted
from kanon.disk import Database, transaction
from kanon.errors import ConfigurationError, reason
from kanon.findings import moment
from kanon.gate.deciding import NoiseKeys
from kanon.gate.fingerprints import (
    NOISE_KEY,
    RETIRED,
    fingerprints,
    noise_key_fingerprints,
    recorded_names,
    refuse_noise_keys,
    refuse_types,
    refuse_without_key,
)
from kanon.gate.generations import in_force
from kanon.gate.joining import Joining
from kanon.gate.mechanism.steps import end_of, step_at
from kanon.gate.querying import Querying
from kanon.gate.schedule import Schedule
from kanon.gate.segments import RunResult, Segments
from kanon.gate.settings import EvaluateSettings, LogGenerationEntry, NoiseKeyEntry
from kanon.gate.storage.disk.control import NAME, ControlFile
from kanon.gate.storage.disk.log import ONE_SLOT, DiskLog
from kanon.gate.storage.disk.parts import PartFiles
from kanon.gate.types import Type
from kanon.keys import Secret
from kanon.noise.words import NoiseKey
from kanon.reports.storage import disk as reports
from kanon.serving import arrivals
from kanon.serving.secret_files import (
    DEPLOYMENT,
    FIRST_KEY,
    ISSUER_KEY,
    LIST_KEY,
    NOISE_KEYS,
    at_random,
    list_key,
    noise_key,
    noise_texts,
    refuse_given,
    secrets_of,
    write_secret,
)

OWNER = "serve"
SETTINGS, PLACE, FIRST_STEP, IMPORTING = "settings", "place", "first-step", "importing"
LISTS = "lists.db"
REPORTS = "reports"
"""The text with the settings of reports."""
ACCOUNTS, CLOSED_UNTIL, NAMED_BY = "accounts.db", "closed-until", "accounts"
"""The file of accounts, whose place is a text; the time before which nobody enrols; and the fingerprint that says who
gives accounts their names."""
DAYS, HOUR = 86_400, 3600
MARGIN_TO_WAKE = 0.05
STEPS_TO_KEEP, SECONDS_TO_KEEP = 4, 60


@dataclass(frozen=True)
class Given:
    """What a caller wants a deployment to be; None keeps what it is.

    Attributes:
        period: the length of a step in seconds; it never changes.
        types: the types, as in the template's parameter ``Types``.
        draw: draws the id of a new deployment and its secrets, by name.
    """

    period: int | None = None
    types: str | None = None
    draw: Callable[[str], str] = at_random


def timing(period: int) -> dict[str, int]:
    """The durations of a deployment with this period, in seconds: those of the template for an hour.

    A step closes ``grace`` seconds after its end. The log is one process with one clock, so there is nothing to wait
    for. Its answers are visible ``publish_delay`` seconds after its end. Its commit begins at least ``publish_margin``
    seconds before that, or they are visible a step later.
    """
    return {
        "grace": min(2, period // 4),
        "publish_delay": max(1, min(1800, period // 2)),
        "publish_margin": min(60, period // 8),
        "outage_allowance": max(7 * DAYS, 60 * period),
        "lease": 0,
        "max_stale": 24,
    }


@dataclass
class Directory:
    """An open deployment.

    Attributes:
        path: the directory.
        settings, types: the settings and types in force.
        joining, querying: the use cases behind its HTTP interface.
        control, log, parts: its storage.
        before: what was there before this opening made the deployment; None if the deployment was there.
    """

    path: Path
    settings: EvaluateSettings
    types: dict[str, Type]
    joining: Joining
    querying: Querying
    control: ControlFile
    log: DiskLog
    parts: PartFiles
    segments: Segments
    _lock: int = field(repr=False)
    before: frozenset[Path] | None = None
    _kept: float = 0.0
    _not_kept: int = 0
    _failed: bool = False
    _others: list[Database] = field(default_factory=list, repr=False)

    def evaluate(self, now: float) -> RunResult:
        """Evaluate and publish the closed steps; see :meth:`Segments.evaluate`. Old files are deleted meanwhile: those
        of many steps may be more than the disk can hold.
        """
        try:
            return self.segments.evaluate(now, partial(self._keep, now))
        except Exception as error:
            self.segments.sweep()  # each new attempt writes its parts again, and may fill the disk
            if isinstance(error, (OSError, sqlite3.Error)):
                self.segments.keep(now)  # it may be full already
            raise

    def _keep(self, now: float) -> None:
        """Delete old files after every step, or every few ones if they follow each other fast."""
        self._not_kept += 1
        if self._not_kept >= STEPS_TO_KEEP or now - self._kept >= SECONDS_TO_KEEP:
            self.segments.keep(now)
            self._kept, self._not_kept = now, 0

    def next_wake(self, now: float) -> float:
        """The Unix time at which the next step can be evaluated."""
        step = self.segments.schedule.last_closed(now) + 1
        return end_of(step, self.settings.period) + self.settings.grace + MARGIN_TO_WAKE

    def lag(self, now: float) -> int:
        """The number of closed steps that are not evaluated yet."""
        return self.segments.lag(now)

    @property
    def evaluated_through(self) -> int:
        """The last step that is evaluated; before the first one, the step before it."""
        mark = self.control.evaluated_through()
        return self.segments.begin_at - 1 if mark is None else mark

    @property
    def reports_on(self) -> bool:
        """Whether reports were ever turned on."""
        return self.control.text(REPORTS) is not None

    @property
    def names(self) -> arrivals.Names:
        """What names the sets and clients of a log.

        Raises:
            ConfigurationError: a type is listed.
        """
        refuse_listed(self.types.values())
        return arrivals.Names(self.types, self.segments.numbers, self.joining.pepper, self.joining.client_key)

    def close(self) -> None:
        """Store what waits, and let another process open the directory."""
        try:
            self.log.stop()
            for other in (*self._others, self.control):
                other.close()
            if self._failed:
                _take_back(self.path, self.before)
        finally:
            os.close(self._lock)

    @contextmanager
    def or_taken_back(self) -> Iterator[None]:
        """If what follows fails, delete a deployment that this opening has made: its types and period never change.

        Nobody must have got an answer of it.
        """
        try:
            yield
        except Exception:
            self._failed = True
            raise

    def closes(self, other: Database) -> None:
        """Close another file with the directory."""
        self._others.append(other)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


AFTER_A_CLOCK_AHEAD = (
    "correct the clock, or wait; if the clock was ahead before, restore a backup from before that, or begin a new"
    " deployment in another directory"
)


def ahead(mark: int, schedule: Schedule, now: float) -> str:
    """What is wrong if the step of ``now`` or a later one is closed, or the first one is later; empty if nothing is.

    The clock was set back, or ``kanon gate`` has closed the step of ``now``.
    """
    end = end_of(mark, schedule.period)
    if end <= now:
        return ""
    until = moment(end)
    return f"steps are closed up to {until}, which is later than now, so joins do not count"


def refuse_listed(types: Iterable[Type]) -> None:
    """Refuse types whose joins carry values or need credentials, where joins come from a log.

    Raises:
        ConfigurationError: there is one.
    """
    types = list(types)
    if needing := next((type_.name for type_ in types if type_.credential), None):
        raise ConfigurationError(
            f"type {needing!r} needs credentials, which rows of a log do not have: leave out `credential`"
        )
    if listed := next((type_.name for type_ in types if type_.listed), None):
        raise ConfigurationError(
            f"type {listed!r} is listed: its joins come over HTTP, to `kanon serve --data`. `kanon gate` names the"
            f" values that are true without it: leave out `listed`"
        )


def open_directory(path: Path, given: Given | None, now: float, *, to_import: bool = False) -> Directory:
    """Open a deployment, or make one at ``now`` if the directory does not exist, or holds nothing but secrets.

    ``to_import`` opens one into which a log is imported, also if this was begun and not finished.

    Raises:
        ConfigurationError: another process has it open; it is a copy; it was made with other values that never change;
            a setting is invalid; a secret is too short; or a new deployment lacks types.
    """
    given = given or Given()
    if given.types is None and not (path / NAME).exists():
        raise ConfigurationError("a new deployment needs types: give --type or --types")
    with ExitStack() as opened:
        lock = _locked(path)
        opened.callback(os.close, lock)
        before = None if (path / NAME).exists() else frozenset((*path.iterdir(), *(path / "secrets").glob("*")))
        opened.push(lambda kind, *_: _take_back(path, before) if kind and issubclass(kind, Exception) else None)
        if before is not None and (path / "secrets").exists():
            refuse_given(path / "secrets")
        control = ControlFile(path)
        opened.callback(control.close)
        _refuse_copy(control, path)
        if control.text(IMPORTING) is not None and not to_import:
            raise ConfigurationError(f"an import into {path} was not finished: run `kanon operate import` again")
        fresh = control.text(SETTINGS) is None
        if not fresh:
            _forget_old_keys(control, path)
        settings = _settings(control, given)
        types = settings.read_types()
        ids = [entry.id for entry in settings.noise_keys]
        pepper, client_key, noise_keys = secrets_of(path / "secrets", ids, given.draw if fresh else None)
        if fresh:  # a start that stops from here on is continued under the same name
            control.put_text(FIRST_STEP, str(step_at(now, settings.period)))
            _remember(control, path, settings)
        _check(control, settings, types, (pepper, client_key), noise_keys, now)
        numbers = control.type_numbers(types)
        retired = frozenset(recorded_names(control.recorded(OWNER), RETIRED))
        mark, run = control.evaluated_through(), control.begin_run()
        seal = _sealing(control, path / "secrets" / LIST_KEY) if any(each.listed for each in types.values()) else None
        log = DiskLog(path / "log", numbers, mark)
        opened.callback(log.stop)
        finish_forgetting(control, log)
        arrivals.finish(path, log)
        parts = PartFiles(path / "parts")
        _remember(control, path, settings)
        segments = Segments(
            types,
            numbers,
            retired,
            NoiseKeys.of(settings.noise_keys, noise_keys),
            settings.deployment,
            Schedule.of(settings),
            log,
            parts,
            control,
            run,
            int(control.text(FIRST_STEP) or 0),
            generation=in_force(settings.log_generations),
        )
        segments.sweep()
        control.remember()
        opened.pop_all()
    joining = Joining(types, pepper, client_key, log, settings.period, settings.outage_allowance, seal)
    querying = Querying(types, pepper, control, settings.period, ONE_SLOT, settings.publish_delay, settings.max_stale)
    return Directory(path, settings, types, joining, querying, control, log, parts, segments, lock, before)


_MADE = {
    *(NAME, arrivals.NAME, LISTS, ACCOUNTS, reports.NAME, "import.db"),
    *("lists", "log", "parts", "reports", "secrets", "seen", "summaries", "work"),
}


def _take_back(path: Path, before: Collection[Path] | None) -> None:
    """Delete what was made in a directory that held nothing but its lock, which is held and stays, and given secrets.

    ``before`` is what was there; None if a deployment was, of which nothing is deleted.
    """
    if before is None:
        return
    found = (each for each in path.iterdir() if each.name.removesuffix("-wal").removesuffix("-shm") in _MADE)
    for each in [*found, *(path / "secrets").glob("*")]:
        if each not in before and each.exists():
            shutil.rmtree(each) if each.is_dir() else each.unlink()


def finish_forgetting(control: ControlFile, log: DiskLog) -> None:
    """Change the log as the states were changed when a client was forgotten."""
    if replaced := control.replaced():
        log.replace(replaced)
        control.forget_replaced()


def new_generation(path: Path, *, new_key: bool = False) -> int:
    """Begin a log generation with the next step, and accept the directory as it is: in its place, or with files that
    were overwritten with older ones. Returns its first step.

    Nothing of an evaluated step is open here, so no step is skipped: all joins that wait are counted with new noise.
    With a ``new_key``, searches that begin from that step on use it. Nothing was decided with noise of the generation
    before, so no search has noise of two keys.

    Raises:
        ConfigurationError: another process has it open, or there is no deployment.
    """
    with locked(path), closing(ControlFile(path, accept_older=True)) as control:
        settings = stored_settings(control)
        mark = control.evaluated_through()
        first = int(control.text(FIRST_STEP) or 0) if mark is None else mark + 1
        earlier = [entry for entry in settings.log_generations if entry.from_step < first]
        entries = (*earlier, LogGenerationEntry(log=str(uuid.uuid4()), from_step=first))
        _end_reports(path)
        changed: dict[str, Any] = {"log_generations": entries}
        with transaction(control.database):  # an older file stays refused until all of it is done
            _end_credentials(control, path, settings)
            if new_key:
                changed["noise_keys"] = _draw_noise_key(control, path / "secrets" / NOISE_KEYS, settings, first)
            _remember(control, path, settings.model_copy(update=changed))
            control.count_on()
        with closing(arrivals.Arrivals(path, accept_older=True)) as record:
            if record.overwritten:
                record.count_on()
        return first


def _draw_noise_key(
    control: ControlFile, file: Path, settings: EvaluateSettings, first: int
) -> tuple[NoiseKeyEntry, ...]:
    """Draw a noise key that is in use from step ``first`` on, and record it. Returns the entries in force.

    It is in the file first: one that a process leaves there without recording it goes with the next one. A key that was
    to begin with the same step was never used, and is forgotten.
    """
    texts, recorded = noise_texts(file), recorded_names(control.recorded(OWNER), NOISE_KEY)
    new = NoiseKeyEntry(id=str(1 + max(map(int, {*texts, *recorded}))), from_step=first)
    text = at_random(NOISE_KEYS)
    write_secret(file, json.dumps({**{entry.id: texts[entry.id] for entry in settings.noise_keys}, new.id: text}))
    unused = [entry for entry in settings.noise_keys if entry.from_step >= first]
    control.unrecord(OWNER, [f"{NOISE_KEY}{entry.id}" for entry in unused])
    control.record(OWNER, noise_key_fingerprints([new], {new.id: noise_key(new.id, text)}))
    return (*(entry for entry in settings.noise_keys if entry not in unused), new)


def _forget_old_keys(control: ControlFile, path: Path) -> None:
    """Delete the noise keys that no search needs any more, also if it is evaluated again.

    A search that began before the next key may last for an epoch, and recovery goes back for the outage allowance.
    """
    settings, mark, file = stored_settings(control), control.evaluated_through(), path / "secrets" / NOISE_KEYS
    longest = max(type_.parameters.cycle for type_ in settings.read_types().values())
    needed, entries = longest - (-settings.outage_allowance // settings.period), settings.noise_keys
    while len(entries) > 1 and mark is not None and mark > entries[1].from_step + needed:
        entries = entries[1:]
    if entries != settings.noise_keys:
        _remember(control, path, settings.model_copy(update={"noise_keys": entries}))
    texts = noise_texts(file) if file.exists() else {}
    named = {entry.id: texts[entry.id] for entry in entries if entry.id in texts}
    if named != texts:
        write_secret(file, json.dumps(named))


def _end_reports(path: Path) -> None:
    """End the keys and the jobs of reports: budget that was spent after a copy was made is not in the copy."""
    if (path / reports.NAME).exists():
        with closing(reports.ReportsFile(path, accept_older=True)) as file:
            reports.begin_again(file, clock.now())
            reports.KeyFiles(path / "secrets").destroy_all()
            file.count_on()  # an older file stays refused until then


def _end_credentials(control: ControlFile, path: Path, settings: EvaluateSettings) -> None:
    """End the issuer's keys: credentials that were made after a copy are not in the copy's accounts.

    The accounts of a whole copy are not older than its log, so they say who has joined. A file that was put back alone
    may lack some, and a control file may lack that some were lost: they go, and nobody enrols until no join counts that
    the log has.
    """
    known, found = control.text(ACCOUNTS), accounts_place(path)
    if known is None and not found:
        return
    (path / "secrets" / ISSUER_KEY).unlink(missing_ok=True)
    copied = control.text(PLACE) != place_of(path)
    with closing(Counted(path / ACCOUNTS, "", accept_older=True)) as accounts:
        lost = not found or accounts.overwritten or control.overwritten or (not copied and known != found)
    if lost:
        accounts.remove()
        control.unrecord(OWNER, [NAMED_BY])
        windows = [each.parameters.window for each in settings.read_types().values() if each.credential]
        seconds = (max(windows, default=0) + 1) * settings.period + clock.LATE
        control.put_text(CLOSED_UNTIL, str(clock.now() + seconds))
    control.put_text(ACCOUNTS, accounts_place(path))


def accounts_place(path: Path) -> str:
    """What identifies the file of accounts; empty if there is none."""
    return place_of(path, ACCOUNTS) if (path / ACCOUNTS).exists() else ""


def retire(path: Path, name: str, agree: Callable[[], None] = lambda: None) -> None:
    """Take a type out of a deployment, for good, unless ``agree`` raises. Recovery starts from no earlier states.

    Raises:
        ConfigurationError: another process has it open; it is a copy; there is no such type, or no other one.
    """
    with locked(path), closing(ControlFile(path)) as control:
        _refuse_copy(control, path)
        settings = stored_settings(control)
        types = json.loads(settings.types)
        if types.pop(name, None) is None:
            near = get_close_matches(name, types, 1)
            hint = f": did you mean {near[0]!r}?" if near else f": it has {', '.join(types)}"
            raise ConfigurationError(f"{path} has no type {name!r}{hint}")
        if not types:
            raise ConfigurationError(f"{name!r} is the only type: add another one first with --types")
        agree()
        _forget_lists(path, name)
        with transaction(control.database):
            control.record(OWNER, {f"{RETIRED}{name}": "for good"})
            control.forget_manifests(manifest.step for manifest in control.manifests()[:-1])
            _remember(control, path, settings.model_copy(update={"types": json.dumps(types)}))


def _forget_lists(path: Path, type_name: str) -> None:
    """Forget the last lists of a type. Free pages keep nothing of them; the history stays for its days."""
    if not (path / LISTS).exists():
        return
    with closing(Database(path / LISTS, "")) as file:
        file.database.execute("PRAGMA secure_delete = ON")
        with transaction(file.database):
            file.database.execute("DELETE FROM lists WHERE type = ?", (type_name,))
            file.database.execute("DELETE FROM entries WHERE type = ?", (type_name,))
        file.database.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def existing(path: Path) -> Path:
    """The directory, if it holds a deployment.

    Raises:
        ConfigurationError: it does not.
    """
    if not (path / NAME).is_file():
        raise ConfigurationError(f"{path} holds no deployment: check --data")
    return path


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Keep other processes from opening a directory that holds a deployment.

    Raises:
        ConfigurationError: it holds none, or another process has it open.
    """
    lock = _locked(existing(path))
    try:
        yield
    finally:
        os.close(lock)


def _locked(path: Path) -> int:
    """The lock of a directory, which is made if it does not exist."""
    path.mkdir(parents=True, exist_ok=True)
    if not (path / NAME).exists() and any(each.name not in ("lock", "secrets") for each in path.iterdir()):
        raise ConfigurationError(f"{path} is not empty and holds no deployment: name an empty directory")
    path.chmod(0o700)
    lock = os.open(path / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        raise ConfigurationError(f"another process has {path} open: stop it first") from None
    return lock


def place_of(path: Path, name: str = NAME) -> str:
    """What identifies the place of a directory: the file system and the number of a file there."""
    return f"{os.statvfs(path).f_fsid:x} {(path / name).stat().st_ino}"


def is_copy(control: ControlFile, path: Path) -> bool:
    """Whether a deployment is in another place than where it was."""
    return control.text(PLACE) not in (None, place_of(path))


def _refuse_copy(control: ControlFile, path: Path) -> None:
    if is_copy(control, path):
        raise ConfigurationError(
            f"{path} is a copy of a deployment, or was moved to another file system. The same noise on other joins"
            f" would reveal them: run `kanon operate new-generation --data {path} --original DIR` with the directory"
            f" that it was copied from (none if that is lost) to give it noise of its own"
        )


def _settings(control: ControlFile, given: Given) -> EvaluateSettings:
    """The settings in force: those that are stored, with those that are given."""
    stored = json.loads(control.text(SETTINGS) or "{}")
    wanted = {"types": given.types, "period": given.period}
    values: dict[str, Any] = {DEPLOYMENT: given.draw(DEPLOYMENT), "period": HOUR}
    values |= {"noise_keys": _FIRST_KEYS, "log_generations": "[]"}
    values |= stored | {name: value for name, value in wanted.items() if value is not None}
    if "types" not in values:
        raise ConfigurationError("a new deployment needs types: give --type or --types")
    if stored and stored["period"] != values["period"]:
        raise ConfigurationError(f"the period of this deployment is {stored['period']} s, and never changes")
    try:
        return EvaluateSettings.model_validate({**_PLACES, **timing(int(values["period"])), **values})
    except ValidationError as error:
        problems = (f"{each['loc'][0]}: {reason(each)}" for each in error.errors())
        raise ConfigurationError("; ".join(problems)) from error


_FIRST_KEYS = json.dumps([{"id": FIRST_KEY, "from_step": 0}])
_STORED = ("deployment", "types", "noise_keys", "log_generations", "period")
_PLACES: dict[str, Any] = {
    "control_table": NAME,
    "statuses_table": NAME,
    "step_log_table": "log",
    "states_bucket": "parts",
    "noise_key_secret": f"secrets/{NOISE_KEYS}",
    "queue_url": "",
    "slots": "1",
}
"""Where the directory has what the names of the template's resources stand for."""


def _sealing(control: ControlFile, file: Path) -> Callable[[bytes, bytes], bytes]:
    """Seals values to the key of the lister, which is made when a deployment has its first listed type."""
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

    from kanon.gate.sealing import seal

    if not file.exists() and LIST_KEY not in control.recorded(OWNER):
        write_secret(file, X25519PrivateKey.generate().private_bytes_raw().hex())
    key = list_key(file).public_key()
    control.check(OWNER, {LIST_KEY: sha256(key.public_bytes_raw()).hexdigest()})
    return lambda value, set_key: seal(value, key, set_key)


def _check(
    control: ControlFile,
    settings: EvaluateSettings,
    types: Mapping[str, Type],
    secrets_: Iterable[Secret],
    noise_keys: Mapping[str, NoiseKey],
    now: float,
) -> None:
    """Compare the immutable values with those recorded, and record new ones (rule 7)."""
    recorded = control.recorded(OWNER)
    refuse_types(recorded, types)
    if recorded:
        step = step_at(now, settings.period)
        refuse_noise_keys(recorded, settings.noise_keys, types, step)
        refuse_without_key(recorded, settings.noise_keys, types, step)
    current = fingerprints(settings, types, secrets_)
    control.check(OWNER, {**current, **noise_key_fingerprints(settings.noise_keys, noise_keys)})


def _remember(control: ControlFile, path: Path, settings: EvaluateSettings) -> None:
    """Store the settings for the next start, and the place of the directory."""
    stored = {name: getattr(settings, name) for name in _STORED}
    for name in ("noise_keys", "log_generations"):
        stored[name] = json.dumps([entry.model_dump() for entry in stored[name]])
    control.put_text(SETTINGS, json.dumps(stored))
    control.put_text(PLACE, place_of(path))


def stored_settings(control: ControlFile) -> EvaluateSettings:
    """The settings with which the deployment of a control file was last opened."""
    return _settings(control, Given())
