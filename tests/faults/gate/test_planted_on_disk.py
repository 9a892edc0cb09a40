"""Planted mistakes in what keeps a directory: a test of this folder or of the integration tests finds each."""

import json
import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kanon.disk import transaction
from kanon.errors import UndecodableMembersError
from kanon.gate import deciding
from kanon.gate.mechanism.columns import NEVER, Bools
from kanon.gate.merging import Deciding, Joins, Merged, merged
from kanon.gate.parts import Part
from kanon.gate.storage.disk.control import ControlFile
from kanon.gate.storage.disk.parts import PartFiles
from kanon.gate.storage.protocols import Piece, Sealed, Status
from tests.faults.gate.test_crash_on_disk import gated, later, made, outcome, settle, small
from tests.integration.serving import test_copies, test_gating, test_segments_due

__all__ = ["made", "small"]  # fixtures

Patch = pytest.MonkeyPatch


def committed_in(order: Sequence[str]) -> Callable[..., None]:
    """A commit in several transactions: what each letter stands for, one after the other."""

    def commit(
        self: ControlFile,
        run: int,
        before: int | None,
        step: int,
        pieces: Sequence[Piece],
        statuses: Iterable[Status],
        visible_from: int,
        sealed: Iterable[Sealed],
    ) -> None:
        del run, before, sealed
        parts = json.dumps([list(piece) for piece in pieces])
        todo: dict[str, Callable[[], object]] = {
            "statuses": lambda: self._write_statuses(statuses),
            "horizon": lambda: self._move_horizon(step, visible_from),
            "manifest": lambda: self.database.execute("INSERT OR REPLACE INTO manifests VALUES (?, ?)", (step, parts)),
            "mark": lambda: self.database.execute("UPDATE progress SET evaluated_through = ?", (step,)),
        }
        for one in order:
            with transaction(self.database):
                for name in one.split():
                    todo[name]()

    return commit


def differs(source: Path, to: Path) -> bool:
    """Whether the death of a process after a transaction shows in what it or later runs release."""
    (to / "fault").mkdir(parents=True)
    expected, disk = outcome(source, to / "whole", gated, 0, "after", bool)
    for at, call in enumerate(disk.calls, 1):
        if call == "execute COMMIT":
            found, _ = outcome(source, to / "fault" / str(at), gated, at, "after", bool)
            if found != expected:
                return True
            shutil.rmtree(to / "fault" / str(at))
    return False


@pytest.mark.parametrize(
    ("order", "mistake"),
    [
        (["statuses horizon manifest mark"], False),
        (["horizon manifest mark", "statuses"], True),
        (["statuses horizon mark", "manifest"], True),
    ],
    ids=["as it is", "horizon before crossings", "mark without manifest"],
)
def test_a_commit_in_two_transactions_is_found(
    tmp_path: Path, made: dict[str, Path], monkeypatch: Patch, order: list[str], mistake: bool
) -> None:
    monkeypatch.setattr(ControlFile, "commit", committed_in(order))
    assert differs(made["old"], tmp_path) == mistake


def with_other_ends(*arguments: Any, **more: Any) -> Merged:
    result = merged(*arguments, **more)
    return result._replace(part=replace(result.part, ends=result.part.ends - 1))


def without_all_due(part: Part, joins: Joins, deciding: Deciding, sealed: object, *, all_due: bool = False) -> Merged:
    del sealed, all_due
    return merged(part, joins, deciding)


def only_on_time(self: Part, step: int) -> Bools:
    due: Bools = (self.wake_ups != NEVER) & (self.wake_ups == step)
    return due


def sweeping_one_more(sweep: Callable[..., None]) -> Callable[..., None]:
    def swept(self: PartFiles, named: set[str], run: int) -> None:
        sweep(self, sorted(named)[1:], run)

    return swept


def plain_algorithm(path: Path, _: Path) -> None:
    test_gating.test_statuses_are_those_of_the_plain_algorithm_over_the_rows_as_they_arrive(path, 0)


def generation(path: Path, _: Path) -> None:
    test_copies.test_a_copy_is_refused_until_it_has_noise_of_its_own_and_then_loses_no_join(path)


def skipped_steps(path: Path, _: Path) -> None:
    name = "test_states_that_were_due_at_a_step_that_was_skipped_are_decided_at_the_next_one"
    getattr(test_segments_due, name)(path, 2, 3)


def later_runs(path: Path, source: Path) -> None:
    shutil.copytree(source, path / "x")
    settle(path / "x" / "d")
    later(path / "x" / "d")


@pytest.mark.parametrize(
    ("owner", "name", "mistake", "check"),
    [
        (deciding, "merged", with_other_ends, plain_algorithm),
        (deciding, "merged", without_all_due, generation),
        (Part, "due", only_on_time, skipped_steps),
        (PartFiles, "sweep", sweeping_one_more(PartFiles.sweep), later_runs),
    ],
    ids=["an end too early", "all due is forgotten", "due by ==", "a part that is named is deleted"],
)
def test_a_mistake_in_the_states_is_found(
    tmp_path: Path,
    made: dict[str, Path],
    monkeypatch: Patch,
    owner: object,
    name: str,
    mistake: Callable[..., Any],
    check: Callable[[Path, Path], None],
) -> None:
    monkeypatch.setattr(owner, name, mistake)
    with pytest.raises((AssertionError, UndecodableMembersError)):
        check(tmp_path, made["old"])
