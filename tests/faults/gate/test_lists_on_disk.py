"""A lister may stop at any call to the file system or to SQLite: readers see whole lists, and the next run the same."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import pytest

import kanon.disk
from kanon.errors import ConfigurationError
from kanon.gate import deciding
from kanon.gate import lists as gate_lists
from kanon.gate.lists import ReadableList, place_of_step
from kanon.serving import lists
from kanon.serving.directory import retire
from kanon.serving.lists import Lister, ListsFile
from kanon.serving.unlisting import take_over, unlist
from tests.faults.gate.disk_faults import STOPPED, How, faulty_disk
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
        unlist(directory, "grid", VALUES[1])


def retired(path: Path) -> Any:
    try:
        retire(path, "grid")
    except ConfigurationError as error:  # the run before was done
        assert "has no type 'grid'" in str(error)  # noqa: PT017, it need not be raised


def taken_over(path: Path) -> Any:
    """A copy takes what was unlisted, before it gets noise of its own."""
    take_over(path, path.parent / "original")


def seen(path: Path) -> dict[str, tuple[ReadableList, list[Any]]]:
    """The newest lists as readers see them, and history."""
    file = ListsFile(path)
    found = {name: file.newest(name) for name in LISTED}
    rows = {name: (each, file.page(name, each, b"", 1000)) for name, each in found.items() if each}
    file.close()
    return rows


EXPECTED: dict[Callable[[Path], Any], dict[str, int]] = {
    listed: dict.fromkeys(LISTED, LAST),
    unlisted: dict.fromkeys(LISTED, LAST - 1),
    retired: {"crossing": LAST - 1},
    taken_over: {},  # the lists are made again
}


def values_of(path: Path, files: dict[str, bytes]) -> set[str]:
    """The values of one type in the history."""
    return {row.value for name in files if "/grid/" in name for row in gate_lists.read_parquet(path / name)}


def history(path: Path) -> dict[str, bytes]:
    return {str(file.relative_to(path)): file.read_bytes() for file in (path / lists.FOLDER).rglob("values.parquet")}


@pytest.mark.parametrize("how", get_args(How))
@pytest.mark.parametrize("use", [listed, unlisted, retired, taken_over])
def test_a_run_that_stops_at_any_call_is_made_up_for_by_the_next(
    tmp_path: Path, made: Path, use: Callable[[Path], Any], how: How
) -> None:
    shutil.copytree(made, tmp_path / "original")
    settle(tmp_path / "original")
    unlisted(tmp_path / "original")

    def run(to: Path, at: int) -> Any:
        shutil.copytree(made, to)
        settle(to)
        before = seen(to)
        with faulty_disk(to, at, how) as disk:
            try:
                use(to)
            except STOPPED:
                assert at
        between = seen(to)
        use(to)
        after = seen(to)
        for name in LISTED:  # a whole list, the one before or the new one
            seen_by = before.get(name), after.get(name)
            assert between.get(name) in seen_by or use is taken_over, f"call {at} of {disk.calls}"
        return after, history(to), disk

    after, files, disk = run(tmp_path / "whole", 0)
    steps = {name: found.step for name, (found, _) in after.items()}
    assert steps == EXPECTED[use]
    assert (VALUES[1] in values_of(tmp_path / "whole", files)) is (use in (listed, retired))
    assert len(disk.calls) > 16
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
