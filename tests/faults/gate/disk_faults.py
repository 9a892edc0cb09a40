"""Injects faults between a use case and the disk: at the n-th call to the file system or to SQLite.

A process that dies makes no call any more. After a loss of power, a file whose content was not flushed is torn, and one
whose name was not flushed is gone. SQLite's own promise, a transaction is there or not, is not tested here.
"""

import errno
import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import pytest

from kanon.errors import KanonError
from tests.faults.fault_injector import ProcessDied

How = Literal["before", "after", "full"]
"""The process dies before the call, or after it; or the call fails, because the disk is full."""
STOPPED = (ProcessDied, KanonError, OSError, sqlite3.Error)
"""How a use case ends after a call that failed."""
SQL = ("execute", "executemany", "executescript", "backup")
FILES = ((os, ("fsync", "link", "open")), (Path, ("unlink", "rename", "replace", "mkdir", "open", "write_bytes")))


@dataclass
class Disk:
    """The calls of a run.

    Attributes:
        at: the number of the call that fails, from 1; 0 for none.
        how: how it fails.
        calls: the names of the calls so far.
        dead: whether the process has died.
        flushed, named: what is on the disk: contents, and names.
    """

    at: int
    how: How
    calls: list[str] = field(default_factory=list)
    dead: bool = False
    flushed: set[Path] = field(default_factory=set)
    named: set[Path] = field(default_factory=set)

    def call(self, name: str, made: Callable[[], Any], full: Exception) -> Any:
        if self.dead:
            raise ProcessDied
        self.calls.append(name)
        if len(self.calls) != self.at:
            return made()
        if self.how == "full":
            raise full
        if self.how == "after":
            _close(made())
        self.dead = True
        raise ProcessDied

    @property
    def points(self) -> list[int]:
        """The numbers of the calls that are the first of their kind after one of another kind."""
        seen: dict[tuple[str, str], int] = {}
        for number, pair in enumerate(pairwise(["", *self.calls]), 1):
            seen.setdefault(pair, number)
        return list(seen.values())

    def fsync(self, handle: int) -> None:
        """What a file, or a folder, holds is on the disk."""
        path = Path(f"/proc/self/fd/{handle}").readlink()
        self.flushed.add(path)
        if path.is_dir():
            self.named.update(path.iterdir())

    def link(self, source: Path, name: Path) -> None:
        """A file has one more name, which is not on the disk yet."""
        if source in self.flushed:
            self.flushed.add(name)

    def lose_power(self, directory: Path) -> None:
        """Tear the files whose content is not on the disk; remove those whose name, or a folder's, is not."""
        for path in sorted(_written_once(directory)):
            if not self.named.issuperset(each for each in (path, *path.parents) if directory in each.parents):
                path.unlink() if path.is_file() else None
            elif path.is_file() and path not in self.flushed:
                path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def _written_once(directory: Path) -> set[Path]:
    """The parts, the objects of reports, the secrets and the names of what was seen, and their folders."""
    folders = [directory / name for name in ("parts", "reports", "summaries", "work", "secrets", "seen")]
    return {path for folder in folders if folder.exists() for path in (folder, *folder.rglob("*"))}


def _close(result: Any) -> None:
    """The files of a process that died are closed."""
    if isinstance(result, int) and not isinstance(result, bool):
        with suppress(OSError):
            os.close(result)
    elif hasattr(result, "close") and not isinstance(result, sqlite3.Cursor):
        result.close()


@contextmanager
def faulty_disk(directory: Path, at: int, how: How) -> Iterator[Disk]:
    """All calls in this context, of all threads, go through a disk. What is in the directory is on it."""
    disk = Disk(at, how, flushed=_written_once(directory), named=_written_once(directory))
    with pytest.MonkeyPatch.context() as patch:

        def through(owner: Any, name: str, full: Callable[[], Exception]) -> None:
            original = getattr(owner, name)

            def called(*arguments: Any, **more: Any) -> Any:
                made = disk.call(name, lambda: original(*arguments, **more), full())
                if name == "fsync":
                    disk.fsync(arguments[0])
                if name == "link":
                    disk.link(Path(arguments[0]), Path(arguments[1]))
                return made

            patch.setattr(owner, name, called)

        opened: list[sqlite3.Connection] = []

        class Faulty(sqlite3.Connection):
            def __init__(self, *arguments: Any, **more: Any) -> None:
                super().__init__(*arguments, **more)
                opened.append(self)

        for name in SQL:
            original = getattr(sqlite3.Connection, name)

            def called(self: Any, *arguments: Any, _original: Any = original, _name: str = name, **more: Any) -> Any:
                full = sqlite3.OperationalError("database or disk is full")
                statement = f"{_name} {arguments[0]}" if _name != "backup" else _name
                return disk.call(statement[:60], lambda: _original(self, *arguments, **more), full)

            setattr(Faulty, name, called)
        connect = sqlite3.connect
        patch.setattr(sqlite3, "connect", lambda *arguments, **more: connect(*arguments, factory=Faulty, **more))
        for owner, names in FILES:
            for name in names:
                through(owner, name, lambda: OSError(errno.ENOSPC, "No space left on device"))
        try:
            yield disk
        finally:
            for connection in opened:  # the system closes those of a process that died
                sqlite3.Connection.close(connection)
