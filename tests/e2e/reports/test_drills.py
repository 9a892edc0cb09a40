"""The drills of reports in docs/guides/operate.md: each breaks something on a local stack, and the runbook repairs
it."""

import json
import re
from base64 import b64encode
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from io import BytesIO
from itertools import count
from typing import Any

import pytest

from kanon.dynamo.tables import table_ids
from kanon.findings import Section
from kanon.local import Stack
from kanon.reports.avro import Report as Encrypted
from kanon.reports.avro import read_summary, write_domain
from kanon.reports.clients.encrypt import SECOND, ClientReport, contribution, encrypt
from kanon.reports.payload import EncryptionKey, public_keys
from kanon.reports.storage.key_ring import OPENS
from tests.e2e.gate.backups import RUNBOOK
from tests.integration.gate.doctor_view import doctor, operate, wrong
from tests.table_ids import give_ids
from tests.unit.reports import made

START = 1_767_225_600
HOUR, DAY = 3600, 86_400
ORIGIN, KEYS = "https://report.test", (1, 2, 3)
TAKES = "/.well-known/attribution-reporting/report-aggregate-attribution"
PUBLIC = "/.well-known/aggregation-service/v1/public-keys"


@dataclass
class Service:
    """A stack with reports, its clients, and an operator of jobs."""

    stack: Stack
    numbers: Iterator[int] = field(default_factory=count)

    def __post_init__(self) -> None:
        environment = self.stack.functions["aggregate"].environment
        self.reports, self.summaries = (environment[f"KANON_{name}_BUCKET"] for name in ("REPORTS", "SUMMARIES"))
        self.s3 = self.stack.session.client("s3")
        file = BytesIO()
        write_domain(file, made.keys16(*KEYS))
        self.s3.put_object(Bucket=self.summaries, Key="domains/all.avro", Body=file.getvalue())
        self.stack.advance(300)

    @property
    def keys(self) -> list[EncryptionKey]:
        return public_keys(self.stack.request("GET", PUBLIC).body.decode())

    def encrypted(self, keys: list[EncryptionKey] | None = None, destination: str = "https://shop.test") -> Encrypted:
        report = ClientReport(
            (contribution(1, 65_536),), int(self.stack.clock.now()) * SECOND, ORIGIN, "attribution-reporting",
            destination,
        )  # fmt: skip
        return encrypt(report, keys or self.keys)

    def send(self, reports: list[Encrypted]) -> None:
        """Post reports, and wait until they are stored."""
        for report in reports:
            body = {
                "shared_info": report.shared_info,
                "aggregation_service_payloads": [
                    {"payload": b64encode(report.payload).decode(), "key_id": report.key_id}
                ],
            }
            assert self.stack.request("POST", TAKES, body).status == 200
        self.stack.advance(120)

    def create(self, epsilon: str = "4") -> str:
        """Create a job over all reports."""
        job = f"job-{next(self.numbers)}"
        body = {
            "job_request_id": job,
            "input_data_bucket_name": self.reports, "input_data_blob_prefix": "reports/",
            "output_data_bucket_name": self.summaries, "output_data_blob_prefix": f"output/{job}.avro",
            "job_parameters": {
                "attribution_report_to": ORIGIN, "debug_privacy_epsilon": epsilon,
                "output_domain_bucket_name": self.summaries, "output_domain_blob_prefix": "domains/",
            },
        }  # fmt: skip
        assert self.stack.request("POST", "/v1alpha/createJob", body).status == 202
        return job

    def told(self, job: str) -> dict[str, Any]:
        answer = json.loads(self.stack.request("GET", f"/v1alpha/getJob?job_request_id={job}").body)
        return answer.get("result_info", {"return_code": answer["job_status"]})  # type: ignore[no-any-return]

    def code(self, job: str) -> str:
        return str(self.told(job)["return_code"])

    def summary(self, name: str) -> list[int]:
        body = self.s3.get_object(Bucket=self.summaries, Key=name)["Body"].read()
        return [int.from_bytes(fact.bucket, "big") for fact in read_summary(BytesIO(body))]

    def spent(self) -> list[str]:
        """Epsilon left in the hours that jobs took from."""
        query = (
            "/v1/budget?api=attribution-reporting&version=1.0&reporting_origin=https://report.test"
            "&attribution_destination=https://shop.test&day=2026-01-01"
        )
        hours = json.loads(self.stack.request("GET", query).body)["hours"]
        return [hour["epsilon_left"] for hour in hours if hour["epsilon_left"] != "64"]

    def sections(self) -> set[Section | None]:
        """The sections of the runbook that the doctor names."""
        return {section for _, section in wrong(self.stack).values()}  # type: ignore[misc]


@pytest.fixture
def service(new_stack: Callable[..., Stack], monkeypatch: pytest.MonkeyPatch) -> Service:
    give_ids(monkeypatch)
    made_ = Service(new_stack({"Reports": "ON"}, start=START))
    made_.send([made_.encrypted() for _ in range(3)])
    return made_


def test_a_lost_message(service: Service) -> None:
    job = service.create()
    url = service.stack.describe()["queues"]["Stages"]
    service.stack.session.client("sqs").purge_queue(QueueUrl=url)
    service.stack.run_queues()
    assert service.code(job) == "RECEIVED"
    service.stack.advance(600)
    assert service.code(job) == "SUCCESS"
    assert service.sections() == set()


def test_a_stuck_job(service: Service) -> None:
    first = service.create()
    service.stack.advance(60)
    assert service.code(first) == "SUCCESS"
    deploy(service.stack, "decrypt", KANON_EPSILON_CAP="32")
    job = service.create()
    for _ in range(9):
        service.stack.clock.set(service.stack.clock.now() + 1.5 * HOUR)  # then the message comes again
        service.stack.run_queues()
    assert service.code(job) == "IN_PROGRESS"
    assert service.sections() >= {Section.STUCK_JOBS, Section.REPORT_DEAD_LETTERS, Section.REPORT_FUNCTION_ERRORS}
    output = doctor(service.stack)[1]
    assert job in output
    assert re.search(r"schedule of aggregate +│ OK +│ enabled", output)
    assert re.search(r"schedule of rotate +│ OK +│ enabled", output)
    deploy(service.stack, "decrypt", KANON_EPSILON_CAP="64")
    service.stack.advance(600)
    assert service.code(job) == "SUCCESS"
    assert Section.STUCK_JOBS not in service.sections()


def test_a_failed_publication(service: Service) -> None:
    job = service.create()
    taken = f"output/{job}-1-of-1.avro"
    service.s3.put_object(Bucket=service.summaries, Key=taken, Body=b"of somebody else")
    service.stack.advance(60)
    assert service.code(job) == "RESULT_WRITE_ERROR"
    assert service.sections() == {Section.PUBLICATION_FAILED}
    before = service.spent()
    again = {"job_request_id": job, "output_data_blob_prefix": "output/again.avro"}
    assert service.stack.request("POST", "/v1/jobs:publish", again).status == 202
    service.stack.advance(60)
    assert service.code(job) == "SUCCESS"
    assert service.summary("output/again-1-of-1.avro") == list(KEYS)
    assert service.spent() == before == ["60"]
    assert service.s3.get_object(Bucket=service.summaries, Key=taken)["Body"].read() == b"of somebody else"
    assert service.sections() == set()


def test_a_replaced_budget_table(service: Service) -> None:
    first = service.create("60")
    service.stack.advance(60)
    assert service.code(first) == "SUCCESS"
    old = service.encrypted()
    replace(service.stack, "KANON_BUDGETS_TABLE")
    service.stack.advance(600)
    assert service.stack.request("GET", PUBLIC).status == 503
    assert Section.BUDGET_TABLE_REPLACED in service.sections()
    refused = service.create("60")  # the new table would admit it
    service.stack.advance(60)
    assert service.code(refused) == "PRIVACY_BUDGET_ERROR"
    code, output = operate(service.stack, "new-report-keys", answer="y\n")
    assert (code, "The table of budgets is not the one" in output) == (0, True), output
    service.stack.advance(600)
    assert service.sections() == set()
    again = service.create("60")
    service.stack.advance(60)
    assert service.code(again) == "REPORTS_WITH_ERRORS_EXCEEDED_THRESHOLD"
    assert "DECRYPTION_KEY_NOT_FOUND 3" in service.told(again)["return_message"]
    assert old.key_id not in {key.id for key in service.keys}
    service.send([service.encrypted() for _ in range(30)])  # few of all are in error
    last = service.create()
    service.stack.advance(60)
    assert service.code(last) == "SUCCESS_WITH_ERRORS"


def test_a_replaced_job_table(service: Service) -> None:
    replace(service.stack, "KANON_REPORT_JOBS_TABLE")
    service.stack.advance(600)
    assert service.sections() == {Section.JOB_TABLE_LOST}
    refused = service.create()
    code, output = operate(service.stack, "accept-report-jobs", answer="y\n")
    assert (code, "1 jobs of the replaced table have not ended" in output) == (2, True), output
    service.stack.advance(60)
    assert service.code(refused) == "PRIVACY_BUDGET_ERROR"
    assert service.spent() == []
    code, output = operate(service.stack, "accept-report-jobs", answer="y\n")
    assert code == 0, output
    again = service.create()
    service.stack.advance(60)
    assert service.code(again) == "SUCCESS"
    assert service.sections() == set()


def test_an_expired_key(service: Service) -> None:
    keys = service.keys
    secrets = service.stack.session.client("secretsmanager")
    prefix = service.stack.functions["rotate"].environment["KANON_REPORT_KEY_PREFIX"]
    service.stack.clock.set(service.stack.clock.now() + OPENS + 2 * DAY)
    service.stack.tick()
    service.s3.delete_objects(Bucket=service.reports, Delete={"Objects": [{"Key": key} for key in stored(service)]})
    service.stack.advance(60)  # clients see a new key some seconds after it is made
    assert not {key.id for key in keys} & {key.id for key in service.keys}
    names = {entry["Name"] for entry in secrets.list_secrets()["SecretList"]}
    assert not any(f"{prefix}{key.id}" in names for key in keys)
    service.send([service.encrypted(keys)])  # a client that kept its keys for too long
    job = service.create()
    service.stack.advance(60)
    assert service.code(job) == "REPORTS_WITH_ERRORS_EXCEEDED_THRESHOLD"
    assert "DECRYPTION_KEY_NOT_FOUND 1" in service.told(job)["return_message"]
    assert service.told(job)["return_message"].endswith("Nothing was spent.")


def deploy(stack: Stack, function: str, **variables: str) -> None:
    """Give a function other variables, as a deployment does."""
    stack.functions[function].environment.update(variables)  # type: ignore[attr-defined]
    stack.restart(function)


def stored(service: Service) -> list[str]:
    listed = service.s3.list_objects_v2(Bucket=service.reports)
    return [item["Key"] for item in listed.get("Contents", ())]


def replace(stack: Stack, table: str) -> None:
    """Delete a table and create an empty one of the same name, as a restore or a mistake does."""
    client, name = stack.session.client("dynamodb"), stack.functions["aggregate"].environment[table]
    old = client.describe_table(TableName=name)["Table"]
    ids = table_ids(client, {table: name})
    client.delete_table(TableName=name)
    client.create_table(
        TableName=name, KeySchema=old["KeySchema"], AttributeDefinitions=old["AttributeDefinitions"],
        BillingMode="PAY_PER_REQUEST",
    )  # fmt: skip
    assert table_ids(client, {table: name}) != ids


def test_every_drill_is_executed() -> None:
    (text,) = re.findall(r"^### Drills of reports\n(.*?)(?=^##)", RUNBOOK, re.MULTILINE | re.DOTALL)
    drills = [title.lower().replace(" ", "_") for title in re.findall(r"^\| \*\*(.+?)\*\* \|", text, re.MULTILINE)]
    here = [name.removeprefix("test_") for name in globals() if name.startswith("test_")]
    assert drills == here[:-1]
