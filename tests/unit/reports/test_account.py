from hypothesis import given
from hypothesis import strategies as st

from kanon.reports.shared_info import Unit, budget_key, source_of, units
from tests.unit.reports.made import NOW, info


def test_a_unit_is_charged_for_every_requested_id_and_hour():
    reports = [info(1), info(2), info(3, scheduled_report_time=NOW - 7200)]
    charged = units({source_of(report) for report in reports}, (0, 3))
    assert len(charged) == 4
    assert {unit.hour for unit in charged} == {(NOW - 3600) // 3600, (NOW - 7200) // 3600}
    assert charged == sorted(charged)


def test_the_key_omits_the_id_only_for_version_0_and_id_0():
    fields = ("shared-storage", "https://a.test", None, None)
    names = [(version, number) for version in ("0.1", "1.0") for number in (0, 1)]
    keys = {name: budget_key(fields[0], name[0], *fields[1:], name[1]) for name in names}
    assert len(set(keys.values())) == 4
    assert keys["0.1", 0] == budget_key("shared-storage", "0.1", "https://a.test", "ignored", 5, 0)


@given(st.integers(0, 10**6), st.integers(0, 10**6))
def test_a_row_holds_the_24_hours_of_a_day(hour, other):
    one, two = (Unit("key", "https://a.test", each) for each in (hour, other))
    assert (one.row == two.row) == (hour // 24 == other // 24)
    assert len(one.row) == 32
    assert one.row != Unit("key", "https://b.test", hour).row
