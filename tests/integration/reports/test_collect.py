"""The collector: what it accepts, what it refuses, and what it never passes on."""

import base64
import json
from typing import Any

import pytest

from kanon.reports.collecting import MOST_PAYLOAD, PUBLIC_KEYS, REPORTS, debug_path
from kanon.reports.payload import MOST_BYTES, OVERHEAD
from kanon.reports.settings import CollectSettings
from kanon.reports.shared_info import DAY
from kanon.reports.storage.key_ring import READ_EVERY, SETTLES, Key
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
    messages = collector.queued()
    assert len(messages) == 1
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
    assert collector.send("collect", "POST", debug_path(path), {**sent, "shared_info": "{}"}).status == 400
    assert collector.metrics() == {"DebugReports": 1, "RequestsRejected": 1}


def test_long_bodies_are_refused(collector: Front) -> None:
    long = {**body(), "padding": "x" * (192 << 10)}
    result = collector.send("collect", "POST", ATTRIBUTION, long)
    assert (result.status, result.message) == (
        413,
        "the body is larger than 196608 bytes; send each report by itself",
    )
    assert collector.queued() == []


def test_the_longest_body_fits_a_message_of_the_queue(collector: Front) -> None:
    """The widest text is that of characters that JSON writes with twelve."""
    info = made.info(reporting_origin=made.ORIGIN).text()
    text = json.dumps({**json.loads(info), "more": "\U0001f600" * (2000 - len(info))}, ensure_ascii=False)
    payload = base64.b64encode(bytes(MOST_PAYLOAD)).decode()
    sent = {"shared_info": text, "aggregation_service_payloads": [{"payload": payload, "key_id": made.KEY_ID}]}
    result = collector.send("collect", "POST", ATTRIBUTION, json.dumps(sent, ensure_ascii=False))
    assert result.status == 200, result.body
    (message,) = collector.queued()
    assert 80 << 10 < len(message["body"].encode()) < 256 << 10


SHARED_INFO: list[tuple[Any, str]] = [
    ("{", "is not a JSON object"),
    ("[]", "is not a JSON object"),
    (made.info().text()[:-1] + ',"api":"attribution-reporting"}', "each once"),
    (made.info(version="0.0").text(), "version"),
    (made.info(version="2.0").text(), "version"),
    (made.info(version="00.1").text(), "version"),
    (made.info(version="1.10").text(), "version"),
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
    (made.info(source_registration_time=made.NOW - DAY + 1).text(), "no whole day"),
    (made.info(source_registration_time=made.NOW + DAY).text(), "no whole day"),
    (made.info(source_registration_time=made.NOW - 91 * DAY).text(), "no whole day"),
    ("x" * 2049, "2048"),
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


@pytest.mark.parametrize("registered", [0, made.NOW - DAY, made.NOW - 90 * DAY, None])
def test_a_report_names_a_day_of_registration_or_none(collector: Front, registered: int | None) -> None:
    """Browsers round down to days, and say 0 or nothing if the day must stay unknown."""
    info = made.info(source_registration_time=registered).text()
    assert collector.send("collect", "POST", ATTRIBUTION, {**body(), "shared_info": info}).status == 200


PAYLOAD: dict[str, str] = body()["aggregation_service_payloads"][0]
PAYLOADS: list[tuple[Any, str]] = [
    ([], "aggregation_service_payloads"),
    ([PAYLOAD, PAYLOAD], "aggregation_service_payloads"),
    (PAYLOAD, "aggregation_service_payloads"),
    ([{**PAYLOAD, "payload": "secret!"}], "aggregation_service_payloads.0.payload"),
    ([{**PAYLOAD, "payload": base64.b64encode(bytes(48)).decode()}], "aggregation_service_payloads.0.payload"),
    (
        [{**PAYLOAD, "payload": base64.b64encode(bytes(MOST_PAYLOAD + 1)).decode()}],
        "aggregation_service_payloads.0.payload",
    ),
    ([{"key_id": made.KEY_ID}], "aggregation_service_payloads.0.payload"),
    ([{**PAYLOAD, "key_id": ""}], "aggregation_service_payloads.0.key_id"),
    ([{**PAYLOAD, "key_id": "secret key"}], "aggregation_service_payloads.0.key_id"),
]


@pytest.mark.parametrize(("payloads", "where"), PAYLOADS)
def test_a_report_without_one_encrypted_payload_is_refused(collector: Front, payloads: Any, where: str) -> None:
    result = collector.send("collect", "POST", ATTRIBUTION, {**body(), "aggregation_service_payloads": payloads})
    assert result.status == 400
    assert result.message.startswith(where)
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


ALLOWED = "https://report.test"
LOOK_ALIKES = [
    *("https://evilreport.test", "https://evil-report.test", "https://sub.report.test", "https://test"),
    *("https://report.test.evil.test", "https://report.test.", "https://report.test:443", "https://report.test:8443"),
    *("https://user@report.test", "https://report.test@evil.test", "https://report.test:x@evil.test"),
    *("https://REPORT.test", "HTTPS://report.test", "https://xn--reort-rve.test", "https://re\u0440ort.test"),
    *("https://report\u3002test", "https://report.te\u017ft", "http://report.test", "https://report.test/"),
    *(
        " https://report.test",
        "https://report.test\n",
        "https://report.test%00.evil.test",
        "https://evil.test#.report.test",
    ),
    *("https://evil.test/https://report.test", "https://evil.test?https://report.test", "//report.test", "report.test"),
]


def taken(collector: Front) -> list[str]:
    """The look-alikes of the allowed origin whose reports are collected."""
    collector.reconfigure(KANON_ALLOWED_ORIGINS=ALLOWED)
    sent = {origin: body(reporting_origin=origin) for origin in (ALLOWED, *LOOK_ALIKES)}
    return [origin for origin in sent if collector.send("collect", "POST", ATTRIBUTION, sent[origin]).status == 200]


def test_no_look_alike_of_an_allowed_origin_passes(collector: Front) -> None:
    assert taken(collector) == [ALLOWED]
    assert len(collector.queued()) == 1


@pytest.mark.parametrize(
    "planted",
    [
        lambda _, origin: origin.endswith("report.test"),
        lambda _, origin: origin.startswith(ALLOWED),
        lambda _, origin: ALLOWED in origin,
        lambda _, origin: origin.lower().partition(":8")[0] == ALLOWED,
        lambda _, origin: origin.rpartition("@")[2].removeprefix("https://") == "report.test",
    ],
    ids=["suffix", "prefix", "part", "case and port", "userinfo"],
)
def test_a_loose_comparison_of_origins_is_caught(
    collector: Front, planted: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CollectSettings, "allows", planted)
    monkeypatch.setattr("kanon.reports.collecting.host_of", lambda _: "any")
    assert taken(collector) != [ALLOWED]


def with_key(key_id: str) -> dict[str, Any]:
    sent = body()
    sent["aggregation_service_payloads"][0]["key_id"] = key_id
    return sent


def test_a_report_to_a_key_that_never_existed_is_refused(collector: Front) -> None:
    for path in (ATTRIBUTION, debug_path(ATTRIBUTION)):
        result = collector.send("collect", "POST", path, with_key("5a0c2b1e-93d4-4b61-8c4f-2f8f0e6d7a12"))
        assert (result.status, result.fields) == (400, ["aggregation_service_payloads.0.key_id"])
        assert "fetch the public keys" in result.message
    assert collector.queued() == []


def test_a_report_to_a_key_that_is_no_longer_published_is_taken(collector: Front) -> None:
    """Clients and caches keep a key for a day longer than it is published."""
    old = Key("old-key", "", made.NOW - 30 * DAY, made.NOW - 16 * DAY, made.NOW + 90 * DAY)
    collector.publish_keys(old)
    collector.modules.clear()
    assert collector.send("collect", "POST", ATTRIBUTION, with_key("old-key")).status == 200


def test_unknown_keys_cost_one_read_in_some_seconds(collector: Front) -> None:
    collector.modules.clear()
    for number in range(20):
        assert collector.send("collect", "POST", ATTRIBUTION, with_key(f"unknown-{number}")).status == 400
        assert collector.send("collect", "POST", ATTRIBUTION, body(number=number)).status == 200
    assert [name for name, _ in collector.calls].count("GetItem") == 1


def test_no_collector_refuses_a_report_to_a_new_key(collector: Front) -> None:
    """One has read the ring just before the key is published. Clients get the key when each would read it again."""
    assert SETTLES > READ_EVERY
    tables = collector.service.tables
    collector.modules.clear()
    try:
        assert collector.send("collect", "POST", ATTRIBUTION, with_key("unknown")).status == 400
        collector.publish_keys(Key.made("new-key", "key", made.NOW))
        assert collector.send("collect", "GET", PUBLIC_KEYS).status == 503
        assert collector.send("collect", "POST", ATTRIBUTION, with_key("new-key")).status == 400
        tables.now = made.NOW + SETTLES
        assert collector.send("collect", "GET", PUBLIC_KEYS).json()["keys"][0]["id"] == "new-key"
        assert collector.send("collect", "POST", ATTRIBUTION, with_key("new-key")).status == 200
    finally:
        tables.now = made.NOW


def test_the_longest_payload_is_that_of_the_most_pairs() -> None:
    assert MOST_PAYLOAD == MOST_BYTES + OVERHEAD


def test_a_report_that_is_not_queued_is_not_acknowledged(collector: Front) -> None:
    collector.fail = lambda operation: "InternalFailure" if operation == "SendMessage" else None
    result = collector.send("collect", "POST", ATTRIBUTION, body())
    assert (result.status, result.headers["Retry-After"]) == (503, "5")
    assert collector.queued() == []
    assert collector.metrics() == {"ReportsRefused": 1}
    assert made.ORIGIN not in result.body + collector.output.getvalue()


def key(number: int, until: int) -> Key:
    return Key(f"{number:08}-93d4-4b61-8c4f-2f8f0e6d7a11", f"key{number}", made.NOW - SETTLES, until, until + DAY)


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
    collector.publish_keys()
    result = collector.send("collect", "GET", PUBLIC_KEYS)
    assert (result.status, result.headers["Retry-After"]) == (503, "5")
    collector.publish_keys(key(1, made.NOW))
    result = collector.send("collect", "GET", PUBLIC_KEYS)
    assert (result.status, result.headers["Cache-Control"]) == (503, "no-store")


def test_no_log_line_of_the_collector_contains_a_part_of_a_report(collector: Front) -> None:
    for sent in (body(), {**body(), "shared_info": "{"}, {"shared_info": 5}, "{", "[]"):
        for path in (*REPORTS, *map(debug_path, REPORTS)):
            collector.send("collect", "POST", path, sent)
    output = collector.output.getvalue()
    assert {"ReportsAccepted", "DebugReports", "RequestsRejected"} <= collector.metrics().keys()
    for private in (made.ORIGIN, "report.test", "shop.test", made.report_id(1), made.KEY_ID):
        assert private not in output


@pytest.mark.parametrize("target", ["/v1/report", "/", "/.well-known/attribution-reporting/debug/"])
def test_other_paths_are_not_found(collector: Front, target: str) -> None:
    assert collector.send("collect", "POST", target, body()).status == 404
