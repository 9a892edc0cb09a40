"""Registrations as browsers receive them: the bounds they are brought to, and what is refused."""

import pytest

from kanon.reports.clients.filters import FilterSet
from kanon.reports.clients.registration import RegistrationError, Rules, source, trigger
from kanon.reports.clients.report import DAY, HOUR, LAYOUT, SECOND
from kanon.reports.payload import Layout

ORIGIN, SHOP = "https://report.test", "https://shop.test"


def read_source(kind="navigation", rules=None, **registration):
    places = frozenset({SHOP})
    return source(registration, time=0, kind=kind, reporting_origin=ORIGIN, destinations=places, rules=rules or Rules())


def read_trigger(layout=LAYOUT, **registration):
    return trigger(registration, time=0, reporting_origin=ORIGIN, destination=SHOP, layout=layout)


@pytest.mark.parametrize(
    ("kind", "given", "expiry"),
    [
        ("navigation", None, 30 * DAY),
        ("navigation", 60, DAY),
        ("navigation", "90000", 90_000 * SECOND),
        ("navigation", 10**9, 30 * DAY),
        ("event", 88_400, DAY),
        ("event", 172_600, 2 * DAY),
        ("event", 129_600, 2 * DAY),
    ],
)
def test_an_expiry_lies_between_a_day_and_thirty_and_is_in_whole_days_for_views(kind, given, expiry):
    fields = {} if given is None else {"expiry": given}

    assert read_source(kind, **fields).expiry == expiry


def test_a_report_window_lies_between_the_least_and_the_expiry():
    windows = [read_source(expiry=90_000, aggregatable_report_window=seconds).window for seconds in (1, 5000, 10**6)]

    assert windows == [HOUR, 5000 * SECOND, 90_000 * SECOND]
    assert read_source(aggregatable_report_window=1, rules=Rules(least_window=DAY)).window == DAY


def test_event_windows_end_with_the_source():
    made = read_source(expiry=90_000, event_report_windows={"end_times": [5000, 10**6]})

    assert made.events.ends == (5000 * SECOND, 90_000 * SECOND)


def test_the_largest_number_of_reports_decides_the_buckets():
    assert read_source(max_event_level_reports=2).events.specs[0].buckets == (1, 2)
    assert read_source(max_event_level_reports=0).events.outputs.count == 1


def test_amounts_have_filtering_ids_and_filters_have_a_lookback():
    made = read_trigger(
        Layout(20, 8),
        aggregatable_values={"a": {"value": 5, "filtering_id": "18446744073709551615"}, "b": 1},
        filters={"product": ["1"], "_lookback_window": 60},
    )

    assert made.values[0].amounts["a"] == (5, 2**64 - 1)
    assert made.values[0].amounts["b"] == (1, 0)
    assert made.filters.required == (FilterSet({"product": frozenset({"1"})}, 60_000),)


@pytest.mark.parametrize(("mode", "told"), [("include", True), ("INCLUDE", True), ("exclude", False), (None, False)])
def test_the_day_of_the_source_is_reported_if_the_registration_requests_it(mode, told):
    fields = {} if mode is None else {"aggregatable_source_registration_time": mode}

    assert read_trigger(**fields).tells_source_day is told


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"aggregation_keys": {"a": "159x"}}, "hexadecimal"),
        ({"aggregation_keys": {"a": "0x1" + 32 * "0"}}, "128 bits"),
        ({"aggregation_keys": {str(n): "0x1" for n in range(21)}}, "at most 20 keys"),
        ({"aggregation_keys": ["a"]}, "wrong JSON type"),
        ({"expiry": "soon"}, "`expiry` must be a whole number"),
        ({"trigger_specs": [{}]}, "a field is missing"),
        ({"max_event_level_reports": 21}, "at most 20"),
        ({"trigger_data_matching": "near"}, "modulus"),
        ({"event_report_windows": {"end_times": []}}, "one after the other"),
        ({"named_budgets": {"a": "all"}}, "`named_budgets` must be a whole number"),
        ({"priority": 1.5}, "`priority` must be a whole number"),
    ],
)
def test_an_invalid_source_is_refused(fields, message):
    with pytest.raises(RegistrationError, match=message):
        read_source(**fields)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"aggregatable_trigger_data": [{"key_piece": 7}]}, "hexadecimal"),
        ({"aggregatable_values": {"a": {}}}, "a field is missing"),
        ({"aggregatable_values": 7}, "wrong JSON type"),
        ({"event_trigger_data": [{"value": 0}]}, "from 1"),
        ({"event_trigger_data": [{"priority": "high"}]}, "`priority` must be a whole number"),
        ({"filters": 7}, "wrong JSON type"),
        ({"aggregatable_trigger_data": [{"key_piece": "0x1" + 32 * "0"}]}, "128 bits"),
        ({"aggregatable_trigger_data": [{"key_piece": "-0x1"}]}, "128 bits"),
        ({"aggregatable_values": {"a": 5 * 10**9}}, "a value must be from"),
        ({"aggregatable_values": {"a": -5}}, "a value must be from"),
        ({"aggregatable_values": {"a": {"value": 5, "filtering_id": 256}}}, "below 256"),
        ({"aggregatable_values": {"a": {"value": 5, "filtering_id": -1}}}, "64 bits"),
        ({"aggregatable_values": {"a": {"value": 5, "filtering_id": 1}}, "layout": Layout(20, None)}, "below 1 "),
    ],
)
def test_an_invalid_trigger_is_refused(fields, message):
    with pytest.raises(RegistrationError, match=message):
        read_trigger(**fields)
