"""Simulated time and schedules."""

import calendar
import time

import pytest

from kanon import clock as service_clock
from kanon.local.clock import Clock, Cron, Every


def at(text: str) -> int:
    return calendar.timegm(time.strptime(text, "%Y-%m-%d %H:%M"))


@pytest.mark.parametrize(
    ("expression", "now", "expected"),
    [
        ("cron(3 * * * ? *)", "2024-02-28 23:02", "2024-02-28 23:03"),
        ("cron(3 * * * ? *)", "2024-02-28 23:03", "2024-02-29 00:03"),
        ("cron(3/15 * * * ? *)", "2024-01-01 00:18", "2024-01-01 00:33"),
        ("cron(3 0/6 * * ? *)", "2024-01-01 18:03", "2024-01-02 00:03"),
        ("cron(* * * * ? *)", "2024-01-01 00:00", "2024-01-01 00:01"),
        ("cron(0 8 1 * ? *)", "2024-01-01 08:00", "2024-02-01 08:00"),
        ("cron(0,30 9-17 ? * 2-6 *)", "2024-01-05 17:30", "2024-01-08 09:00"),
        ("cron(0 0 29 2 ? *)", "2024-03-01 00:00", "2028-02-29 00:00"),
    ],
)
def test_cron_fires_next_at(expression: str, now: str, expected: str) -> None:
    assert Cron(expression).next_after(at(now)) == at(expected)


def test_cron_refuses_invalid_expressions_and_those_that_never_fire() -> None:
    with pytest.raises(ValueError, match="six fields"):
        Cron("cron(3 * * *)").next_after(0)
    with pytest.raises(ValueError, match="does not fire"):
        Cron("cron(0 0 30 2 ? *)").next_after(0)


def test_every_fires_at_its_offset() -> None:
    assert Every(10, 3).next_after(100) == 103
    assert Every(10, 3).next_after(103) == 113
    assert Every(10, 3).next_after(102.5) == 103


def test_the_clock_replaces_the_time_of_the_service_and_gives_it_back() -> None:
    clock = Clock(1000)
    clock.install()
    try:
        clock.set(2000.5)
        assert service_clock.now() == 2000.5
    finally:
        clock.uninstall()
    assert service_clock.now is time.time


def test_a_clock_gives_the_service_back_the_clock_that_was_installed_before() -> None:
    outer, ended, inner = Clock(1000), Clock(2000), Clock(3000)
    for clock in (outer, ended, inner):
        clock.install()
    ended.uninstall()
    assert service_clock.now() == 3000
    inner.uninstall()
    assert service_clock.now() == 1000
    outer.uninstall()
    assert service_clock.now is time.time


def test_a_real_clock_is_put_forward_and_never_back() -> None:
    clock, before = Clock(None), time.time()
    clock.set(before + 1000)
    assert before + 1000 <= clock.now() <= time.time() + 1000
    clock.set(before - 1000)
    assert clock.now() >= before + 1000
    assert 999 < clock.ahead <= 1000
