"""Ticks: the only moments at which answers change."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kanon.gate.mechanism.steps import end_of
from kanon.gate.publishing import clock_step, next_tick, tick_of

HOUR, DELAY = 3600, 1800
TIMES = st.integers(0, 2 * 10**9) | st.floats(0, 2e9)
PERIODS = st.integers(1, 86_400)
DELAYS = st.integers(0, 86_400)


def test_a_step_becomes_visible_at_its_tick_and_not_a_second_before() -> None:
    tick = tick_of(7, HOUR, DELAY)
    assert tick == 8 * HOUR + DELAY
    assert clock_step(tick - 1, HOUR, DELAY) == 6
    assert clock_step(tick, HOUR, DELAY) == 7


@given(TIMES, PERIODS, DELAYS)
def test_the_clock_step_changes_at_ticks_only(now: float, period: int, delay: int) -> None:
    step = clock_step(now, period, delay)
    tick = next_tick(now, period, delay)
    assert tick_of(step, period, delay) <= now < tick
    assert tick - tick_of(step, period, delay) == period
    assert clock_step(tick, period, delay) == step + 1


@pytest.mark.slow
@given(TIMES, PERIODS, DELAYS)
def test_no_step_is_shown_before_it_has_ended(now: float, period: int, delay: int) -> None:
    assert end_of(clock_step(now, period, delay), period) <= now
