"""Three jobs over a directory of reports, two of which have budget; ``python -m`` works them off and says so."""

import base64
import hashlib
import json
import sys
from contextlib import closing
from io import BytesIO
from pathlib import Path
from typing import Any

import kanon.disk
from kanon import clock
from kanon.reports import avro
from kanon.reports.clients.encrypt import ClientReport, contribution, encrypt
from kanon.reports.collecting import ReportMessage
from kanon.reports.payload import public_keys
from kanon.reports.shared_info import parse
from kanon.reports.storage import disk
from kanon.serving.directory import Given, open_directory
from kanon.serving.reporting import DirectoryReports, RequestedParameters, open_reporting
from tests.integration.serving.machine import START, TYPES
from tests.integration.serving.reported import BUCKETS, ORIGIN, VALUE, body
from tests.unit.reports import made

JOBS = ("first", "second", "third")
EPSILON = "5"
ASKED = RequestedParameters(ORIGIN, "12")
NOW = START + 20


def at(moment: float) -> None:
    """Let it be this time for ever."""
    clock.now = lambda: moment
    kanon.disk.SYNCHRONOUS = "OFF"  # no machine loses power here
    disk._etag = lambda state: str(state.st_size)  # a plan depends on the content alone, and so does the noise


def opened(path: Path) -> tuple[Any, DirectoryReports]:
    directory = open_directory(path, Given(3600, json.dumps(TYPES)), clock.now())
    try:
        reporting = open_reporting(directory, ASKED)
    except BaseException:
        directory.close()
        raise
    assert reporting is not None
    return directory, reporting


def begin(path: Path) -> None:
    """A deployment with a key, reports that have arrived, and jobs that nobody has begun."""
    directory, reporting = opened(path)
    with closing(directory), closing(reporting):
        reporting.worker(str).rotation.run(START)
        (key,) = reporting.epoch.ring.read().keys  # type: ignore[union-attr]
        document = json.dumps({"keys": [{"id": key.id, "key": key.public}]})
        for number in range(6):
            pairs = (contribution(BUCKETS[number % 2], VALUE),)
            report = encrypt(ClientReport(pairs, int(START - 3600) * 1000, ORIGIN, "kanon"), public_keys(document))
            reporting.file.arrive(message_of(report))
        (path / "summaries" / "domains").mkdir()
        avro.write_domain(path / "summaries" / "domains" / "keys.avro", made.keys16(*BUCKETS))
        for job in JOBS:
            secret = hashlib.sha256(job.encode()).digest()
            assert reporting.file.create(job, body(job, EPSILON), int(START), secret)


def message_of(report: avro.Report) -> str:
    return ReportMessage(
        api="kanon",
        scheduled_report_time=parse(report.shared_info).scheduled_report_time,
        shared_info=report.shared_info,
        payload=base64.b64encode(report.payload).decode(),
        key_id=report.key_id,
    ).text()


def work(path: Path) -> None:
    """One turn of the worker. An error of one job ends it here."""

    def failed(error: Exception) -> None:
        raise error

    directory, reporting = opened(path)
    with closing(directory), closing(reporting):
        worker = reporting.worker(str)
        worker.rotation.run(NOW)
        worker.store(NOW)
        worker.work_off(lambda: True, failed)
        worker.file.expire(NOW)


def outcome(path: Path) -> Any:
    """What the jobs have released, what they have taken, and what else is left of them."""
    directory, reporting = opened(path)
    with closing(directory), closing(reporting):
        rows = [reporting.file.read(job) for job in JOBS]
        taken = reporting.file.database.execute("SELECT job, hours, epsilon, delta FROM taken ORDER BY job").fetchall()
        return {
            "codes": [row.values.get("code") for row in rows if row is not None],
            "secrets": [row.secret for row in rows if row is not None],
            "open": reporting.file.unfinished(),
            "taken": taken,
            "reports": len(reporting.file.arrived(99)),
            "objects": sorted(file.name for file in (path / "reports").rglob("*.avro")),
            "work": [file.name for file in (path / "work").rglob("*")],
            "summaries": {file.name: file.read_bytes() for file in (path / "summaries" / "output").rglob("*")},
        }


def check(found: Any) -> None:
    """Two of the jobs have budget: their summaries are there, and what they took."""
    assert found["codes"] == ["SUCCESS", "SUCCESS", "PRIVACY_BUDGET_EXHAUSTED"]
    assert found["taken"] == [(job, "[7]", 5000, 0) for job in JOBS[:2]]
    assert found["secrets"] == [None] * 3
    assert (found["open"], found["reports"], found["work"]) == ([], 0, [])
    names = {name for name in found["summaries"] if name.endswith(".avro")}
    assert names == {f"{job}-1-of-1.avro" for job in JOBS[:2]}
    for name in names:
        facts = list(avro.read_summary(BytesIO(found["summaries"][name])))
        assert len(facts) == len(BUCKETS)


if __name__ == "__main__":
    at(NOW)
    work(Path(sys.argv[1]))
    print("done")
