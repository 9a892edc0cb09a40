"""The measurement of a whole step still runs, on a small one."""

import os
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest

from bench import reading
from kanon.gate import deciding

FINE = {"memory": 512.0, "reading": 60.0, "longest": 60.0, "all": 1560.0}


@pytest.fixture(autouse=True)
def environment() -> Iterator[None]:
    with mock.patch.dict(os.environ), mock.patch.multiple(reading, PAGE_SECONDS=0.0, OBJECT_SECONDS=0.0):
        yield


def test_a_step_is_read_once_and_decided_range_by_range_twice(tmp_path: Path) -> None:
    with (
        mock.patch.object(reading, "ITEMS_A_PAGE", 1),
        mock.patch.multiple(deciding, MOST_JOINS_A_RANGE=1_000, MOST_PART_BYTES=20_000),
    ):
        pieces, new = reading.measured(tmp_path, 5_000, reading.STEP, [])
        again, known = reading.measured(tmp_path, 5_000, reading.STEP + 1, pieces)
    assert 10 <= new["pages"] <= 10 + 2 * 9
    assert new["pages"] == known["pages"]
    assert len(again) >= len(pieces) > 5
    assert min(new["put"], known["put"], new["memory"]) > 0


def test_an_item_that_is_read_twice_is_an_error(tmp_path: Path) -> None:
    twice = reading.Table.answer

    def answer(table: reading.Table, request: object, **given: object) -> object:
        twice(table, request, **given)
        return twice(table, request, **given)

    with mock.patch.object(reading.Table, "answer", answer), pytest.raises(AssertionError, match="read twice"):
        reading.measured(tmp_path, 1_000, reading.STEP, [])


def test_sets_that_are_not_decided_are_an_error(tmp_path: Path) -> None:
    half = reading.Keys(reading.OF_THE_SLOT.first, bytes([reading.SLOT << 4 | 8]) + bytes(31))
    with mock.patch.object(reading, "OF_THE_SLOT", half), pytest.raises(AssertionError):
        reading.measured(tmp_path, 1_000, reading.STEP, [])


@pytest.mark.parametrize("name", FINE)
def test_each_limit_can_be_broken(name: str) -> None:
    assert reading.broken(FINE, 512) == []
    assert reading.broken({**FINE, name: FINE[name] + 1}, 512) == [name]
