"""What a run of one machine cannot write any more: another run has begun, or has restated the states, or the mark has
moved."""

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from kanon.errors import LeaseLostError
from kanon.gate.storage.disk.control import NAME, ControlFile
from kanon.gate.storage.protocols import Manifest, Piece
from tests.unit.examples import set_key

STEP, TICK = 500_000, 1_800_000_000
SETS = [set_key(n) for n in range(3)]


def pieces(name: str) -> tuple[Piece, ...]:
    return (Piece("00" * 32, name, "00" * 32, STEP + 3),)


def commit(control: ControlFile, run: int, step: int = STEP + 1) -> None:
    """Commit the step after the mark ``step`` - 1, with a crossing and a sealed value."""
    key = SETS[step - STEP]
    control.commit(
        run, None if step == STEP else step - 1, step, pieces("new"), [(key, (step,), TICK)], TICK, [(key, 1, b"v")]
    )


def restate(control: ControlFile, run: int) -> None:
    """State the mark ``STEP`` again, with a join that changes."""
    control.restate(run, [Manifest(STEP, pieces("other"))], {b"old": b"new"})


def begin(control: ControlFile, _: int) -> None:
    control.begin_run()


def begin_and_restate(control: ControlFile, _: int) -> None:
    restate(control, control.begin_run())


def begin_and_commit(control: ControlFile, _: int) -> None:
    commit(control, control.begin_run())


def content(path: Path) -> list[str]:
    """Everything that a control file holds."""
    with closing(sqlite3.connect(path / NAME)) as database:
        return [*database.iterdump()]


Act = Callable[[ControlFile, int], None]


@pytest.mark.slow
@pytest.mark.parametrize("late", [commit, restate])
@pytest.mark.parametrize("meanwhile", [begin, begin_and_restate, begin_and_commit, commit])
def test_a_late_run_writes_nothing(tmp_path: Path, meanwhile: Act, late: Act) -> None:
    with closing(ControlFile(tmp_path)) as control, closing(ControlFile(tmp_path)) as other:
        run = control.begin_run()
        commit(control, run, STEP)
        meanwhile(other, run)  # `commit` is one of the run itself: its mark moves
        before = content(tmp_path)
        with pytest.raises(LeaseLostError, match=r"^another process has continued this deployment$"):
            late(control, run)
        assert content(tmp_path) == before


@pytest.mark.parametrize("act", [commit, restate])
def test_the_current_run_writes(tmp_path: Path, act: Act) -> None:
    with closing(ControlFile(tmp_path)) as control:
        run = control.begin_run()
        commit(control, run, STEP)
        before = content(tmp_path)
        act(control, run)
        assert content(tmp_path) != before


def test_no_run_has_the_number_of_another_one(tmp_path: Path) -> None:
    with closing(ControlFile(tmp_path)) as control, closing(ControlFile(tmp_path)) as other:
        runs = [each.begin_run() for each in (control, other, control, other)]
    with closing(ControlFile(tmp_path)) as control:
        assert len({*runs, control.begin_run()}) == 5
