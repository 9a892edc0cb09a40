"""Mode kanon of reports on AWS, from joins and reports to a summary with exactly the released keys."""

import json
from collections.abc import Callable
from hashlib import sha256
from typing import Any

import pytest

from kanon.client.values import bucket_of
from kanon.local import Stack
from kanon.reports.clients.encrypt import PATHS, ClientReport, body_of, contribution, encrypt
from tests.e2e.gate.test_listing import TYPES, join
from tests.e2e.reports.test_drills import ORIGIN, START, Service
from tests.monitor.monitor import Monitor
from tests.moto_engine import ENGINES
from tests.table_ids import give_ids

BOTH = {"Reports": "ON", "Types": json.dumps(TYPES)}
SHARED, ALSO, RARE, LATER = "a shared term", "another shared term", "a rare term", "a later term"
HOUR = 3600
GIVEN = {"mode": "kanon", "type": "terms"}


@pytest.fixture(params=["moto", "ministack"])
def service(
    request: pytest.FixtureRequest, new_stack: Callable[..., Stack], monkeypatch: pytest.MonkeyPatch
) -> Service:
    give_ids(monkeypatch)
    return Service(new_stack(BOTH, start=START, engine=ENGINES[request.param]))


def report(service: Service, value: str, count: int) -> None:
    """Reports of clients, each with the whole budget for one value."""
    for _ in range(count):
        pairs = (contribution(bucket_of(value), 65_536),)
        made = ClientReport(pairs, int(service.stack.clock.now() - HOUR) * 1000, ORIGIN, "kanon")
        answer = service.stack.request("POST", PATHS["kanon"], body_of(encrypt(made, service.keys)))
        assert answer.status == 200
    service.stack.advance(120)


def asked(service: Service, job: str, call: str = "/v1alpha/createJob", **domain: Any) -> tuple[int, Any]:
    body = {
        "job_request_id": job,
        "input_data_bucket_name": service.reports,
        "input_data_blob_prefix": "reports/",
        "output_data_bucket_name": service.summaries,
        "output_data_blob_prefix": f"output/{job}.avro",
        "job_parameters": {"attribution_report_to": ORIGIN, "debug_privacy_epsilon": "10"},
        "output_domain": GIVEN | domain,
    }
    answer = service.stack.request("POST", call, body)
    return answer.status, answer.json()


def keys(service: Service, job: str) -> list[int]:
    assert service.code(job) == "SUCCESS"
    return service.summary(f"output/{job}-1-of-1.avro")


def test_a_summary_has_exactly_the_released_keys(service: Service) -> None:
    stack = service.stack
    join(stack, [SHARED, ALSO], 60)
    join(stack, [RARE], 1)
    stack.advance(3 * HOUR)
    report(service, SHARED, 3)
    report(service, RARE, 3)
    assert asked(service, "first", "/v1/jobs:preflight")[0] == 200
    assert asked(service, "first") == (202, {})
    privacy = json.loads(stack.request("GET", "/v1alpha/getJob?job_request_id=first").body)["privacy"]
    stack.advance(600)
    assert keys(service, "first") == sorted([bucket_of(SHARED), bucket_of(ALSO)])
    assert bucket_of(SHARED) == int.from_bytes(sha256(SHARED.encode()).digest()[:16], "big")
    newest = stack.request("GET", "/v1/types/terms/ranges").json()
    found = privacy["released_keys"]
    assert (found["type"], found["keys"], found["step"]) == ("terms", 2, newest["step"])

    join(stack, [LATER], 60)
    stack.advance(2 * HOUR)
    assert asked(service, "first")[0] == 409
    assert asked(service, "second") == (202, {})
    stack.advance(600)
    assert keys(service, "second") == sorted(map(bucket_of, (SHARED, ALSO, LATER)))
    assert not stack.failures

    bucket = stack.functions["aggregate"].environment["KANON_LIST_BUCKET"]
    calls = [call for call in Monitor.of(stack).calls if call.function in ("jobs", "aggregate")]
    assert {(c.function, c.action, c.key) for c in calls if c.key.startswith("list")} == {
        ("jobs", "dynamodb:GetItem", "list#terms")
    }
    assert {(c.function, c.action, "/current/terms/" in c.resource) for c in calls if f":{bucket}" in c.resource} == {
        ("aggregate", "s3:GetObject", True)
    }
