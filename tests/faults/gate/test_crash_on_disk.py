"""A run of a directory may stop at any call to the file system or to SQLite: the next one gives the same answers."""

import json
import os
import random
import shutil
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, get_args

import pytest

import kanon.disk
from kanon.gate import deciding
from kanon.gate.storage.disk.control import ControlFile
from kanon.serving import arrivals
from kanon.serving.backup import backup
from kanon.serving.directory import PLACE, new_generation, place_of
from kanon.serving.forgetting import forget
from kanon.serving.gating import run
from kanon.serving.importing import import_log
from kanon.serving.output import append, written
from kanon.serving.replaying import replay
from tests.faults.gate.disk_faults import STOPPED, Disk, How, faulty_disk
from tests.integration.serving.own_joins import (
    FIRST,
    PERIOD,
    SETS,
    Row,
    batches,
    opened,
    sizes,
    unreferenced,
    with_fixed_secrets,
)

EVERY = {"every": 1, "all": 4}.get(os.environ.get("FAULTS", ""))
"""Of the calls, each so-many-th fails: of 3,000 all take a quarter of an hour. None: a few."""
WHO = "who"
STEPS = range(FIRST, FIRST + 4)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    with_fixed_secrets(monkeypatch, request.node.nodeid)
    monkeypatch.setattr(kanon.disk, "SYNCHRONOUS", "OFF")  # no process dies with the machine here
    monkeypatch.setattr(deciding, "MOST_PART_BYTES", 400)
    monkeypatch.setattr(deciding, "MOST_JOINS_A_RANGE", 8)
    monkeypatch.setattr(arrivals, "ENTRIES_A_MOVE", 30)


def rows_of(step: int) -> list[Row]:
    rng = random.Random(step)
    return [
        Row(step * PERIOD + rng.randrange(PERIOD), text, client)
        for text in SETS[:5]
        for client in [*map(str, rng.sample(range(12), rng.randrange(7))), WHO]
    ]


def gated(path: Path, step: int) -> Any:
    """A run with a table: what it has released, and the members of each set."""
    table, now = path.with_name("statuses.csv"), (step + 0.5) * PERIOD
    before = written(table)
    with opened(path, now) as directory:
        ran = run(directory, batches(rows_of(step)), now, -1 if before is None else before.step)
        assert ran.statuses is not None
        append(table, ran.statuses, PERIOD)
        return ran.statuses.true, table.read_text(), sizes(directory)


def imported(path: Path, _: int) -> Any:
    rows = [row for step in range(FIRST - 4, FIRST + 1) for row in rows_of(step)]
    shutil.rmtree(path / "unused", ignore_errors=True)
    with opened(path, FIRST * PERIOD, to_import=True) as directory:
        if directory.control.manifest() is None:
            import_log(directory, batches(rows), FIRST * PERIOD)
        joined, manifest = directory.log.count(FIRST), directory.control.manifest()
        return sizes(directory), joined, None if manifest is None else manifest.step


def forgotten(path: Path, step: int) -> Any:
    with opened(path, (step + 0.5) * PERIOD) as directory:
        forget(directory, WHO, [text.encode() for text in SETS])
        return sizes(directory), forget(directory, WHO, [text.encode() for text in SETS])


def replayed(path: Path, step: int) -> Any:
    with opened(path, (step + 0.5) * PERIOD) as directory:
        differences = replay(directory, None, step * PERIOD).differences
    assert differences == ()


def renewed(path: Path, _: int) -> Any:
    return new_generation(path)


def rekeyed(path: Path, step: int) -> Any:
    first = new_generation(path, new_key=True)
    with opened(path, (step + 0.5) * PERIOD) as directory:
        entries = directory.settings.noise_keys
    texts = json.loads((path / "secrets" / "noise-keys.json").read_text())
    assert texts.keys() == {entry.id for entry in entries}
    return first, [entry.from_step for entry in entries], sorted(each.name for each in (path / "secrets").iterdir())


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Deployments with the same secrets: a new one, one after some steps, and this one without its newest parts."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(deciding, "MOST_PART_BYTES", 400)
        patch.setattr(deciding, "MOST_JOINS_A_RANGE", 8)  # a replay divides parts like this too
        with_fixed_secrets(patch, "made")
        folder = tmp_path_factory.mktemp("made")
        opened(folder / "new" / "d", FIRST * PERIOD).close()
        shutil.copytree(folder / "new", folder / "old")
        settle(folder / "old" / "d")
        for step in STEPS:
            gated(folder / "old" / "d", step)
        shutil.copytree(folder / "old", folder / "damaged")
        damage(folder / "damaged" / "d")
        return {name: folder / name for name in ("new", "old", "damaged")}


def damage(path: Path) -> None:
    """Overwrite and delete the parts that came after the oldest manifest."""
    with closing(ControlFile(path)) as control:
        oldest, *later = control.manifests()
    names = sorted({piece.name for each in later for piece in each.pieces} - {piece.name for piece in oldest.pieces})
    assert len(names) > 1
    for name in names[1:]:
        (path / "parts" / name).write_bytes(b"torn")
    (path / "parts" / names[0]).unlink()


def settle(path: Path) -> None:
    """Make a copy the deployment itself: its secrets, and so its noise, are the same. Only a test may do this."""
    control = ControlFile(path)
    control.put_text(PLACE, place_of(path))
    control.close()


def later(path: Path) -> list[Any]:
    """What the next steps release; nothing without use is left after them."""
    found = [gated(path, step) for step in range(STEPS.stop + 1, STEPS.stop + 8, 2)]
    with opened(path, (STEPS.stop + 8) * PERIOD) as directory:
        directory.segments.keep((STEPS.stop + 8) * PERIOD)
        assert unreferenced(directory) == set()
        return [*found, sizes(directory)]


CASES: dict[str, tuple[str, Callable[[Path, int], Any]]] = {
    "gate": ("old", gated),
    "first gate": ("new", gated),
    "import": ("new", imported),
    "forget": ("old", forgotten),
    "new generation": ("old", renewed),
    "new noise key": ("old", rekeyed),
    "replay": ("old", replayed),
    "replay of lost parts": ("damaged", replayed),
}


def outcome(
    source: Path,
    to: Path,
    use: Callable[[Path, int], Any],
    at: int,
    how: How,
    after: Callable[[Path], Any] = later,
) -> tuple[Any, Disk]:
    """What a use gives and what follows, if its call ``at`` fails and it is then repeated; and the disk."""
    shutil.copytree(source, to)
    settle(to / "d")
    step = FIRST if source.name == "new" else STEPS.stop
    with faulty_disk(to / "d", at, how) as disk:
        try:
            use(to / "d", step)
        except STOPPED:
            assert at
    if disk.dead:
        disk.lose_power(to / "d")
    result = use(to / "d", step)
    return (result, after(to / "d") if use not in (renewed, rekeyed) else None), disk


def points(disk: Disk) -> Sequence[int]:
    """The calls that fail: all of them in every way, or some, each in one way."""
    number = get_args(How).index(disk.how)
    return disk.points[3 * number :: 18] if EVERY is None else range(1 + number % EVERY, len(disk.calls) + 1, EVERY)


@pytest.mark.parametrize("how", get_args(How))
@pytest.mark.parametrize("name", CASES)
def test_a_run_that_stops_at_any_call_is_made_up_for_by_the_next(
    tmp_path: Path, made: dict[str, Path], name: str, how: How, record_property: Callable[[str, int], None]
) -> None:
    state, use = CASES[name]
    (tmp_path / "fault").mkdir()
    expected, disk = outcome(made[state], tmp_path / "whole", use, 0, how)
    assert len(disk.calls) > 5
    for at in points(disk):
        found, _ = outcome(made[state], tmp_path / "fault" / str(at), use, at, how)
        assert found == expected, f"call {at} of {disk.calls}"
        shutil.rmtree(tmp_path / "fault" / str(at))
    record_property("fault_points", len(points(disk)))


@pytest.mark.parametrize("how", get_args(How))
def test_a_backup_that_stops_is_no_deployment_and_changes_nothing(
    tmp_path: Path, made: dict[str, Path], how: How
) -> None:
    shutil.copytree(made["old"], tmp_path / "whole")
    settle(tmp_path / "whole" / "d")
    with faulty_disk(tmp_path / "b", 0, how) as disk:
        backup(tmp_path / "whole" / "d", tmp_path / "b")
    for at in points(disk):
        to = tmp_path / f"b{at}"
        with faulty_disk(to, at, how), suppress(*STOPPED):
            backup(tmp_path / "whole" / "d", to)
        if (to / "control.db").exists():
            assert new_generation(to) == STEPS.stop
            with opened(to, STEPS.stop * PERIOD) as directory:
                assert directory.evaluated_through == STEPS.stop - 1
                for piece in directory.control.manifest().pieces:  # type: ignore[union-attr]
                    directory.parts.read(piece)
    found = later(tmp_path / "whole" / "d")
    shutil.copytree(made["old"], tmp_path / "other")
    settle(tmp_path / "other" / "d")
    assert found == later(tmp_path / "other" / "d")
