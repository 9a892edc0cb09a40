"""The checks of a report: each raises its own counter, and the first that fails wins."""

import json
from collections import Counter
from dataclasses import replace
from fractions import Fraction

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kanon.reports import mapping
from kanon.reports.acceptance import Rules, accept_clear, site_of
from kanon.reports.avro import Report
from kanon.reports.errors import JobError, RefusedError
from kanon.reports.hpke import seal
from kanon.reports.mapping import Selection, map_reports
from kanon.reports.payload import Contribution, decode, encode
from kanon.reports.shared_info import parse
from tests.unit.reports import made

STRICT = replace(made.RULES, attribution_report_to=made.ORIGIN)
SITE = replace(made.RULES, reporting_site="https://example.com")


def changed(**changes):
    """A text of shared_info with fields changed, or removed by ``None``."""
    fields = json.loads(made.info().text()) | changes
    return json.dumps({name: value for name, value in fields.items() if value is not None})


def sealed(payload, text=None):
    text = made.info().text() if text is None else text
    return Report(seal(payload, made.KEY.public_key(), text), made.KEY_ID, text)


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
    with pytest.raises(RefusedError) as caught:
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
    assert counted(made.report(reporting_origin="https://b.test"), STRICT) == {"ATTRIBUTION_REPORT_TO_MISMATCH": 1}
    assert counted(made.report(), SITE) == {"REPORTING_SITE_MISMATCH": 1}
    assert counted(made.report(reporting_origin="https://a.b.example.com"), SITE) == {}
    assert counted(made.report()._replace(key_id="other")) == {"DECRYPTION_KEY_NOT_FOUND": 1}
    assert counted(made.report(key=made.OTHER_KEY)) == {"DECRYPTION_ERROR": 1}
    assert counted(made.report()._replace(payload=b"short")) == {"DECRYPTION_ERROR": 1}
    assert counted(sealed(b"\x80")) == {"REPORT_PARSING_ERROR": 1}
    assert counted(sealed(payload(operation="sum"))) == {"UNSUPPORTED_OPERATION": 1}
    assert counted(made.report([(1, 65_536)])) == {}
    assert counted(made.report([(1, 65_536), (2, 1)])) == {"CONTRIBUTION_BUDGET_EXCEEDED": 1}
    assert counted(sealed(payload(b"\xff" * 4))) == {"CONTRIBUTION_BUDGET_EXCEEDED": 1}
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
    ({"reporting_origin": "http://b.test"}, "ATTRIBUTION_REPORT_TO_MALFORMED"),
    ({"reporting_origin": "https://b.test"}, "ATTRIBUTION_REPORT_TO_MISMATCH"),
    ({"scheduled_report_time": "1"}, "ORIGINAL_REPORT_TIME_TOO_OLD"),
    ({}, "DECRYPTION_KEY_NOT_FOUND"),
]


@pytest.mark.parametrize("first", range(len(MISTAKES)))
def test_the_first_check_that_fails_wins(first):
    fields = {}
    for changes, _ in reversed(MISTAKES[first:]):
        fields |= changes
    report = sealed(b"\x80", changed(**fields))._replace(key_id="other")
    assert counted(report, STRICT) == {MISTAKES[first][1]: 1}


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
    except (RefusedError, JobError):
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


def test_counters_add_up_to_the_reports(tmp_path):
    reports = [made.report([(1, 1)], 1), made.report([(1, 1)], 1), made.report(number=2, key=made.OTHER_KEY)]
    outcome = made.run(tmp_path, reports, error_threshold=Fraction(100))
    assert outcome.reports == outcome.accepted + outcome.duplicates + outcome.errors.total() == 3
    assert outcome.errors == Counter({"DECRYPTION_ERROR": 1})


def test_cleartext_reports_need_no_key():
    rules = Rules(made.NOW, None)
    report = Report(payload(), "no_key", made.info().text())
    assert map_reports([report], rules, Selection()).partitions[0].sums.tolist() == [1]


def test_reports_of_one_length_and_several_layouts_are_all_read(monkeypatch):
    """A report that only claims a layout goes through ``cbor2`` alone; it does not take the others with it."""
    good = [payload_of(number) for number in range(50)]
    odd = bytearray(good[0])
    odd[15] ^= 0xFF  # in the text `value`
    other_layout = b"\xa2ddata\x95\xa2" + good[0][8:]
    slow = []
    monkeypatch.setattr(mapping, "decode", lambda cleartext: slow.append(cleartext) or decode(cleartext))
    rules = Rules(made.NOW, None)
    cleartexts = [bytes(odd), other_layout, *good]
    reports = [Report(each, "no_key", made.info(number).text()) for number, each in enumerate(cleartexts)]
    mapped = map_reports(reports, rules, Selection())
    assert mapped.partitions[0].sums.sum() == 50 * 51 / 2
    assert dict(mapped.errors) == {"REPORT_PARSING_ERROR": 2}
    assert len(slow) == 2


def payload_of(number):
    return encode([Contribution(number + 1, number + 1)], made.LAYOUT)
