"""The steps that are compared still run, on a few sets."""

import subprocess
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import numpy as np
import pytest

from bench import reading, step
from bench.harness import Form, SideError
from kanon.gate.mechanism.columns import NEVER
from kanon.gate.storage.disk.parts import PartFiles

SMALL = step.Case("99 members (full)", 99, 99, 0.3)


@pytest.fixture(autouse=True)
def no_delay() -> Iterator[None]:
    with mock.patch.multiple(reading, PAGE_SECONDS=0.0, OBJECT_SECONDS=0.0):
        yield


def test_every_joined_set_is_decided_in_all_parts_as_often_as_one_wants(tmp_path: Path) -> None:
    with mock.patch.object(step, "MOST_PART_BYTES", 20_000):
        pieces = step.filled(tmp_path, SMALL, 300)
    assert len(pieces) == 8
    parts = [PartFiles(tmp_path).read(piece) for piece in pieces]
    assert sum(map(len, parts)) == 300
    assert all((np.diff(part.keys.astype(object).argsort()) == 1).all() for part in parts)
    assert all((part.crossings[:, 1] != NEVER).all() for part in parts)
    some = step.Step(tmp_path, pieces, 120)
    some.decided()
    some.decided()
    assert {path.name for path in tmp_path.iterdir()} == {piece.name for piece in pieces}


def test_a_lost_join_is_noticed(tmp_path: Path) -> None:
    pieces, whole = step.filled(tmp_path, SMALL, 300), step.item_of

    def lossy(key: bytes, joins: bytes) -> dict[str, object]:
        return whole(key, joins[: -step.ENTRY])

    with mock.patch.object(step, "item_of", lossy), pytest.raises(RuntimeError, match="119 sets were decided"):
        step.Step(tmp_path, pieces, 120).decided()


def test_a_process_that_takes_more_memory_than_it_may_is_an_error() -> None:
    memory = mock.patch.object(step, "resident", return_value=step.MOST_MEMORY)
    with memory as resident, step.steps(SMALL, 30, 3) as turn:
        turn().work()
        resident.return_value += 1
        with pytest.raises(SideError, match="it took 1025 MiB"):
            turn().work()


def test_a_copy_reads_and_writes_the_parts_of_a_step() -> None:
    with step.copies(SMALL, 30, 3) as turn, mock.patch.object(step.os, "fsync") as flushed:
        turn().work()
    assert flushed.call_count == 1


def test_each_case_has_a_row_with_the_targets_of_the_design_and_one_beside_a_copy() -> None:
    rows = list(step.rows(Form(short=False)))
    assert [(row.theirs.start, row.target) for row in rows[:2]] == [(step.old_steps, 0.13), (step.copies, None)]
    assert len(rows) == 2 * len(step.CASES)


def test_a_history_without_the_old_commit_is_said() -> None:
    missing = subprocess.CompletedProcess([], 128, b"")
    with (
        mock.patch.object(step.subprocess, "run", return_value=missing),
        pytest.raises(SideError, match=f"no history with commit {step.BEFORE}"),
        step.old_steps(SMALL, 3),
    ):
        pass
