"""A worker of a directory may stop at any call: what it releases and takes is that of one that does not."""

import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, get_args

import pytest

import kanon.disk
from kanon import clock
from kanon.errors import ConfigurationError, KanonError
from kanon.reports.service import one_machine
from kanon.reports.service.one_machine import FileSpending, ReportsWorker
from kanon.reports.storage import disk as storage
from kanon.reports.storage.budgets import CommitOutcome
from kanon.reports.storage.disk import ReportsFile
from kanon.reports.storage.report_jobs import State
from tests.faults.fault_injector import ProcessDied
from tests.faults.gate.disk_faults import Disk, How, faulty_disk
from tests.faults.gate.test_crash_on_disk import EVERY, settle
from tests.faults.reports import reports_on_disk
from tests.faults.reports.reports_on_disk import NOW, at, begin, check, outcome, work

KILLS = 60 if os.environ.get("FAULTS") else 4


def stop_clock(patch: pytest.MonkeyPatch) -> None:
    for owner, name in ((clock, "now"), (kanon.disk, "SYNCHRONOUS"), (storage, "_etag")):
        patch.setattr(owner, name, getattr(owner, name))  # put back after the test
    at(NOW)


@pytest.fixture(autouse=True)
def one_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    stop_clock(monkeypatch)


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with pytest.MonkeyPatch.context() as patch:
        stop_clock(patch)
        path = tmp_path_factory.mktemp("begun") / "d"
        begin(path)
        yield path


def copied(begun: Path, to: Path) -> Path:
    shutil.copytree(begun, to)
    settle(to)
    return to


def stopped(begun: Path, to: Path, place: int, how: How) -> tuple[Any, Disk]:
    """What a run has released if its call ``place`` fails and it is then repeated; and the disk."""
    path = copied(begun, to)
    with faulty_disk(path, place, how) as disk:
        try:
            work(path)
        except (ProcessDied, KanonError, OSError, sqlite3.Error):
            assert place
    if disk.dead:
        disk.lose_power(path)
    work(path)
    return outcome(path), disk


def points(disk: Disk) -> Sequence[int]:
    number = get_args(How).index(disk.how)
    return disk.points[5 * number :: 15] if EVERY is None else range(1 + number % EVERY, len(disk.calls) + 1, EVERY)


@pytest.mark.parametrize("how", get_args(How))
def test_a_worker_that_stops_at_any_call_is_made_up_for_by_the_next(
    tmp_path: Path, begun: Path, how: How, record_property: Callable[[str, int], None]
) -> None:
    expected, disk = stopped(begun, tmp_path / "whole", 0, how)
    check(expected)
    assert len(disk.calls) > 100
    for place in points(disk):
        found, _ = stopped(begun, tmp_path / "fault", place, how)
        assert found == expected, f"call {place} of {disk.calls}"
        shutil.rmtree(tmp_path / "fault")
    record_property("fault_points", len(points(disk)))


def put_back(begun: Path, path: Path) -> bool:
    """Put the file of before all jobs over a later one. Returns whether it is refused."""
    for beside in ("-wal", "-shm"):
        (path / f"{storage.NAME}{beside}").unlink(missing_ok=True)
    shutil.copyfile(begun / storage.NAME, path / storage.NAME)
    try:
        work(path)
    except ConfigurationError as error:
        return "new-generation" in str(error) and "budget could be spent twice" in str(error)
    return False


def unnoticed(begun: Path, to: Path, how: How) -> list[int]:
    """The calls after whose failure a summary can be read, and an older file may be put back."""
    _, disk = stopped(begun, to / "whole", 0, how)
    wrong, released = [], 0
    for place in points(disk):
        path = copied(begun, to / "fault")
        with faulty_disk(path, place, how) as stopping, suppress(ProcessDied, KanonError, OSError, sqlite3.Error):
            work(path)
        if stopping.dead:
            stopping.lose_power(path)
        if any((path / "summaries").glob("output/*")):
            released += 1
            wrong += [place] * (not put_back(begun, path))
        shutil.rmtree(path)
    assert released > 0
    return wrong


@pytest.mark.parametrize("how", get_args(How))
def test_an_older_file_is_refused_once_a_summary_can_be_read(tmp_path: Path, begun: Path, how: How) -> None:
    assert unnoticed(begun, tmp_path, how) == []


def test_a_commit_that_is_not_remembered_is_found(tmp_path: Path, begun: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ReportsFile, "remember", lambda _: None)
    assert unnoticed(begun, tmp_path, "after")


def found_at(begun: Path, tmp_path: Path, how: How) -> list[int]:
    """The calls after whose failure a run releases or takes something else, or fails again."""
    expected, disk = stopped(begun, tmp_path / "whole", 0, how)
    wrong = []
    for place in disk.points:
        try:
            differs = stopped(begun, tmp_path / "fault", place, how)[0] != expected
        except (KanonError, OSError, RuntimeError, AssertionError, sqlite3.Error):
            differs = True
        wrong += [place] * differs
        shutil.rmtree(tmp_path / "fault")
        if wrong:
            break
    return wrong


def spent_apart(self: FileSpending, job: str, charges: Any, amount: Any, claim: str, **values: Any) -> CommitOutcome:
    """A commit in two transactions."""
    file, now = self.budgets.file, self.clock()
    row = file.read(job)
    assert row is not None
    if not self._is_enough(charges, amount):
        return CommitOutcome.EXHAUSTED
    with file.changing():
        file.take(charges, job, claim, amount)
    file.move(row, State.COMMITTED, now, committed_at=int(now), **values)
    return CommitOutcome.COMMITTED


def forgotten_first(self: ReportsWorker, now: float) -> None:
    """Arrivals are deleted before their objects are written."""
    arrived = self.file.arrived(99)
    batch = one_machine.ReportBatch()
    for number, message in arrived.items():
        batch.add(str(number), message)
    self.file.stored(arrived)
    for file in batch.files(now):
        self.collected.put_new(file.key, file.body)


def not_flushed(path: Path) -> None:
    """A folder whose names are not written to the disk."""


@pytest.mark.parametrize(
    ("owner", "name", "mistake"),
    [
        (FileSpending, "commit", spent_apart),
        (ReportsWorker, "store", forgotten_first),
        (kanon.disk, "flush", not_flushed),
    ],
)
def test_a_planted_mistake_is_found(
    tmp_path: Path, begun: Path, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, mistake: Any
) -> None:
    monkeypatch.setattr(owner, name, mistake)
    assert found_at(begun, tmp_path, "after")


def test_a_worker_that_is_killed_releases_and_takes_what_one_that_is_not_does(tmp_path: Path, begun: Path) -> None:
    whole = copied(begun, tmp_path / "whole")
    work(whole)
    expected = outcome(whole)
    check(expected)
    chance = random.Random(1)
    for kill in range(KILLS):
        path = copied(begun, tmp_path / "killed")
        command = [sys.executable, "-m", reports_on_disk.__name__, str(path)]
        ends = 0
        while ends == 0:
            process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
            try:
                process.communicate(timeout=chance.uniform(1, 3))
                ends += 1
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGKILL)
                process.communicate()
        assert process.returncode == 0
        assert outcome(path) == expected, f"kill {kill}"
        shutil.rmtree(path)
