"""The keys of the gateway: calendar weeks, at most two valid keys, the same for every instance."""

from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest

from kanon.clock import WEEK, cacheable
from kanon.gateway.epochs import Epochs
from kanon.keys import Secret

MONDAY = datetime(2026, 11, 23, tzinfo=UTC)
START = MONDAY.timestamp()


def _epochs(text: str = "a secret") -> Epochs:
    return Epochs(Secret.derived("gateway", text))


def test_the_key_changes_on_monday_at_midnight_and_never_else() -> None:
    epochs = _epochs()
    keys = [epochs.current(START + hour * 3600).encode() for hour in range(-168, 336)]
    changes = [hour for hour, (one, two) in enumerate(pairwise(keys), -167) if one != two]
    assert changes == [0, 168]
    assert (MONDAY + timedelta(hours=168)).weekday() == 0
    assert epochs.current(START - 0.001).encode() != epochs.current(START).encode()


def test_every_instance_has_the_same_keys_and_another_secret_gives_others() -> None:
    assert _epochs().current(START).encode() == _epochs().current(START + WEEK - 1).encode()
    assert _epochs().current(START).encode() != _epochs("another").current(START).encode()


def test_ids_are_those_that_chromium_takes_and_do_not_repeat_for_two_years() -> None:
    ids = [_epochs().current(START + week * WEEK).id for week in range(127)]
    assert sorted(ids) == list(range(1, 128))


def test_a_key_opens_in_its_week_a_day_after_it_and_some_minutes_before() -> None:
    epochs = _epochs()
    config = epochs.current(START)

    def opens(after: float) -> bool:
        key = epochs.opening(config.id, START + after)
        assert key is None or key.public_key() == config.key
        return key is not None

    times = [-301, -300, 0, WEEK - 1, WEEK + 86_399, WEEK + 86_400]
    assert [opens(time) for time in times] == [False, True, True, True, True, False]


@pytest.mark.slow
def test_at_most_two_keys_are_valid() -> None:
    epochs = _epochs()
    counts = {
        sum(epochs.opening(key_id, START + minute * 60) is not None for key_id in range(256))
        for minute in range(0, 7 * 24 * 60, 4)
    }
    assert counts == {1, 2}


def test_a_key_is_never_cached_beyond_its_week() -> None:
    ages = [cacheable(START + WEEK - left) for left in (WEEK, 3600, 3599.5, 0.5)]
    assert ages == [3600, 3600, 3599, 0]


def test_no_text_of_a_key_or_secret_is_shown() -> None:
    assert repr(_epochs()) == "Epochs()"
