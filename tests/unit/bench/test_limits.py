"""The simulation of a tick: every client gets its answer, and no second accepts more than the route allows."""

import pytest

from bench.limits import herd


@pytest.mark.parametrize("spread", [0.0, 10.0, 100.0])
def test_a_route_needs_at_least_the_time_that_its_rate_allows(spread: float) -> None:
    found = herd(1000, 20, spread)
    assert found.everybody >= (1000 - 20) / 20
    assert found.half <= found.nearly_all <= found.everybody


def test_clients_that_query_at_the_tick_are_refused_and_clients_that_spread_enough_are_not() -> None:
    at_once, spread = herd(1000, 20, 0), herd(1000, 20, 2 * 1000 / 20)
    assert at_once.busiest >= 1000
    assert at_once.refused > 1000
    assert spread.refused == 0
    assert spread.everybody <= 2 * 1000 / 20 + 1


def test_a_simulation_can_be_repeated() -> None:
    assert herd(500, 20, 5, seed=3) == herd(500, 20, 5, seed=3) != herd(500, 20, 5, seed=4)
