"""From messages to objects: no acknowledged report is lost or counts twice."""

import base64
import json
import threading
from datetime import datetime
from types import SimpleNamespace
from typing import Any

import pytest

from kanon.reports.collecting import REPORTS
from kanon.reports.payload import open_sealed
from kanon.reports.service.storing import PARALLEL, File, write
from kanon.reports.shared_info import END_OF_TIME, HOUR
from kanon.reports.storage.objects import BUCKETS, bucket_of, may_hold
from tests.integration.reports.front import Front
from tests.integration.reports.test_collect import ATTRIBUTION, body, other_api
from tests.unit.reports import made

SHARED_STORAGE = "/.well-known/private-aggregation/report-shared-storage"


@pytest.fixture
def deployed(shared: Front) -> Front:
    shared.reset()
    return shared


def collected(deployed: Front, *bodies: dict[str, Any], path: str = ATTRIBUTION) -> list[dict[str, str]]:
    """The messages of reports that were collected."""
    for sent in bodies:
        assert deployed.send("collect", "POST", path, sent).status == 200
    return deployed.queued()


def test_reports_of_one_api_and_origin_are_in_one_object(deployed: Front) -> None:
    messages = collected(
        deployed,
        *(body(number=n) for n in range(3)),
        *(body(number=n, scheduled_report_time=made.NOW - 3 * HOUR) for n in range(3, 5)),
    )
    messages += collected(deployed, other_api("shared-storage", 5), path=SHARED_STORAGE)
    assert deployed.store(messages) == []
    names = sorted(name.rpartition("-")[0] for name in deployed.objects())
    bucket = bucket_of(made.ORIGIN)
    assert names == [
        f"reports/attribution-reporting/2026/01/01/00/{bucket}/2025123121-2025123123",
        f"reports/shared-storage/2026/01/01/00/{bucket}/2025123123-2025123123",
    ]
    ids = {json.loads(report.shared_info)["report_id"] for report in deployed.stored()}
    assert ids == {made.report_id(n) for n in range(6)}
    assert deployed.metrics()["ObjectsStored"] == 2


def test_a_stored_report_can_be_opened(deployed: Front) -> None:
    deployed.store(collected(deployed, body()))
    (report,) = deployed.stored()
    assert report.key_id == made.KEY_ID
    assert b"histogram" in open_sealed(report.payload, made.KEY, report.shared_info)


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
    REPORT | {"api": "secret/../"},
    REPORT | {"scheduled_report_time": -1},
    REPORT | {"payload": "secret"},
    REPORT | {"more": "secret"},
    REPORT,  # without shared_info
    json.dumps(REPORT)[:-1] + ',"more":"\\ud800"}',
]


def test_an_unreadable_message_does_not_stop_the_others(deployed: Front) -> None:
    poison = [
        {"messageId": f"poison-{n}", "body": one if isinstance(one, str) else json.dumps(one)}
        for n, one in enumerate(POISON)
    ]
    messages = collected(deployed, body(), path=ATTRIBUTION)
    batch = [*poison, *messages]
    assert deployed.store(batch) == [message["messageId"] for message in poison]
    assert len(deployed.objects()) == 1
    lines = [json.loads(line) for line in deployed.output.getvalue().splitlines()]
    assert len([line for line in lines if line.get("message") == "message refused"]) == len(POISON)
    assert "secret" not in deployed.output.getvalue()


def test_messages_whose_object_is_not_written_come_again(deployed: Front) -> None:
    messages = collected(deployed, *(body(number=n) for n in range(2)))
    other = collected(deployed, body(number=2, reporting_origin="https://other.test"))
    puts = iter([None, "SlowDown"])
    deployed.fail = lambda operation: next(puts) if operation == "PutObject" else None
    failed = deployed.store(messages + other)
    assert failed in ([one["messageId"] for one in messages], [other[0]["messageId"]])
    deployed.fail = lambda operation: None
    assert deployed.store([one for one in messages + other if one["messageId"] in failed]) == []
    assert len(deployed.stored()) == 3
    assert made.ORIGIN not in deployed.output.getvalue()


def message(number: int, **changes: Any) -> dict[str, str]:
    """A message as ``collect`` queues it."""
    info = made.info(number, **changes)
    fields = {"api": info.api, "scheduled_report_time": info.scheduled_report_time, "shared_info": info.text()}
    return {"messageId": f"{number}", "body": json.dumps(REPORT | fields)}


def test_no_batch_writes_more_than_64_objects_of_an_api(deployed: Front) -> None:
    """Once, 5,541 reports over 2,184 hours were as many objects, written one after the other: 166 of 60 seconds."""
    hours = [
        message(n, scheduled_report_time=made.NOW - n % 2184 * HOUR, reporting_origin=f"https://o{n % 999}.test")
        for n in range(5541)
    ]
    assert deployed.store(hours) == []
    assert [name for name, _ in deployed.calls].count("PutObject") == len(deployed.objects()) == BUCKETS
    assert len(deployed.stored()) == 5541
    deployed.reset()
    assert deployed.store([message(n, scheduled_report_time=made.NOW - n * HOUR) for n in range(900)]) == []
    (name,) = deployed.objects()
    assert f"{made.NOW - 899 * HOUR}" not in name
    assert name.rpartition("/")[2].startswith("2025112413-2026010100-")


def test_objects_are_written_at_the_same_time(deployed: Front) -> None:
    meet = threading.Barrier(PARALLEL, timeout=30)
    files = [File(f"{n}", b"", ()) for n in range(PARALLEL)]
    outcomes = write(files, lambda key, body: meet.wait(), 30)
    assert all(outcome.exception() is None for outcome in outcomes.values())


def test_objects_that_are_not_written_in_time_are_given_up(deployed: Front) -> None:
    resume, begun = threading.Event(), []

    def slow(key: str, body: bytes) -> None:
        begun.append(key)
        resume.wait(30)

    outcomes = write([File(f"{n}", b"", ()) for n in range(3 * PARALLEL)], slow, 0)
    late = [outcome.done() and not outcome.cancelled() for outcome in outcomes.values()]
    resume.set()
    assert not any(late)
    assert len(begun) <= PARALLEL
    module = deployed.module("store")
    module.bucket = lambda: SimpleNamespace(put_once=slow)
    resume.clear()
    try:
        result = deployed.invoke("store", {"Records": [message(1)]}, seconds=5)
    finally:
        resume.set()
        deployed.modules.clear()
    assert result == {"batchItemFailures": [{"itemIdentifier": "1"}]}


def test_event_level_reports_that_an_earlier_version_has_queued_are_dropped(deployed: Front) -> None:
    assert deployed.store([{"messageId": "1", "body": '{"kind":"event","body":"{}","received":1}'}]) == []
    assert deployed.objects() == {}


def test_a_message_of_an_earlier_version_may_be_longer(deployed: Front) -> None:
    long = message(1)
    text = {"shared_info": made.info().text() + " " * 3500, "payload": base64.b64encode(bytes(120_000)).decode()}
    assert deployed.store([{**long, "body": json.dumps(json.loads(long["body"]) | text)}]) == []
    assert len(deployed.stored()) == 1


@pytest.mark.parametrize(
    ("name", "holds"),
    [
        ("reports/kanon/2026/01/01/00/{}/2025123121-2025123123-{}.avro", True),
        ("reports/kanon/2026/01/01/00/{}/2025123118-2025123122-{}.avro", True),
        ("reports/kanon/2026/01/01/00/{}/2026010100-2026010105-{}.avro", False),
        ("reports/kanon/2026/01/01/00/{}/2025123110-2025123120-{}.avro", False),
        ("reports/kanon/2025/12/31/20/{1}.avro", True),  # of an earlier version
        ("reports/mine.avro", True),
    ],
)
def test_a_plan_skips_objects_by_their_names(name: str, holds: bool) -> None:
    hours = range(made.NOW // HOUR - 3, made.NOW // HOUR)
    mine, other = (name.format(bucket_of(origin), "0" * 64) for origin in (made.ORIGIN, "https://other.test"))
    assert bucket_of(made.ORIGIN) != bucket_of("https://other.test")
    assert may_hold(mine, made.ORIGIN, hours) is holds
    assert may_hold(mine, None, hours) is holds
    assert may_hold(other, made.ORIGIN, hours) is (holds and mine == other)


@pytest.mark.parametrize("year", ["0001", "0500", "0999", "1600"])
def test_hours_since_a_distant_year_skip_no_object(year: str) -> None:
    hours = range(int(datetime.fromisoformat(f"{year}-01-01T00:00:00Z").timestamp()) // HOUR, END_OF_TIME // HOUR)
    assert may_hold(f"reports/kanon/2026/01/01/00/2a/2025123121-2025123123-{'0' * 64}.avro", None, hours)


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
