"""The routes of reports as the template gives them: a whole stack in this process, with roles and output monitored."""

import base64
import json
from collections.abc import Iterator
from dataclasses import replace
from io import BytesIO
from typing import Any

import pytest

from infra import openapi
from kanon.local import Stack
from kanon.reports.avro import read_reports
from kanon.reports.collecting import REPORTS, debug_path
from kanon.reports.shared_info import DAY
from kanon.reports.storage.key_ring import Key, KeyRing, StoredRing
from tests.integration.reports.aggregation import body as job_body
from tests.integration.reports.test_collect import ATTRIBUTION, body, other_api
from tests.unit.reports import made

JSON = {"content-type": "application/json"}


@pytest.fixture(scope="module")
def reporting() -> Iterator[Stack]:
    with Stack({"Reports": "ON"}, start=made.NOW) as stack:
        publish(stack)
        yield stack


def publish(stack: Stack, now: int = made.NOW) -> None:
    """Put the key of the tests into the ring, as if ``rotate`` had issued it a day ago."""
    ring = KeyRing(stack.session.client("dynamodb"), stack.functions["collect"].environment["KANON_CONTROL_TABLE"])
    seen = ring.read()
    public = base64.b64encode(made.KEY.public_key().public_bytes_raw()).decode()
    key = Key.made(made.KEY_ID, public, now - DAY)
    stack.session.client("dynamodb").transact_write_items(
        TransactItems=[ring.changing(seen, replace(seen or StoredRing("the first", "table"), keys=(key,)))]
    )


def post(stack: Stack, path: str, value: Any) -> int:
    return stack.request("POST", path, json.dumps(value), JSON).status


def bucket(stack: Stack, function: str, name: str) -> str:
    return stack.functions[function].environment[name]


def objects(stack: Stack) -> dict[str, bytes]:
    """What stands in the bucket of reports."""
    s3, name = stack.session.client("s3"), bucket(stack, "store", "KANON_REPORTS_BUCKET")
    keys = [item["Key"] for item in s3.list_objects_v2(Bucket=name).get("Contents", [])]
    return {key: s3.get_object(Bucket=name, Key=key)["Body"].read() for key in keys}


def test_reports_of_every_path_are_stored_within_a_minute(reporting: Stack) -> None:
    reporting.advance(61)
    before = objects(reporting).keys()
    for number, (path, api) in enumerate(REPORTS.items()):
        sent = body(number=number) if api == "attribution-reporting" else other_api(api, number)
        assert post(reporting, path, sent) == 200
        assert post(reporting, debug_path(path), sent) == 200
        assert post(reporting, path, {**sent, "shared_info": "{}"}) == 400
    reporting.advance(61)
    found = {name: text for name, text in objects(reporting).items() if name not in before}
    assert len(found) == len(REPORTS)
    reports = [one for text in found.values() for one in read_reports(BytesIO(text))]
    ids = {json.loads(report.shared_info)["report_id"] for report in reports}
    assert ids == {made.report_id(number) for number in range(len(REPORTS))}


def test_a_body_of_another_content_type_is_read(reporting: Stack) -> None:
    answer = reporting.request(
        "POST", ATTRIBUTION, json.dumps(body()).encode(), {"content-type": "application/ld+json"}
    )
    assert (answer.status, answer.body) == (200, b"{}")


def test_keys_and_descriptions_are_public(reporting: Stack) -> None:
    assert reporting.request("GET", "/.well-known/aggregation-service/v1/public-keys").status in (200, 503)
    assert reporting.request("GET", "/openapi.json").json() == openapi.description(openapi.WITH_REPORTS)


@pytest.mark.parametrize("stage", ["", "/stage"])
def test_a_job_is_created_and_reported(reporting: Stack, stage: str) -> None:
    request = job_body(f"http{stage.replace('/', '-')}") | {
        "input_data_bucket_name": bucket(reporting, "jobs", "KANON_REPORTS_BUCKET"),
        "output_data_bucket_name": bucket(reporting, "jobs", "KANON_SUMMARIES_BUCKET"),
    }
    request["job_parameters"]["output_domain_bucket_name"] = request["output_data_bucket_name"]
    answer = reporting.request("POST", f"{stage}/v1alpha/createJob", request)
    assert (answer.status, answer.body) == (202, b"{}")
    assert reporting.request("POST", f"{stage}/v1alpha/createJob", request).status == 409
    told = reporting.request("GET", f"{stage}/v1alpha/getJob?job_request_id={request['job_request_id']}")
    assert (told.status, told.json()["job_request_id"]) == (200, request["job_request_id"])
    assert reporting.request("GET", f"{stage}/v1alpha/getJob?job_request_id=none").status == 404
    publish = {"job_request_id": request["job_request_id"]}
    assert reporting.request("POST", "/v1/jobs:publish", publish).status == 409


def test_preflight_and_budget_are_answered(reporting: Stack) -> None:
    s3 = reporting.session.client("s3")
    reports = bucket(reporting, "jobs", "KANON_REPORTS_BUCKET")
    summaries = bucket(reporting, "jobs", "KANON_SUMMARIES_BUCKET")
    assert post(reporting, ATTRIBUTION, body(number=77)) == 200
    reporting.advance(61)
    assert s3.list_objects_v2(Bucket=reports)["KeyCount"]
    request = job_body("preflight", input_data_blob_prefix="reports/attribution-reporting/") | {
        "input_data_bucket_name": reports,
        "output_data_bucket_name": summaries,
    }
    request["job_parameters"]["output_domain_bucket_name"] = summaries
    answer = reporting.request("POST", "/v1/jobs:preflight", request)
    assert answer.status == 200, answer.body
    assert answer.json()["accepted"] >= 1
    query = (
        "api=attribution-reporting&version=1.0&reporting_origin=https%3A%2F%2Freport.test"
        "&attribution_destination=https%3A%2F%2Fshop.test&day=2025-12-31"
    )
    told = reporting.request("GET", f"/v1/budget?{query}")
    assert told.status == 200, told.body
    assert [hour["epsilon_left"] for hour in told.json()["hours"]] == ["64"] * 24


def test_no_clear_text_is_in_a_message_an_object_or_a_log(reporting: Stack) -> None:
    sent = body(number=99)
    clear = sent["aggregation_service_payloads"][0]["debug_cleartext_payload"]
    assert post(reporting, ATTRIBUTION, sent) == 200
    reporting.advance(61)
    everything = "".join(map(str, objects(reporting).values())) + reporting.logs.getvalue()  # type: ignore[attr-defined]
    assert clear[:20] not in everything
    assert base64.b64decode(clear).decode() not in everything
