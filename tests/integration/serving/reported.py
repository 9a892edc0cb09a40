"""A service with reports: clients that encrypt to its keys, and jobs over HTTP."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from uuid import UUID

from kanon.reports.avro import Report, read_summary, write_domain
from kanon.reports.clients.encrypt import PATHS, ClientReport, body_of, contribution, encrypt
from kanon.reports.collecting import PUBLIC_KEYS
from kanon.reports.payload import public_keys
from kanon.reports.storage.report_jobs import JobRow
from kanon.serving.reporting import DirectoryReports, RequestedParameters
from tests.integration.serving.machine import KEYS, START, Machine, machine
from tests.unit.reports import made

ORIGIN, OTHER = "https://report.test", "https://other.test"
ON = RequestedParameters(f"{ORIGIN},{OTHER}", "12")
BUCKETS = (1, 2, 3)
VALUE = 1000


@contextmanager
def reporting(path: Path, asked: RequestedParameters = ON) -> Iterator[Machine]:
    """A service whose first key is served."""
    with machine(path, KEYS, asked=asked) as served:
        served.now = START
        turn(served)
        served.now += 11
        yield served


def turn(served: Machine) -> None:
    assert served.service.reports is not None
    served.service.reports.turn(served.now)


def reports_of(served: Machine) -> DirectoryReports:
    assert served.reporting is not None
    return served.reporting


def row_of(served: Machine, job: str) -> JobRow:
    row = reports_of(served).file.read(job)
    assert row is not None
    return row


def sealed(served: Machine, number: int, origin: str = ORIGIN) -> Report:
    """A report with a value for each of two buckets."""
    answer = served.request("GET", PUBLIC_KEYS, key=False)
    assert answer.status == 200, answer.body
    pairs = tuple(contribution(BUCKETS[(number + n) % 2], VALUE) for n in range(2))
    report = ClientReport(pairs, int(served.now - 3600) * 1000, origin, "kanon")
    return encrypt(report, public_keys(answer.body.decode()), new_id=lambda: UUID(made.report_id(number)))


def post(served: Machine, report: Report) -> int:
    return served.request("POST", PATHS["kanon"], body_of(report), key=False).status


def collect(served: Machine, numbers: Sequence[int], origin: str = ORIGIN) -> None:
    for number in numbers:
        assert post(served, sealed(served, number, origin)) == 200


def declare(served: Machine) -> None:
    """Put the keys of jobs where an operator puts them."""
    folder = served.directory.path / "summaries" / "domains"
    folder.mkdir(parents=True, exist_ok=True)
    write_domain(folder / "keys.avro", made.keys16(*BUCKETS))


def body(job: str, epsilon: str = "10", **changes: Any) -> dict[str, Any]:
    return {
        "job_request_id": job,
        "input_data_bucket_name": "reports",
        "input_data_blob_prefix": "reports/",
        "output_data_bucket_name": "summaries",
        "output_data_blob_prefix": f"output/{job}.avro",
        "job_parameters": {
            "attribution_report_to": ORIGIN,
            "output_domain_bucket_name": "summaries",
            "output_domain_blob_prefix": "domains/",
            "debug_privacy_epsilon": epsilon,
            **changes,
        },
    }


def create(served: Machine, job: str, epsilon: str = "10", **changes: Any) -> None:
    answer = served.request("POST", "/v1alpha/createJob", body(job, epsilon, **changes))
    assert (answer.status, answer.body) == (202, b"{}"), answer.body


def told(served: Machine, job: str) -> Any:
    answer = served.request("GET", f"/v1alpha/getJob?job_request_id={job}")
    assert answer.status == 200, answer.body
    return json.loads(answer.body)


def code(served: Machine, job: str) -> str:
    answer = told(served, job)
    assert answer["job_status"] == "FINISHED", answer
    return str(answer["result_info"]["return_code"])


def summary(path: Path, job: str) -> dict[int, int]:
    content = (path / "summaries" / "output" / f"{job}-1-of-1.avro").read_bytes()
    return {int.from_bytes(fact.bucket, "big"): fact.metric for fact in read_summary(BytesIO(content))}


def left(served: Machine, origin: str = ORIGIN) -> str:
    """The epsilon left in the hour of the reports."""
    query = {"api": "kanon", "version": "1.0", "reporting_origin": origin, "day": "2027-01-15"}
    answer = served.request("GET", f"/v1/budget?{urlencode(query)}")
    assert answer.status == 200, answer.body
    return str(json.loads(answer.body)["hours"][(int(START) - 3600) % 86_400 // 3600]["epsilon_left"])
