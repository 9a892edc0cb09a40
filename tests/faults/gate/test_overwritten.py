"""A directory whose files were overwritten in place with older ones is noticed; one whose process stopped is not.

Each version of ``control.db`` and ``accounts.db`` that was there when somebody was told of a change is put over a later
one: alone, together, and with the whole directory. Processes stop at every call to the file system and to SQLite.
"""

import json
import shutil
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, nullcontext, suppress
from itertools import combinations_with_replacement, count
from pathlib import Path
from typing import Any, get_args

import pytest

import kanon.disk
from kanon import clock
from kanon.counted import FOLDER, Counted
from kanon.credentials.enrolling import AccountRow
from kanon.errors import ConfigurationError
from kanon.findings import Verdict
from kanon.gate.storage.disk import accounts as accounts_module
from kanon.gate.storage.disk import control as control_module
from kanon.gate.storage.disk.accounts import AccountsFile
from kanon.gate.storage.disk.control import NAME, ControlFile
from kanon.serving import directory as directory_module
from kanon.serving import doctor
from kanon.serving.api_keys import ApiKeys
from kanon.serving.backup import backup
from kanon.serving.directory import (
    ACCOUNTS,
    CLOSED_UNTIL,
    Given,
    new_generation,
    open_directory,
    retire,
    stored_settings,
)
from kanon.serving.enrolment import open_credentials
from tests.faults.gate.disk_faults import STOPPED, How, faulty_disk

PERIOD = 3600
STEP = 500_000
NOW = STEP * PERIOD + 1.0
TYPES = {
    "people": {"k": 50, "window": 24, "profile": "published", "credential": True},
    "others": {"k": 50, "window": 24, "profile": "published"},
}
WEEK = clock.week_of(NOW)
SET_KEY = bytes(32)
BOTH = (NAME, ACCOUNTS)
told: list[str] = []
"""What callers were told that it is done."""


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kanon.disk, "SYNCHRONOUS", "OFF")  # no process dies with the machine here
    monkeypatch.setattr(clock, "now", lambda: NOW)
    for module in (directory_module, doctor):
        monkeypatch.setattr(module, "place_of", lambda *_: "here")  # other tests are about places


def start(path: Path) -> None:
    with open_directory(path, Given(PERIOD, json.dumps(TYPES)), NOW) as directory:
        open_credentials(directory)
        told.append("start")


def _record(path: Path, account: int, recovery: bytes = b"") -> None:
    with closing(AccountsFile(path / ACCOUNTS)) as accounts:
        row = AccountRow(bytes(33), WEEK, deleted=False, recovery=recovery)
        accounts.record(account.to_bytes(32), row, WEEK - 9)
        told.append("recorded")


def enrol(path: Path) -> None:
    _record(path, 1)


def enrol_another(path: Path) -> None:
    _record(path, 2)


def enrol_again(path: Path) -> None:
    _record(path, 1, bytes(92))


def delete(path: Path) -> None:
    with closing(AccountsFile(path / ACCOUNTS)) as accounts:
        accounts.delete((1).to_bytes(32))
        told.append("deleted")


def evaluate(path: Path) -> None:
    with closing(ControlFile(path)) as control:
        before = control.evaluated_through()
        control.commit(control.begin_run(), before, STEP if before is None else before + 1, [], [], int(NOW))
        told.append("evaluated")


def make_key(path: Path) -> None:
    with closing(ControlFile(path)) as control:
        ApiKeys(lambda: control.database).make("key", NOW)


def revoke_key(path: Path) -> None:
    with closing(ControlFile(path)) as control:
        ApiKeys(lambda: control.database).revoke("key")


def suppress_set(path: Path) -> None:
    with closing(ControlFile(path)) as control:
        control.suppress(SET_KEY)


def show_set(path: Path) -> None:
    with closing(ControlFile(path)) as control:
        control.show(SET_KEY)


def unlist(path: Path) -> None:
    with closing(ControlFile(path)) as control:
        control.unlist(SET_KEY)


def begin_generation(path: Path) -> None:
    new_generation(path)


def retire_type(path: Path) -> None:
    retire(path, "others")


Act = Callable[[Path], None]
Files = Mapping[str, bytes]
OF_ACCOUNTS: tuple[Act, ...] = (enrol, enrol_another, enrol_again, delete)
HISTORY: tuple[Act, ...] = (
    enrol,
    evaluate,
    enrol_another,
    make_key,
    suppress_set,
    enrol_again,
    unlist,
    show_set,
    evaluate,
    revoke_key,
    delete,
)
NEXT: tuple[Act, ...] = (enrol_another, delete, evaluate, make_key, suppress_set, begin_generation, retire_type)


def files_of(path: Path) -> Files:
    """All files but the lock. No process has the directory open, so each database is one file."""
    found = {str(each.relative_to(path)): each.read_bytes() for each in path.rglob("*") if each.is_file()}
    assert not [name for name in found if name.endswith(("-wal", "-shm"))]
    return {name: content for name, content in found.items() if name != "lock"}


def overwrite(path: Path, files: Files) -> None:
    """What `cp` does: a file keeps its place, and no file goes."""
    for name, content in files.items():
        (path / name).parent.mkdir(exist_ok=True)
        with (path / name).open("r+b" if (path / name).exists() else "wb") as file:
            file.truncate()
            file.write(content)


def put_back(path: Path, files: Files) -> None:
    """Let the directory hold these files alone."""
    for each in [*path.rglob("*")]:
        if each.is_file() and str(each.relative_to(path)) not in {*files, "lock"}:
            each.unlink()
    overwrite(path, files)


def refused(path: Path, use: Act = start) -> bool:
    """Whether the service does not start."""
    try:
        use(path)
    except ConfigurationError as error:
        text = str(error)
    else:
        return False
    assert "overwritten with an older file" in text or "is missing" in text
    assert "new-generation" in text
    return True


def read(path: Path) -> None:
    """What every start does with the two files first."""
    for each in (ControlFile(path), AccountsFile(path / ACCOUNTS)):
        with closing(each):
            assert each.database


def test_other_files_beside_the_names_raise_no_alarm(tmp_path: Path) -> None:
    start(tmp_path)
    for name in BOTH:
        for end in ("999~", "999.part", ""):
            (tmp_path / "seen" / f"{name}-{end}").touch()
    assert not refused(tmp_path, read)
    (tmp_path / "seen" / f"{NAME}-999").touch()
    assert refused(tmp_path, read)


def made(path: Path) -> list[Files]:
    """A directory, and what it held after each act of the history."""
    start(path)
    versions = [files_of(path)]
    for act in HISTORY:
        act(path)
        versions.append(files_of(path))
    return versions


def check_history(path: Path) -> None:
    """Each older file is refused, and the last ones are not."""
    versions = made(path)
    for number, last in combinations_with_replacement(range(len(versions)), 2):
        older, changed = versions[number], {ACCOUNTS if act in OF_ACCOUNTS else NAME for act in HISTORY[number:last]}
        for names in ((NAME,), (ACCOUNTS,), BOTH, tuple(older)):
            put_back(path, versions[last])
            overwrite(path, {name: older[name] for name in names})
            use = start if last == len(HISTORY) else read
            assert refused(path, use) == bool(changed & {*names}), (number, last, names)


def check_faults(path: Path, act: Act, how: How) -> int:
    """A process that stops in an act raises no alarm, and hides no older file. Returns the number of its calls.

    What was changed before the act is refused if it is put back; what the act has changed, once somebody was told.
    """
    versions = made(path)
    first, last = versions[0], versions[-1]
    for at in count(1):
        put_back(path, last)
        told.clear()
        with faulty_disk(path, at, how) as disk, suppress(*STOPPED):
            act(path)
            told.append("returned")
        if disk.dead:
            disk.lose_power(path)
        name = ACCOUNTS if act in OF_ACCOUNTS else NAME
        if told:  # without a start meanwhile, which remembers what it finds
            found = files_of_stopped(path)
            overwrite_stopped(path, {name: last[name]})
            assert refused(path, read), f"call {at} of {disk.calls}"
            put_back(path, found)
        assert not refused(path, read), f"call {at} of {disk.calls}"
        found = files_of(path)
        for name in BOTH:
            overwrite(path, {name: first[name]})
            assert refused(path, read), f"{name}, call {at} of {disk.calls}"
            put_back(path, found)
        if len(disk.calls) < at:
            assert told
            return at - 1
    raise AssertionError


def files_of_stopped(path: Path) -> Files:
    return {str(each.relative_to(path)): each.read_bytes() for each in path.rglob("*") if each.is_file()}


def overwrite_stopped(path: Path, files: Files) -> None:
    """Put a file back whose process has stopped without closing it: what it left beside is of the other file."""
    for name in files:
        for beside in ("-wal", "-shm"):
            (path / f"{name}{beside}").unlink(missing_ok=True)
    overwrite(path, files)


def check_new_generation(path: Path, how: How) -> None:
    """A new generation of older files ends what they lack, or leaves them refused."""
    versions = made(path)
    older, last = versions[5], versions[-1]
    for names in ((NAME,), (ACCOUNTS,), BOTH):
        for at in count(1):
            put_back(path, {**last, **{name: older[name] for name in names}})
            with faulty_disk(path, at, how) as disk, suppress(*STOPPED):
                new_generation(path)
            if disk.dead:
                disk.lose_power(path)
            if refused(path):
                new_generation(path)
                assert not refused(path)
            with closing(ControlFile(path)) as control, closing(AccountsFile(path / ACCOUNTS)) as accounts:
                assert stored_settings(control).log_generations, f"{names}, call {at} of {disk.calls}"
                assert float(control.text(CLOSED_UNTIL) or 0) > NOW
                assert accounts.read((2).to_bytes(32)) is None
            if len(disk.calls) < at:
                break


def test_an_older_file_is_refused_whichever_it_is(tmp_path: Path) -> None:
    check_history(tmp_path / "d")


@pytest.mark.parametrize("act", NEXT)
@pytest.mark.parametrize("how", get_args(How))
def test_a_process_that_stops_raises_no_alarm_and_hides_nothing(
    tmp_path: Path, act: Act, how: How, record_property: Callable[[str, int], None]
) -> None:
    calls = check_faults(tmp_path / "d", act, how)
    assert calls > 5
    record_property("fault_points", calls)


@pytest.mark.parametrize("how", get_args(How))
def test_a_new_generation_ends_what_older_files_lack(tmp_path: Path, how: How) -> None:
    check_new_generation(tmp_path / "d", how)


def test_no_command_writes_into_an_older_file(tmp_path: Path) -> None:
    """Otherwise its number would grow until it is the one that was seen."""
    versions = made(tmp_path / "d")
    overwrite(tmp_path / "d", {NAME: versions[3][NAME]})
    for act in (make_key, suppress_set, show_set, unlist, evaluate, retire_type, start):
        assert refused(tmp_path / "d", act)
    with pytest.raises(ConfigurationError, match="overwritten"):
        backup(tmp_path / "d", tmp_path / "copy")
    found = {each.check: each for each in doctor.examine_directory(tmp_path / "d", NOW)}
    assert found["deployment"].verdict is Verdict.FAIL
    assert (tmp_path / "d" / NAME).read_bytes() == versions[3][NAME]


def test_the_doctor_sees_older_accounts_and_no_others(tmp_path: Path) -> None:
    versions = made(tmp_path / "d")
    for files, verdict in ((versions[-1], Verdict.OK), (versions[2], Verdict.FAIL)):
        overwrite(tmp_path / "d", {ACCOUNTS: files[ACCOUNTS]})
        found = {each.check: each for each in doctor.examine_directory(tmp_path / "d", NOW)}
        assert found["deployment"].verdict is verdict


def test_a_directory_of_before_files_were_counted_opens(tmp_path: Path) -> None:
    start(tmp_path / "d")
    with closing(sqlite3.connect(tmp_path / "d" / NAME)) as database:
        for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
            database.execute(f"DROP TRIGGER {name}")
        database.execute("DROP TABLE changes")
        database.commit()
    shutil.rmtree(tmp_path / "d" / FOLDER)
    before = files_of(tmp_path / "d")
    assert not refused(tmp_path / "d")
    overwrite(tmp_path / "d", {NAME: before[NAME]})
    assert refused(tmp_path / "d")


def test_commands_beside_a_service_count_with_it(tmp_path: Path) -> None:
    start(tmp_path / "d")
    with open_directory(tmp_path / "d", None, NOW) as directory:
        for _ in range(3):
            suppress_set(tmp_path / "d")
            directory.control.show(SET_KEY)
            directory.control.remember()
        assert not directory.control.overwritten
        assert len([*(tmp_path / "d" / FOLDER).glob(f"{NAME}-*")]) == 1
    assert not refused(tmp_path / "d")


# Planted mistakes


@contextmanager
def told_too_early(connection: sqlite3.Connection) -> Iterator[None]:
    """A transaction whose change is repeated outside of the file before it is made."""
    with kanon.disk.transaction(connection):
        yield
        file = Path(connection.execute("PRAGMA database_list").fetchone()[2])
        number = connection.execute("SELECT number FROM changes").fetchone()[0]
        (file.parent / FOLDER).mkdir(exist_ok=True)
        (file.parent / FOLDER / f"{file.name}-{number}").write_bytes(b"")


def _without(tables: str) -> str:
    return "END;".join(part for part in control_module.COUNTING.split("END;") if tables not in part)


Patch = pytest.MonkeyPatch
PLANTED: dict[str, tuple[Callable[[Patch], None], Callable[[Path], Any]]] = {
    "told before the change": (
        lambda patch: patch.setattr(accounts_module, "transaction", told_too_early),
        lambda path: check_faults(path, enrol_another, "before"),
    ),
    "remembered at the end only": (
        lambda patch: patch.setattr(
            AccountsFile, "remember", lambda self: None if told[-1:] != ["recorded"] else Counted.remember(self)
        ),
        lambda path: check_faults(path, enrol_another, "before"),
    ),
    "never remembered": (lambda patch: patch.setattr(Counted, "remember", lambda _: None), check_history),
    "the oldest name counts": (
        lambda patch: patch.setattr(
            Counted, "_last_seen", lambda self: min((number for number, _ in self._names()), default=0)
        ),
        check_history,
    ),
    "keys are not counted": (
        lambda patch: patch.setattr(control_module, "COUNTING", _without("ON api_keys")),
        check_history,
    ),
    "suppressed sets are not counted": (
        lambda patch: patch.setattr(control_module, "COUNTING", _without("ON statuses")),
        check_history,
    ),
    "a generation in several transactions": (
        lambda patch: patch.setattr(directory_module, "transaction", lambda _: nullcontext()),
        lambda path: check_new_generation(path, "after"),
    ),
    "older accounts stay": (
        lambda patch: patch.setattr(Counted, "remove", Counted.close),
        lambda path: check_new_generation(path, "after"),
    ),
}


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_mistake_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    plant, check = PLANTED[name]
    plant(monkeypatch)
    with pytest.raises(AssertionError):
        check(tmp_path / "d")
