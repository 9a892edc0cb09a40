"""The measurement of reading a step still runs, on a small one."""

import os
from collections.abc import Iterator
from unittest import mock

import pytest

from bench import reading


@pytest.fixture(autouse=True)
def environment() -> Iterator[None]:
    with mock.patch.dict(os.environ):
        yield


def test_a_step_is_read_once_and_given_range_by_range() -> None:
    with mock.patch.multiple(reading, ITEMS_A_PAGE=1, MOST_JOINS_A_RANGE=1_000):
        found = reading.measured(5_000, 2, 0.0)
    assert 10 <= found["pages"] <= 10 + 2 * 9
    assert found["memory"] > 10


def test_an_item_that_is_read_twice_is_an_error() -> None:
    twice = reading.Table.answer

    def answer(table: reading.Table, request: object, **given: object) -> object:
        twice(table, request, **given)
        return twice(table, request, **given)

    with mock.patch.object(reading.Table, "answer", answer), pytest.raises(AssertionError, match="read twice"):
        reading.measured(1_000, 1, 0.0)
