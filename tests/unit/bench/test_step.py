"""The comparison of a step with the code before there were parts still runs, on a few sets."""

import os
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from unittest import mock

import numpy as np
import pytest

from bench import reading, step
from kanon.gate.mechanism.columns import NEVER
from kanon.gate.storage.disk.parts import PartFiles

SMALL = step.Case("99 members (full)", 99, 99, 45.0)


@pytest.fixture(autouse=True)
def environment() -> Iterator[None]:
    with mock.patch.dict(os.environ), mock.patch.multiple(reading, PAGE_SECONDS=0.0, OBJECT_SECONDS=0.0):
        yield


def test_every_joined_set_is_decided_in_all_parts(tmp_path: Path) -> None:
    with mock.patch.object(step, "MOST_PART_BYTES", 20_000):
        pieces = step.filled(tmp_path, SMALL, 300)
    assert len(pieces) == 8
    parts = [PartFiles(tmp_path).read(piece) for piece in pieces]
    assert sum(map(len, parts)) == 300
    assert all((np.diff(part.keys.astype(object).argsort()) == 1).all() for part in parts)
    assert all((part.crossings[:, 1] != NEVER).all() for part in parts)
    found = step.evaluated(tmp_path, pieces, 120)
    assert found["us"] > 0
    assert found["bytes"] > sum((tmp_path / piece.name).stat().st_size for piece in pieces)


def test_a_lost_join_is_noticed(tmp_path: Path) -> None:
    pieces, whole = step.filled(tmp_path, SMALL, 300), step.item_of

    def lossy(key: bytes, joins: bytes) -> dict[str, object]:
        return whole(key, joins[: -step.ENTRY])

    with mock.patch.object(step, "item_of", lossy), pytest.raises(RuntimeError, match="119 sets were decided"):
        step.evaluated(tmp_path, pieces, 120)


def test_a_missed_target_is_said_and_ends_the_program_with_1(capsys: pytest.CaptureFixture[str]) -> None:
    now = {"us": 46.0, "wall": 1.0, "bytes": 2e6, "memory": 100.0}
    assert step.cells(now, 92.0, 45.0) == "46 | 92 | 0.5 | 45 | no | 1.0 | 2 | 100"
    assert step.cells(now, None, 46.0) == "46 | not compared | - | 46 | yes | 1.0 | 2 | 100"
    with mock.patch.multiple(step, old_code=lambda: nullcontext(None), rows=lambda *_: False):
        assert (step.main([]), step.main(["--short"])) == (1, 0)
    assert f"no history with commit {step.BEFORE}" in capsys.readouterr().out
