"""The measurements of large steps still run, on small ones."""

import os
from unittest import mock

import pytest

from bench import large_steps


@pytest.fixture(autouse=True)
def environment():
    with mock.patch.dict(os.environ):
        yield


def test_a_step_of_large_sets_is_measured() -> None:
    found = large_steps.large_k(1_000, 24)
    assert found["bytes"] > 4 * 1_000
    assert found["chunk"] == large_steps.SETS_OF_LARGE_K


def test_a_step_is_read_page_by_page() -> None:
    with mock.patch.multiple(large_steps, SETS=100, ITEMS_A_PAGE=1):
        found = large_steps.packed(1_500)
    assert found["calls"] == 3
    assert found["processor"] > 0
