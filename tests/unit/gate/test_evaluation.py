"""The clock figures of an evaluation and the choice of a noise key."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kanon.errors import ConfigurationError
from kanon.gate.deciding import NoiseKeys
from kanon.gate.mechanism.steps import end_of
from kanon.gate.publishing import tick_of
from kanon.gate.schedule import DAY, Schedule
from kanon.noise.words import NoiseKey
from tests.unit.examples import KEY

SCHEDULE = Schedule(3600, grace=120, lease=150, publish_delay=1800, publish_margin=60, outage_allowance=7 * DAY)
TIMES = st.integers(10**9, 2 * 10**9) | st.floats(1e9, 2e9)


@given(TIMES)
def test_the_last_closed_step_ended_at_least_one_grace_ago(now: float) -> None:
    last = SCHEDULE.last_closed(now)
    assert end_of(last, 3600) + 120 <= now < end_of(last + 1, 3600) + 120


@given(TIMES)
def test_the_oldest_step_in_the_log_has_not_expired_and_the_one_before_it_may_have(now: float) -> None:
    oldest = SCHEDULE.oldest_in_log(now)
    assert end_of(oldest - 1, 3600) + 7 * DAY <= now < end_of(oldest, 3600) + 7 * DAY


@given(TIMES)
def test_a_late_evaluation_keeps_one_day_in_reserve(now: float) -> None:
    assert end_of(SCHEDULE.oldest_allowed(now), 3600) + 6 * DAY > now


def test_the_reserve_is_a_seventh_of_a_short_allowance() -> None:
    short = Schedule(60, grace=1, lease=150, publish_delay=30, publish_margin=6, outage_allowance=7 * 60)
    now = 10**9
    assert short.oldest_allowed(now) == short.oldest_in_log(now) + 1


@given(TIMES)
def test_rows_written_now_become_visible_at_the_first_tick_after_the_margin(now: float) -> None:
    tick = SCHEDULE.visible_from(now)
    assert now + 60 < tick <= now + 60 + 3600
    assert tick == tick_of(tick // 3600 - 1, 3600, 1800)


def test_the_last_three_manifests_and_the_first_one_of_each_day_of_the_allowance_are_kept() -> None:
    now, day = 100 * DAY, 24
    steps = [*range(90 * day + 5, 100 * day, 7)]
    kept = SCHEDULE.manifests_kept(steps, now)
    days = {step // day for step in steps if step >= SCHEDULE.oldest_in_log(now)}
    assert kept == {*steps[-3:], *(min(s for s in steps if s // day == one and s >= 93 * day) for one in days)}
    assert SCHEDULE.manifests_kept(steps[:2], now) == {*steps[:2]}  # the last ones, however old


NEW, NEWEST = NoiseKey("2", bytes(32)), NoiseKey("3", bytes(range(1, 33)))
KEYS = NoiseKeys(((100, KEY), (200, NEW), (300, NEWEST)))


@pytest.mark.parametrize(
    ("first", "key"), [(100, KEY), (199, KEY), (200, NEW), (299, NEW), (300, NEWEST), (10**6, NEWEST)]
)
def test_a_search_uses_the_latest_key_that_is_not_after_its_first_step(first: int, key: NoiseKey) -> None:
    assert KEYS.for_search(first) == key


def test_a_search_older_than_every_key_is_refused_with_what_to_put_back() -> None:
    with pytest.raises(ConfigurationError) as error:
        KEYS.for_search(99)
    assert str(error.value) == (
        "no noise key covers what began before step 100: put the removed key back; `kanon operate destroy-noise-key`"
        " says how long a key is needed"
    )
