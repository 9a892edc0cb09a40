"""The checks of a report: each raises its own counter, and the first that fails wins; and the units it is of."""

import json
from collections import Counter
from dataclasses import replace
from fractions import Fraction

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kanon.reports import mapping
from kanon.reports.errors import JobError, ReportRefusedError
from kanon.reports.mapping import Selection, map_reports
from kanon.reports.payload import MOST_BYTES, OVERHEAD, Contribution, encode, open_sealed, read_one
from kanon.reports.shared_info import Unit, accept_clear, budget_key, parse, site_of, source_of, units
from tests.unit.reports import made

STRICT = replace(made.RULES, attribution_report_to=made.ORIGIN)
SITE = replace(made.RULES, reporting_site="https://example.com")


def changed(**changes):
    """A text of shared_info with fields changed, or removed by ``None``."""
    fields = json.loads(made.info().text()) | changes
    return json.dumps({name: value for name, value in fields.items() if value is not None})


FIELD = "REQUIRED_SHAREDINFO_FIELD_INVALID"
CLEAR = {
    "no JSON": ("{", FIELD),
    "no object": ("[]", FIELD),
    "more than one value": (changed() + "{}", FIELD),
    "the empty text": ("", FIELD),
    "a key twice": ('{"version":"1.0","version":"1.0"}', FIELD),
    "nested too deeply": ("[" * 100_000, FIELD),
    "NaN": (changed(scheduled_report_time=None)[:-1] + ', "scheduled_report_time": NaN}', FIELD),
    "too many digits": (changed(report_id=None)[:-1] + ', "report_id": ' + "1" * 5000 + "}", FIELD),
    "too large a decimal": (changed(report_id=None)[:-1] + ', "report_id": 1e9999999999999999999}', FIELD),
    "too small a decimal": (changed(report_id=None)[:-1] + ', "report_id": 1e-9999999999999999999}', FIELD),
    "no version": (changed(version=None), "UNSUPPORTED_SHAREDINFO_VERSION"),
    "the empty version": (changed(version=""), "UNSUPPORTED_SHAREDINFO_VERSION"),
    "version 0.0": (changed(version="0.0"), "UNSUPPORTED_SHAREDINFO_VERSION"),
    "a version as a number": (changed(version=1.0), "UNSUPPORTED_SHAREDINFO_VERSION"),
    "no api": (changed(api=None), FIELD),
    "no origin": (changed(reporting_origin=None), FIELD),
    "no time": (changed(scheduled_report_time=None), FIELD),
    "a negative time": (changed(scheduled_report_time=-1), FIELD),
    "a time with letters": (changed(scheduled_report_time="12a"), FIELD),
    "a time with foreign digits": (changed(scheduled_report_time="١٢"), FIELD),
    "a time beyond the year 9999": (changed(scheduled_report_time="253402300800"), FIELD),
    "a truth value as time": (changed(scheduled_report_time=True), FIELD),
    "no destination": (changed(attribution_destination=None), FIELD),
    "a bad registration time": (changed(source_registration_time="x"), FIELD),
    "an unknown api": (changed(api="other"), "UNSUPPORTED_REPORT_API_TYPE"),
    "no report id": (changed(report_id=None), "INVALID_REPORT_ID"),
    "a report id that is no UUID": (changed(report_id="1"), "INVALID_REPORT_ID"),
    "an http origin": (changed(reporting_origin="http://report.test"), "ATTRIBUTION_REPORT_TO_MALFORMED"),
    "an origin with a path": (changed(reporting_origin="https://report.test/"), "ATTRIBUTION_REPORT_TO_MALFORMED"),
    "an origin that is a suffix": (changed(reporting_origin="https://co.uk"), "ATTRIBUTION_REPORT_TO_MALFORMED"),
    "an address as origin": (changed(reporting_origin="https://127.0.0.1"), "ATTRIBUTION_REPORT_TO_MALFORMED"),
    "too old": (changed(scheduled_report_time=made.NOW - 90 * 86_400 - 1), "ORIGINAL_REPORT_TIME_TOO_OLD"),
    "too far ahead": (changed(scheduled_report_time=made.NOW + 86_400 + 1), "REPORT_TIME_IN_FUTURE"),
}  # fmt: skip


@pytest.mark.parametrize("name", CLEAR)
def test_a_clear_field_that_is_wrong_raises_its_counter(name):
    text, counter = CLEAR[name]
    with pytest.raises(ReportRefusedError) as caught:
        accept_clear(text, made.RULES)
    assert caught.value.counter == counter
    assert str(caught.value) == counter


def test_white_space_around_the_clear_fields_is_read():
    assert parse(f"\n {changed()}\t ") == parse(changed())


def counted(report, rules=made.RULES):
    return dict(map_reports([report], rules, Selection()).errors)


def payload(value=b"\1", operation="histogram"):
    return cbor2.dumps({"data": [{"bucket": b"\1", "value": value}], "operation": operation})


def test_the_other_checks_raise_their_counters():
    assert counted(made.report(reporting_origin="https://a.b.example.com"), SITE) == {}
    assert counted(made.report()._replace(key_id="other")) == {"DECRYPTION_KEY_NOT_FOUND": 1}
    assert counted(made.report(key=made.OTHER_KEY)) == {"DECRYPTION_ERROR": 1}
    assert counted(made.report()._replace(payload=b"short")) == {"DECRYPTION_ERROR": 1}
    assert counted(made.sealed(b"\x80")) == {"REPORT_PARSING_ERROR": 1}
    assert counted(made.sealed(payload(operation="sum"))) == {"UNSUPPORTED_OPERATION": 1}
    assert counted(made.report([(1, 65_536)])) == {}
    assert counted(made.report([(1, 65_536), (2, 1)])) == {"CONTRIBUTION_BUDGET_EXCEEDED": 1}
    assert counted(made.sealed(payload(b"\xff" * 4))) == {"CONTRIBUTION_BUDGET_EXCEEDED": 1}
    assert counted(made.report([(1, 65_537)]), replace(made.RULES, contribution_bound=None)) == {}


def test_a_report_moved_to_another_hour_does_not_open():
    moved = made.info(scheduled_report_time=made.NOW - 7200).text()
    assert counted(made.report([(1, 2)])._replace(shared_info=moved)) == {"DECRYPTION_ERROR": 1}


def test_the_bound_holds_for_all_filtering_ids_together():
    assert counted(made.report([(1, 65_000, 0), (1, 600, 3)])) == {"CONTRIBUTION_BUDGET_EXCEEDED": 1}


# One mistake of every check; a report with the mistakes from number i on raises the counter of number i.
MISTAKES = [
    ({"version": "0.0"}, "UNSUPPORTED_SHAREDINFO_VERSION"),
    ({"attribution_destination": None, "scheduled_report_time": "x"}, FIELD),
    ({"api": "other"}, "UNSUPPORTED_REPORT_API_TYPE"),
    ({"report_id": "1"}, "INVALID_REPORT_ID"),
    ({"reporting_origin": "https://com"}, "ATTRIBUTION_REPORT_TO_MALFORMED"),
    ({"scheduled_report_time": "1"}, "ORIGINAL_REPORT_TIME_TOO_OLD"),
    ({}, "DECRYPTION_KEY_NOT_FOUND"),
]


@pytest.mark.parametrize("first", range(len(MISTAKES)))
def test_the_first_check_that_fails_wins(first):
    fields = {}
    for changes, _ in reversed(MISTAKES[first:]):
        fields |= changes
    report = made.sealed(b"\x80", changed(**fields))._replace(key_id="other")
    assert counted(report) == {MISTAKES[first][1]: 1}


def test_a_version_above_1_ends_the_job():
    with pytest.raises(JobError, match="upgrade") as caught:
        map_reports([made.report(version="2.0")], made.RULES, Selection())
    assert caught.value.code == "UNSUPPORTED_REPORT_VERSION"


@pytest.mark.parametrize("version", ["0.1", "1.0", "1.5", "0.20"])
def test_versions_of_major_0_and_1_are_read(version):
    assert parse(changed(version=version)).version == version


@pytest.mark.parametrize(("origin", "site"), [
    ("https://report.test", "https://report.test"), ("https://a.b.example.co.uk:8443", "https://example.co.uk"),
    ("https://com", None), ("https://a b.test", None), ("https://.test", None), ("ftp://a.test", None),
    ("https://user@a.test", None), ("https://A.test", None), ("https://[::1]", None), ("", None),
])  # fmt: skip
def test_the_site_of_an_origin_is_its_registrable_domain(origin, site):
    assert site_of(origin) == site


@given(st.text(max_size=60) | st.from_regex(r'\{"version":"1\.0".*', fullmatch=True))
def test_any_text_is_read_or_refused_with_a_counter(text):
    try:
        accept_clear(text, made.RULES)
    except (ReportRefusedError, JobError):
        return
    raise AssertionError("random text is no shared_info")


def test_times_are_read_as_text_as_number_and_as_decimal():
    for written in ("1767222000", 1_767_222_000):
        assert parse(changed(scheduled_report_time=written)).scheduled_report_time == 1_767_222_000
    text = changed(scheduled_report_time=None)[:-1] + ', "scheduled_report_time": 1640995200.000000000}'
    assert parse(text).scheduled_report_time == 1_640_995_200


def test_one_report_too_many_in_error_ends_the_job(tmp_path):
    reports = [made.report([(1, 1)], number) for number in range(9)] + [made.report(key=made.OTHER_KEY)]
    assert made.run(tmp_path, reports, error_threshold=Fraction(10)).accepted == 9
    with pytest.raises(JobError, match="DECRYPTION_ERROR 1") as caught:
        made.run(tmp_path, reports, error_threshold=Fraction(99, 10))
    assert caught.value.code == "REPORTS_WITH_ERRORS_EXCEEDED_THRESHOLD"


UNREADABLE = {
    "does not open": made.report(key=made.OTHER_KEY),
    "is too short": made.report()._replace(payload=b"short"),
    "is too long": made.report()._replace(payload=bytes(MOST_BYTES + OVERHEAD + 1)),
    "has no form": made.sealed(b"\x80"),
    "has another operation": made.sealed(payload(operation="sum")),
    "exceeds the bound": made.report([(1, 65_537)]),
    "has the id of another one": made.report([(1, 1)]),
}


@pytest.mark.parametrize("kind", UNREADABLE)
def test_what_a_job_charges_does_not_depend_on_the_encrypted_part(kind):
    """Nor on other reports: the last one here is dropped because of one from another hour."""
    other = made.report(scheduled_report_time=made.NOW - 7 * 3600)
    null, bad = (
        map_reports([other, one], made.RULES, Selection()) for one in (made.report(number=2), UNREADABLE[kind])
    )
    assert null.sources == bad.sources
    assert len(bad.sources) == 2
    assert (null.errors.total() + null.duplicates, bad.errors.total() + bad.duplicates) == (0, 1)


@pytest.mark.parametrize("report", [
    made.report()._replace(key_id="other"), made.report(version="0.0"), made.report(reporting_origin="https://com"),
    made.report(scheduled_report_time=1),
])  # fmt: skip
def test_reports_without_valid_clear_fields_or_a_known_key_are_not_charged(report):
    assert map_reports([report], made.RULES, Selection()).sources == frozenset()


@pytest.mark.parametrize("rules", [STRICT, SITE])
@pytest.mark.parametrize("origin", [
    "https://evilreport.test", "https://evilexample.com", "https://report.test.evil.test", "https://example.com.evil.net",
    "https://com", "https://example.com.", "https://Example.com", "https://user@example.com", "https://com:443",
    "https://example.com@evil.test", "https://ex\u0430mple.com", "http://example.com", "https://127.0.0.1", "any text",
])  # fmt: skip
def test_reports_of_other_origins_and_look_alikes_are_left_out_and_are_no_errors(rules, origin):
    mapped = map_reports([made.report([(1, 1)], reporting_origin=origin)], rules, Selection())
    assert (mapped.left_out, mapped.errors.total(), mapped.sources) == (1, 0, frozenset())


def test_reports_of_other_destinations_and_hours_are_left_out_unopened_and_uncharged(monkeypatch):
    opened = []
    monkeypatch.setattr(mapping, "open_sealed", lambda wire, *rest: opened.append(wire) or open_sealed(wire, *rest))
    strangers = [
        made.report(number=n, attribution_destination=f"https://{n}.test", key=made.OTHER_KEY) for n in range(300)
    ]
    late = [made.report(number=n, scheduled_report_time=made.NOW) for n in range(300, 310)]
    mine = [made.report([(1, 5)], 500)]
    hours = range(made.NOW // 3600 - 2, made.NOW // 3600)
    rules = replace(made.RULES, destinations=frozenset({"https://shop.test"}), hours=hours)
    mapped = map_reports(strangers + late + mine, rules, Selection())
    assert (mapped.left_out, mapped.errors.total(), len(mapped.sources), opened) == (310, 0, 1, [mine[0].payload])


def test_the_share_of_errors_is_that_of_the_reports_that_are_not_left_out(tmp_path):
    """Otherwise strangers could hide that a job's own reports are in error."""
    strangers = [made.report(number=n, reporting_origin="https://other.test") for n in range(100)]
    broken = [made.report(number=n, key=made.OTHER_KEY) for n in range(100, 110)]
    rules = replace(made.RULES, attribution_report_to=made.ORIGIN)
    with pytest.raises(JobError, match="10 of 10 reports are in error"):
        made.run(tmp_path, strangers + broken, rules=rules)
    assert made.run(tmp_path, [*strangers, made.report([(1, 1)])], rules=rules).left_out == 100


def test_counters_add_up_to_the_reports(tmp_path):
    reports = [made.report([(1, 1)], 1), made.report([(1, 1)], 1), made.report(number=2, key=made.OTHER_KEY)]
    outcome = made.run(tmp_path, reports, error_threshold=Fraction(100))
    assert outcome.reports == outcome.accepted + outcome.duplicates + outcome.errors.total() == 3
    assert outcome.errors == Counter({"DECRYPTION_ERROR": 1})


def test_reports_of_one_length_and_several_layouts_are_all_read(monkeypatch):
    """A report that only claims a layout is read alone; it does not take the others with it."""
    good = [payload_of(number) for number in range(50)]
    odd = bytearray(good[0])
    odd[15] ^= 0xFF  # in the text `value`
    other_layout = b"\xa2ddata\x95\xa2" + good[0][8:]
    slow = []
    monkeypatch.setattr(mapping, "read_one", lambda cleartext: slow.append(cleartext) or read_one(cleartext))
    cleartexts = [bytes(odd), other_layout, *good]
    reports = [made.sealed(each, made.info(number).text()) for number, each in enumerate(cleartexts)]
    mapped = map_reports(reports, made.RULES, Selection())
    assert mapped.partitions[0].sums.sum() == 50 * 51 / 2
    assert dict(mapped.errors) == {"REPORT_PARSING_ERROR": 2}
    assert len(slow) == 2
    assert counted(reports[0]) == {"REPORT_PARSING_ERROR": 1}


def payload_of(number):
    return encode([Contribution(number + 1, number + 1)], made.LAYOUT)


def test_a_unit_is_charged_for_every_requested_id_and_hour():
    reports = [made.info(1), made.info(2), made.info(3, scheduled_report_time=made.NOW - 7200)]
    charged = units({source_of(report) for report in reports}, (0, 3))
    assert len(charged) == 4
    assert {unit.hour for unit in charged} == {(made.NOW - 3600) // 3600, (made.NOW - 7200) // 3600}
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
