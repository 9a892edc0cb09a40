"""Contributions within windows (P, Algorithm 3): the budget of every (device, window) holds."""

from collections import defaultdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kanon.reports.clients.devices import Device, Windows, contribute, contributions
from kanon.reports.payload import Contribution

ORIGIN = "https://report.test"
WINDOWS = Windows(ORIGIN, length=100, contribution_bound=10)


def run(windows, *events):
    return list(contributions(windows, events))


def values(reports):
    return [sum(pair.value for pair in report.contributions) for report in reports]


def test_a_contribution_within_the_budget_is_reported_as_it_is():
    (report,) = run(WINDOWS, ("a", 5, 7, 10))

    assert report.contributions == (Contribution(7, 10),)
    assert (report.reporting_origin, report.api) == (ORIGIN, "kanon")


def test_an_event_over_the_budget_gives_a_null_report():
    reports = run(WINDOWS, ("a", 1, 7, 6), ("a", 2, 7, 5), ("a", 3, 7, 4))

    assert values(reports) == [6, 0, 4]
    assert reports[1].is_null
    assert reports[1].scheduled == reports[0].scheduled


def test_a_contribution_over_the_whole_budget_is_dropped_and_not_cut():
    assert values(run(WINDOWS, ("a", 1, 7, 11), ("a", 2, 7, 10))) == [0, 10]


def test_every_device_and_every_window_has_a_separate_budget():
    reports = run(WINDOWS, ("a", 99, 1, 10), ("b", 99, 1, 10), ("a", 100, 1, 10), ("a", 199, 1, 1))

    assert values(reports) == [10, 10, 10, 0]


def test_a_stretch_of_one_window_length_may_carry_twice_the_budget():
    reports = run(WINDOWS, ("a", 99, 1, 10), ("a", 100, 1, 10))

    assert sum(values(reports)) == 20


def test_the_clear_time_is_the_end_of_the_window():
    assert [report.scheduled for report in run(WINDOWS, ("a", 100, 1, 1), ("a", 199, 1, 1))] == [200, 200]


def test_events_of_a_window_that_has_passed_are_refused():
    with pytest.raises(ValueError, match="sort them by time"):
        run(WINDOWS, ("a", 100, 1, 1), ("a", 99, 1, 1))


def test_the_sparsity_bound_counts_reports_with_a_value_and_no_others():
    windows = Windows(ORIGIN, length=100, contribution_bound=10, sparsity=2)

    assert values(run(windows, *[("a", 1, 1, value) for value in (0, 1, 11, 1, 1)])) == [0, 1, 0, 1, 0]


def test_the_memory_of_a_program_outlives_windows_and_dropped_reports():
    device = Device(0)
    seen = []
    for time in (1, 2, 101):
        device, report = contribute(WINDOWS, device, time, lambda count: (count + 1, count, 7))
        seen.append(report.contributions)

    assert device.memory == 3
    assert seen == [(Contribution(0, 7),), (), (Contribution(2, 7),)]


@pytest.mark.parametrize("event", [("a", 1, 2**128, 1), ("a", 1, -1, 1), ("a", 1, 0, -1), ("a", 1, 0, 2**32)])
def test_a_key_or_value_that_does_not_fit_is_refused(event):
    with pytest.raises(ValueError, match=r"128 bits|from 0"):
        run(WINDOWS, event)


@pytest.mark.parametrize("wrong", [{"length": 0}, {"contribution_bound": 0}])
def test_a_window_without_length_or_bound_is_refused(wrong):
    with pytest.raises(ValueError, match="at least 1"):
        Windows(ORIGIN, **wrong)


@pytest.mark.slow
@settings(derandomize=True, max_examples=200)
@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 450), st.integers(0, 3), st.integers(0, 12)), max_size=40)
)
def test_no_unit_ever_carries_more_than_its_budget_and_every_event_has_a_report(events):
    events = sorted(events, key=lambda event: event[1])
    reports = run(WINDOWS, *events)
    carried = defaultdict(int)
    for (device, time, _, _), report in zip(events, reports, strict=True):
        carried[device, time // 100] += sum(pair.value for pair in report.contributions)

    assert max(carried.values(), default=0) <= 10
