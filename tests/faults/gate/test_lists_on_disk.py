"""A lister may stop at any call to the file system or to SQLite: readers see whole lists, and the next run the same."""

import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import pytest

import kanon.disk
from kanon.errors import KanonError
from kanon.gate import deciding
from kanon.gate import lists as gate_lists
from kanon.gate.lists import Found, place_of_step
from kanon.serving import lists
from kanon.serving.lists import Lister, ListsFile
from kanon.serving.unlisting import unlist
from tests.faults.fault_injector import ProcessDied
from tests.faults.gate.disk_faults import How, faulty_disk
from tests.faults.gate.test_crash_on_disk import points, settle
from tests.integration.serving.listing import FIRST, LISTED, VALUES, closed, join, opened, visible

LAST = FIRST + 12


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kanon.disk, "SYNCHRONOUS", "OFF")
    monkeypatch.setattr(deciding, "MOST_PART_BYTES", 3000)
    monkeypatch.setattr(gate_lists, "ROWS_A_GROUP", 2)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A deployment whose last step is evaluated and not listed."""
    path = tmp_path_factory.mktemp("made") / "d"
    with opened(path, FIRST * 60) as directory:
        lister = Lister(directory)
        for step in range(FIRST, LAST + 1):
            join(directory, step)
            directory.evaluate(closed(step))
            if step < LAST:
                lister.publish(visible(directory, step))
        lister.file.close()
    return path


def listed(path: Path) -> Any:
    with opened(path, closed(LAST)) as directory:
        lister = Lister(directory, days=1)
        lister.publish(visible(directory, LAST))
        lister.file.close()


def unlisted(path: Path) -> Any:
    with opened(path, closed(LAST)) as directory:
        unlist(directory, "grid", VALUES[0])


def seen(path: Path) -> dict[str, tuple[Found, list[Any]]]:
    """The newest lists as readers see them, and history."""
    file = ListsFile(path)
    found = {name: file.newest(name) for name in LISTED}
    rows = {name: (each, file.page(name, each, b"", 1000)) for name, each in found.items() if each}
    file.close()
    return rows


def history(path: Path) -> dict[str, bytes]:
    return {str(file.relative_to(path)): file.read_bytes() for file in (path / lists.FOLDER).rglob("values.parquet")}


@pytest.mark.parametrize("how", get_args(How))
@pytest.mark.parametrize("use", [listed, unlisted])
def test_a_run_that_stops_at_any_call_is_made_up_for_by_the_next(
    tmp_path: Path, made: Path, use: Callable[[Path], Any], how: How
) -> None:
    def run(to: Path, at: int) -> Any:
        shutil.copytree(made, to)
        settle(to)
        before = seen(to)
        with faulty_disk(to, at, how) as disk:
            try:
                use(to)
            except (ProcessDied, KanonError, OSError, sqlite3.Error):
                assert at
        between = seen(to)
        use(to)
        after = seen(to)
        for name in LISTED:  # a whole list, the one before or the new one
            assert between[name] in (before[name], after[name]), f"call {at} of {disk.calls}"
        return after, history(to), disk

    after, files, disk = run(tmp_path / "whole", 0)
    assert {found.step for found, _ in after.values()} == {LAST if use is listed else LAST - 1}
    assert len(disk.calls) > 20
    for at in points(disk):
        found, others, _ = run(tmp_path / str(at), at)
        assert found == after
        assert others == files, f"call {at} of {disk.calls}"
        shutil.rmtree(tmp_path / str(at))


def test_the_history_of_a_list_is_there_when_the_list_is(tmp_path: Path, made: Path) -> None:
    """A planted order: the list first. Then a process that dies leaves a list without its history for ever."""

    def history_missing(order: str, monkeypatch: pytest.MonkeyPatch) -> bool:
        to = tmp_path / order
        shutil.copytree(made, to)
        settle(to)
        if order == "list first":
            monkeypatch.setattr(lists, "write_history", lambda *_: None)  # the process dies before it
        listed(to)
        monkeypatch.undo()
        listed(to)
        place = lists.history_of(to, "grid") / place_of_step(LAST, 60)
        return not place.exists()

    with pytest.MonkeyPatch.context() as patch:
        assert not history_missing("history first", patch)
        assert history_missing("list first", patch)
