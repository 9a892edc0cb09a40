"""The collector: what it accepts, what it refuses, and what it never passes on."""

import base64
import json
from typing import Any

import pytest

from kanon.reports.account import DAY
from kanon.reports.collecting import EVENTS, PUBLIC_KEYS, REPORTS, debug_path
from kanon.reports.storage.key_ring import Key
from tests.integration.reports.front import Front
from tests.unit.reports import made

ATTRIBUTION = "/.well-known/attribution-reporting/report-aggregate-attribution"
CLEAR = "Y2xlYXIgdGV4dCBvZiBhIGRlYnVnIHJlcG9ydA=="
DEBUG_KEY = "7654321076543210"


@pytest.fixture
def collector(shared: Front) -> Front:
    shared.reset()
    return shared


def body(text: str | None = None, number: int = 1, **changes: Any) -> dict[str, Any]:
    """A report as a browser sends it, with everything that it may send for debugging."""
    report = made.report([(5, 1000)], number, text, **changes)
    return {
        "shared_info": report.shared_info,
        "aggregation_service_payloads": [
            {
                "payload": base64.b64encode(report.payload).decode(),
                "key_id": report.key_id,
                "debug_cleartext_payload": CLEAR,
            }
        ],
        "source_debug_key": DEBUG_KEY,
        "trigger_debug_key": DEBUG_KEY,
        "trigger_context_id": "context",
    }


def other_api(api: str, number: int = 1, **changes: Any) -> dict[str, Any]:
    return body(number=number, api=api, attribution_destination=None, source_registration_time=None, **changes)


EVENT = {
    "attribution_destination": "https://shop.test",
    "randomized_trigger_rate": 0.0024,
    "scheduled_report_time": "1767225600",
    "source_event_id": "18446744073709551615",
    "source_type": "navigation",
    "trigger_data": "7",
    "report_id": made.report_id(1),
    "source_debug_key": DEBUG_KEY,
    "trigger_debug_key": DEBUG_KEY,
}


@pytest.mark.parametrize("path", REPORTS)
def test_a_report_is_queued_as_it_was_sent(collector: Front, path: str) -> None:
    sent = body() if REPORTS[path] == "attribution-reporting" else other_api(REPORTS[path])
    result = collector.send("collect", "POST", path, sent)
    assert (result.status, result.body) == (200, "{}")
    (message,) = collector.queued()
    assert json.loads(message["body"]) == {
        "kind": "report",
        "api": REPORTS[path],
        "scheduled_report_time": made.NOW - 3600,
        "shared_info": sent["shared_info"],
        "payload": sent["aggregation_service_payloads"][0]["payload"],
        "key_id": made.KEY_ID,
    }
    assert collector.metrics() == {"ReportsAccepted": 1}


def test_the_collector_passes_on_no_clear_text(collector: Front) -> None:
    assert collector.send("collect", "POST", ATTRIBUTION, body()).status == 200
    assert collector.send("collect", "POST", debug_path(ATTRIBUTION), body()).status == 200
    assert collector.send("collect", "POST", EVENTS, EVENT).status == 200
    messages = collector.queued()
    assert len(messages) == 2
    assert collector.store(messages) == []
    everything = json.dumps([messages, collector.calls], default=str) + str(collector.objects())
    everything += collector.output.getvalue()
    clear = base64.b64decode(CLEAR)
    for private in (CLEAR[:20], clear.decode(), clear.hex(), DEBUG_KEY):
        assert private not in everything


@pytest.mark.parametrize("path", REPORTS)
def test_a_debug_report_is_checked_and_discarded(collector: Front, path: str) -> None:
    sent = body() if REPORTS[path] == "attribution-reporting" else other_api(REPORTS[path])
    result = collector.send("collect", "POST", debug_path(path), sent)
    assert (result.status, result.body) == (200, "{}")
    assert collector.queued() == []
    assert collector.calls == []
    assert collector.send("collect", "POST", debug_path(path), {**sent, "shared_info": "{}"}).status == 400
    assert collector.metrics() == {"DebugReports": 1, "RequestsRejected": 1}


def test_an_event_is_queued_in_one_line_of_known_fields(collector: Front) -> None:
    text = json.dumps({**EVENT, "more": "unknown"}, indent=2)
    assert collector.send("collect", "POST", EVENTS, text).body == "{}"
    (message,) = collector.queued()
    queued = json.loads(message["body"])
    assert (queued["kind"], queued["received"]) == ("event", made.NOW)
    assert "\n" not in queued["body"]
    assert json.loads(queued["body"]) == {name: value for name, value in EVENT.items() if "debug" not in name}


@pytest.mark.parametrize(
    "changes",
    [
        {"source_event_id": 123},
        {"attribution_destination": ["https://a.test", "https://b.test"]},
        {"trigger_summary_bucket": [1, 9]},
        {"randomized_trigger_rate": 0},
    ],
)
def test_events_of_every_kind_are_accepted(collector: Front, changes: dict[str, Any]) -> None:
    assert collector.send("collect", "POST", EVENTS, {**EVENT, **changes}).status == 200


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"source_event_id": None}, "source_event_id"),
        ({"source_type": "secret-type"}, "source_type"),
        ({"trigger_data": "secret"}, "trigger_data"),
        ({"randomized_trigger_rate": 1.5}, "randomized_trigger_rate"),
        ({"randomized_trigger_rate": "secret"}, "randomized_trigger_rate"),
        ({"scheduled_report_time": -1}, "scheduled_report_time"),
        ({"attribution_destination": "secret"}, "attribution_destination"),
        ({"attribution_destination": ["https://a.test"] * 4}, "attribution_destination"),
        ({"report_id": "secret"}, "report_id"),
        ({"trigger_summary_bucket": [1]}, "trigger_summary_bucket"),
    ],
)
def test_an_event_with_a_wrong_field_is_refused(collector: Front, changes: dict[str, Any], field: str) -> None:
    result = collector.send("collect", "POST", EVENTS, {**EVENT, **changes})
    assert result.status == 400
    assert field in result.message
    assert "secret" not in result.body
    assert collector.queued() == []


def test_long_bodies_are_refused(collector: Front) -> None:
    long = {**body(), "padding": "x" * (192 << 10)}
    result = collector.send("collect", "POST", ATTRIBUTION, long)
    assert (result.status, result.message) == (
        413,
        "the body is larger than 196608 bytes; send each report by itself",
    )
    result = collector.send("collect", "POST", EVENTS, {**EVENT, "padding": "x" * (16 << 10)})
    assert (result.status, "16384 bytes" in result.message) == (413, True)
    assert collector.queued() == []


def test_the_longest_body_fits_a_message_of_the_queue(collector: Front) -> None:
    """The widest text is that of characters that JSON writes with twelve."""
    info = made.info(reporting_origin=made.ORIGIN).text()
    text = json.dumps({**json.loads(info), "more": "\U0001f600" * (4000 - len(info))}, ensure_ascii=False)
    payload = "A" * ((192 << 10) - len(json.dumps(text, ensure_ascii=False).encode()) - 200 & ~3)
    sent = {"shared_info": text, "aggregation_service_payloads": [{"payload": payload, "key_id": made.KEY_ID}]}
    result = collector.send("collect", "POST", ATTRIBUTION, json.dumps(sent, ensure_ascii=False))
    assert result.status == 200, result.body
    (message,) = collector.queued()
    assert 190 << 10 < len(message["body"].encode()) < 256 << 10


SHARED_INFO: list[tuple[Any, str]] = [
    ("{", "is not a JSON object"),
    ("[]", "is not a JSON object"),
    (made.info().text()[:-1] + ',"api":"attribution-reporting"}', "each once"),
    (made.info(version="0.0").text(), "version"),
    (made.info(version="2.0").text(), "version"),
    (made.info(version="secret").text(), "version"),
    (made.info(api="secret").text(), "api"),
    (made.info(api="kanon").text(), "another path"),
    (made.info(api="attribution-reporting-debug").text(), "another path"),
    (made.info(report_id="secret").text(), "report_id"),
    (made.info(reporting_origin="secret").text(), "https origin"),
    (made.info(reporting_origin="http://report.test").text(), "https origin"),
    (made.info(scheduled_report_time=made.NOW - 90 * DAY - 1).text(), "scheduled_report_time over 90 days ago"),
    (made.info(scheduled_report_time=made.NOW + DAY + 1).text(), "over a day ahead"),
    (made.info(scheduled_report_time="secret").text(), "is not a JSON object"),
    (made.info(attribution_destination=None).text(), "attribution_destination"),
    ("x" * 4097, "4096"),
    ("\ud800", "unicode"),
    (5, "string"),
    (None, "string"),
]


@pytest.mark.parametrize(("info", "why"), SHARED_INFO, ids=[why for _, why in SHARED_INFO])
def test_a_report_with_invalid_clear_fields_is_refused(collector: Front, info: Any, why: str) -> None:
    result = collector.send("collect", "POST", ATTRIBUTION, {**body(), "shared_info": info})
    assert result.status == 400
    assert result.message.startswith("shared_info: ")
    assert why in result.message
    assert result.fields == ["shared_info"]
    assert "secret" not in result.body
    assert made.ORIGIN not in result.body
    assert collector.queued() == []
    assert collector.metrics() == {"RequestsRejected": 1}


PAYLOAD: dict[str, str] = body()["aggregation_service_payloads"][0]
PAYLOADS: list[tuple[Any, str]] = [
    ([], "aggregation_service_payloads"),
    ([PAYLOAD, PAYLOAD], "aggregation_service_payloads"),
    (PAYLOAD, "aggregation_service_payloads"),
    ([{**PAYLOAD, "payload": "secret!"}], "aggregation_service_payloads.0.payload"),
    ([{**PAYLOAD, "payload": base64.b64encode(bytes(48)).decode()}], "aggregation_service_payloads.0.payload"),
    ([{"key_id": made.KEY_ID}], "aggregation_service_payloads.0.payload"),
    ([{**PAYLOAD, "key_id": ""}], "aggregation_service_payloads.0.key_id"),
    ([{**PAYLOAD, "key_id": "secret key"}], "aggregation_service_payloads.0.key_id"),
]


@pytest.mark.parametrize(("payloads", "where"), PAYLOADS)
def test_a_report_without_one_encrypted_payload_is_refused(collector: Front, payloads: Any, where: str) -> None:
    result = collector.send("collect", "POST", ATTRIBUTION, {**body(), "aggregation_service_payloads": payloads})
    assert result.status == 400
    assert result.message.startswith(f"{where}: ")
    assert "secret" not in result.body
    assert collector.queued() == []


@pytest.mark.parametrize(
    "kind", ["application/json", "application/json; charset=utf-8", "text/json", "application/ld+json", None]
)
def test_json_of_every_content_type_is_read(collector: Front, kind: str | None) -> None:
    assert collector.send("collect", "POST", ATTRIBUTION, body(), content_type=kind).status == 200


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "application/octet-stream"])
def test_another_content_type_is_refused(collector: Front, kind: str) -> None:
    assert collector.send("collect", "POST", ATTRIBUTION, body(), content_type=kind).status == 415


def test_reports_of_other_origins_than_the_allowed_ones_are_refused(collector: Front) -> None:
    collector.reconfigure(KANON_ALLOWED_ORIGINS="https://one.test,https://two.test")
    assert collector.send("collect", "POST", ATTRIBUTION, body(reporting_origin="https://two.test")).status == 200
    result = collector.send("collect", "POST", ATTRIBUTION, body(reporting_origin="https://three.test"))
    assert (result.status, "AllowedOrigins" in result.message) == (400, True)
    assert "three" not in result.body
    assert len(collector.queued()) == 1


@pytest.mark.parametrize("path", [ATTRIBUTION, EVENTS])
def test_a_report_that_is_not_queued_is_not_acknowledged(collector: Front, path: str) -> None:
    collector.fail = lambda operation: "InternalFailure" if operation == "SendMessage" else None
    result = collector.send("collect", "POST", path, body() if path == ATTRIBUTION else EVENT)
    assert (result.status, result.headers["Retry-After"]) == (503, "5")
    assert collector.queued() == []
    assert collector.metrics() == {"ReportsRefused": 1}
    assert made.ORIGIN not in result.body + collector.output.getvalue()


def key(number: int, until: int) -> Key:
    return Key(f"{number:08}-93d4-4b61-8c4f-2f8f0e6d7a11", f"key{number}", made.NOW, until, until + DAY)


def test_the_published_keys_may_be_cached_until_the_first_one_ends(collector: Front) -> None:
    one, two = key(1, made.NOW + 5000), key(2, made.NOW + 10**6)
    collector.publish_keys(key(3, made.NOW), one, two)
    result = collector.send("collect", "GET", PUBLIC_KEYS)
    assert result.status == 200
    assert result.json() == {"keys": [{"id": one.id, "key": "key1"}, {"id": two.id, "key": "key2"}]}
    assert result.headers["Cache-Control"] == "public, max-age=5000"
    collector.publish_keys(two)
    assert collector.send("collect", "GET", PUBLIC_KEYS).headers["Cache-Control"] == "public, max-age=86400"


def test_before_the_first_key_clients_are_asked_to_retry(collector: Front) -> None:
    result = collector.send("collect", "GET", PUBLIC_KEYS)
    assert (result.status, result.headers["Retry-After"]) == (503, "5")
    collector.publish_keys(key(1, made.NOW))
    result = collector.send("collect", "GET", PUBLIC_KEYS)
    assert (result.status, result.headers["Cache-Control"]) == (503, "no-store")


def test_no_log_line_of_the_collector_contains_a_part_of_a_report(collector: Front) -> None:
    for sent in (body(), {**body(), "shared_info": "{"}, {"shared_info": 5}, "{", "[]", EVENT):
        for path in (*REPORTS, *map(debug_path, REPORTS), EVENTS):
            collector.send("collect", "POST", path, sent)
    output = collector.output.getvalue()
    assert {"ReportsAccepted", "DebugReports", "RequestsRejected"} <= collector.metrics().keys()
    for private in (made.ORIGIN, "report.test", "shop.test", made.report_id(1), made.KEY_ID, "18446744073709551615"):
        assert private not in output


@pytest.mark.parametrize("target", ["/v1/report", "/", "/.well-known/attribution-reporting/debug/"])
def test_other_paths_are_not_found(collector: Front, target: str) -> None:
    assert collector.send("collect", "POST", target, body()).status == 404
