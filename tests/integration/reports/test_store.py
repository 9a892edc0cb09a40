"""From messages to objects: no acknowledged report is lost or counts twice."""

import json
from typing import Any

import pytest

from kanon.reports.account import HOUR
from kanon.reports.collecting import EVENTS, REPORTS
from kanon.reports.opening import open_report
from tests.integration.reports.front import Front
from tests.integration.reports.test_collect import ATTRIBUTION, EVENT, body, other_api
from tests.unit.reports import made

SHARED_STORAGE = "/.well-known/private-aggregation/report-shared-storage"
ATTRIBUTION_HOUR = "reports/attribution-reporting/2025/12/31/23/"


@pytest.fixture
def deployed(shared: Front) -> Front:
    shared.reset()
    return shared


def collected(deployed: Front, *bodies: dict[str, Any], path: str = ATTRIBUTION) -> list[dict[str, str]]:
    """The messages of reports that were collected."""
    for sent in bodies:
        assert deployed.send("collect", "POST", path, sent).status == 200
    return deployed.queued()


def test_reports_of_one_api_and_hour_are_in_one_object(deployed: Front) -> None:
    messages = collected(
        deployed,
        *(body(number=n) for n in range(3)),
        *(body(number=n, scheduled_report_time=made.NOW - 3 * HOUR) for n in range(3, 5)),
    )
    messages += collected(deployed, other_api("shared-storage", 5), path=SHARED_STORAGE)
    assert deployed.store(messages) == []
    folders = sorted(name.rpartition("/")[0] + "/" for name in deployed.objects())
    assert folders == [
        "reports/attribution-reporting/2025/12/31/21/",
        ATTRIBUTION_HOUR,
        "reports/shared-storage/2025/12/31/23/",
    ]
    ids = {json.loads(report.shared_info)["report_id"] for report in deployed.stored()}
    assert ids == {made.report_id(n) for n in range(6)}
    assert deployed.metrics()["ObjectsStored"] == 3


def test_a_stored_report_can_be_opened(deployed: Front) -> None:
    deployed.store(collected(deployed, body()))
    (report,) = deployed.stored()
    assert report.key_id == made.KEY_ID
    assert b"histogram" in open_report(report, made.RULES)


def test_events_of_one_hour_are_in_one_object_of_lines(deployed: Front) -> None:
    messages = collected(deployed, EVENT, {**EVENT, "trigger_data": "1"}, path=EVENTS)
    assert deployed.store(messages) == []
    ((name, stored),) = deployed.objects().items()
    assert name.startswith("events/2026/01/01/00/")
    assert name.endswith(".jsonl")
    assert sorted(json.loads(line)["trigger_data"] for line in stored.splitlines()) == ["1", "7"]


def test_a_batch_that_comes_again_writes_the_same_object(deployed: Front) -> None:
    messages = collected(deployed, *(body(number=n) for n in range(4)))
    assert deployed.store(messages) == []
    before = deployed.objects()
    assert deployed.store(messages[::-1] + messages) == []
    assert deployed.objects() == before


def test_a_report_in_two_objects_after_a_repeated_message_counts_once(deployed: Front) -> None:
    messages = collected(deployed, body(number=1), body(number=2))
    assert deployed.store(messages[:1]) == []
    assert deployed.store(messages) == []
    assert len(deployed.objects()) == 2
    service = deployed.service
    service.put_domain("domain/keys.avro", 5)
    service.create("job", input_data_blob_prefix="reports/")
    service.run()
    assert service.code("job") == "SUCCESS"
    counters = service.row("job").values["counters"]
    assert (counters["accepted"], counters["duplicates"]) == (2, 1)


REPORT = {
    "kind": "report",
    "api": "kanon",
    "scheduled_report_time": 0,
    "shared_info": "",
    "payload": "A" * 80,
    "key_id": "",
}
POISON: list[Any] = [
    "",
    "{",
    "null",
    {"kind": "secret"},
    {"kind": "event", "body": 5, "received": made.NOW},
    {"kind": "event", "body": "{}", "received": 10**15},
    REPORT | {"api": "secret/../"},
    REPORT | {"scheduled_report_time": -1},
    REPORT | {"payload": "secret"},
    REPORT | {"more": "secret"},
    '{"kind":"event","body":"\\ud800","received":1}',
]


def test_an_unreadable_message_does_not_stop_the_others(deployed: Front) -> None:
    poison = [
        {"messageId": f"poison-{n}", "body": one if isinstance(one, str) else json.dumps(one)}
        for n, one in enumerate(POISON)
    ]
    messages = collected(deployed, body(), path=ATTRIBUTION) + collected(deployed, EVENT, path=EVENTS)
    batch = [*poison, *messages]
    assert deployed.store(batch) == [message["messageId"] for message in poison]
    assert len(deployed.objects()) == 2
    lines = [json.loads(line) for line in deployed.output.getvalue().splitlines()]
    assert len([line for line in lines if line.get("message") == "message refused"]) == len(POISON)
    assert "secret" not in deployed.output.getvalue()


def test_messages_whose_object_is_not_written_come_again(deployed: Front) -> None:
    early = collected(deployed, *(body(number=n) for n in range(2)))
    late = collected(deployed, body(number=2, scheduled_report_time=made.NOW - 9 * HOUR))
    puts = iter([None, "SlowDown"])
    deployed.fail = lambda operation: next(puts) if operation == "PutObject" else None
    failed = deployed.store(early + late)
    assert failed == [late[0]["messageId"]]
    deployed.fail = lambda operation: None
    assert deployed.store(late) == []
    assert len(deployed.stored()) == 3
    assert made.ORIGIN not in deployed.output.getvalue()


def test_store_reads_no_object(deployed: Front) -> None:
    messages = collected(deployed, body())
    deployed.store(messages)
    deployed.calls.clear()
    deployed.store(messages)
    assert [name for name, _ in deployed.calls] == ["PutObject"]


def test_every_path_has_a_separate_folder(deployed: Front) -> None:
    for number, (path, api) in enumerate(REPORTS.items()):
        sent = body(number=number) if api == "attribution-reporting" else other_api(api, number)
        assert deployed.store(collected(deployed, sent, path=path)) == []
    assert {name.split("/")[1] for name in deployed.objects()} == set(REPORTS.values())
