"""The real template with reports on the local stack: from a report over HTTP to the object of its summary."""

from collections.abc import Callable
from io import BytesIO
from typing import Any

import pytest

from kanon.local import Stack
from kanon.reports.avro import read_summary, write_domain
from kanon.reports.clients.encrypt import SECOND, ClientReport, contribution, encrypt, outgoing
from kanon.reports.collecting import PUBLIC_KEYS
from kanon.reports.payload import public_keys
from tests.moto_engine import ENGINES
from tests.unit.reports.made import keys16

START = 1_700_000_000.0
ORIGIN = "https://reporter-of-the-test.test"
JOB = "job-of-the-test"


def send_report(stack: Stack, key: int, value: int) -> None:
    keys = public_keys(stack.request("GET", PUBLIC_KEYS).body.decode())
    report = ClientReport((contribution(key, value),), int(stack.clock.now()) * SECOND, ORIGIN, "kanon")
    sent = outgoing(report, encrypt(report, keys))
    answer = stack.request("POST", sent.path, sent.body, {"content-type": "application/json"})
    assert (answer.status, answer.body) == (200, b"{}")


def create_job(stack: Stack) -> None:
    buckets = stack.storage.buckets
    domain = BytesIO()
    write_domain(domain, keys16(1, 2, 3))
    stack.session.client("s3").put_object(
        Bucket=buckets["SummariesBucket"], Key="domains/keys.avro", Body=domain.getvalue()
    )
    request = {
        "job_request_id": JOB,
        "input_data_bucket_name": buckets["ReportsBucket"],
        "input_data_blob_prefix": "reports/kanon/",
        "output_data_bucket_name": buckets["SummariesBucket"],
        "output_data_blob_prefix": "output/summary.avro",
        "job_parameters": {
            "attribution_report_to": ORIGIN,
            "output_domain_bucket_name": buckets["SummariesBucket"],
            "output_domain_blob_prefix": "domains/",
            "debug_privacy_epsilon": "60",
        },
    }
    answer = stack.request("POST", "/v1alpha/createJob", request)
    assert (answer.status, answer.body) == (202, b"{}")


def job(stack: Stack) -> Any:
    answer = stack.request("GET", f"/v1alpha/getJob?job_request_id={JOB}")
    assert answer.status == 200, answer.body
    return answer.json()


@pytest.mark.parametrize("engine", ["moto", "ministack"])
def test_reports_become_a_summary_through_every_function(engine: str) -> None:
    with Stack({"Reports": "ON"}, engine=ENGINES[engine], start=START) as stack:
        assert stack.request("GET", PUBLIC_KEYS).status == 503
        stack.advance(5 * 60)
        for _ in range(10):
            send_report(stack, 1, 60_000)
        stack.advance(60)
        create_job(stack)
        assert job(stack)["job_status"] == "RECEIVED"
        stack.run_queues()
        told = job(stack)
        assert told["job_status"] == "FINISHED", told
        assert told["result_info"]["return_code"] == "SUCCESS", told
        found = stack.session.client("s3").list_objects_v2(
            Bucket=stack.storage.buckets["SummariesBucket"], Prefix="output/"
        )
        (name,) = [item["Key"] for item in found["Contents"] if item["Key"].endswith(".avro")]
        body = stack.session.client("s3").get_object(Bucket=stack.storage.buckets["SummariesBucket"], Key=name)["Body"]
        facts = {int.from_bytes(fact.bucket, "big"): fact.metric for fact in read_summary(BytesIO(body.read()))}
        assert facts.keys() == {1, 2, 3}
        assert abs(facts[1] - 600_000) < 65_536 > abs(facts[2])
        assert stack.failures == []


def test_private_keys_of_reports_are_encrypted_with_the_key_of_the_stack(new_stack: Callable[..., Stack]) -> None:
    stack = new_stack({"Reports": "ON"})
    stack.tick()
    key = stack.template.resolve({"Fn::GetAtt": ["Key", "Arn"]})
    secrets = stack.session.client("secretsmanager").list_secrets()["SecretList"]
    assert {one.get("KmsKeyId") for one in secrets if "/report-keys/" in one["Name"]} == {key}
