"""Files of one machine are as durable as an answer promises: what was acknowledged survives a loss of power."""

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

import kanon.disk
from kanon.disk import connect
from kanon.gate.storage.disk.control import ControlFile
from kanon.gate.storage.disk.log import DiskLog

FULL = 2
"""What SQLite says if each commit waits for the disk."""


def of_control(path: Path) -> Iterator[sqlite3.Connection]:
    with closing(ControlFile(path)) as control:
        yield control.database


def of_log(path: Path) -> Iterator[sqlite3.Connection]:
    log = DiskLog(path / "log", {}, None)
    yield log._file(1)
    log.stop()


def of_any(path: Path) -> Iterator[sqlite3.Connection]:
    with closing(connect(path / "file.db")) as database:
        yield database


@pytest.mark.parametrize("opened", [of_control, of_log, of_any])
def test_a_commit_waits_for_the_disk(tmp_path: Path, opened: Callable[[Path], Iterator[sqlite3.Connection]]) -> None:
    assert kanon.disk.SYNCHRONOUS == "FULL"
    for database in opened(tmp_path):
        assert database.execute("PRAGMA synchronous").fetchone() == (FULL,)
        assert database.execute("PRAGMA journal_mode").fetchone() == ("wal",)
