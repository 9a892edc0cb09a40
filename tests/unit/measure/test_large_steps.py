"""The measurements of large steps still run, on small ones."""

import os
from unittest import mock

from infra.measure import large_k, packed_step


def test_a_step_of_large_sets_is_measured() -> None:
    with mock.patch.dict(os.environ):
        found = large_k.measured(1_000, 24)
    assert found["bytes"] > 4 * 1_000
    assert found["chunk"] == large_k.SETS


def test_a_step_of_packed_joins_is_measured_page_by_page() -> None:
    joins = 3 * packed_step.JOINS_AN_ITEM
    with mock.patch.dict(os.environ), mock.patch.multiple(packed_step, ITEMS_A_PAGE=1, SETS=100):
        found = packed_step.measured(joins)
    assert found["calls"] == 3
    assert found["processor"] > 0
