"""Bodies and queries of every form: collect and jobs answer each of them, and none with a 500."""

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from kanon.reports.collecting import REPORTS, debug_path
from kanon.reports.service.job_routes import FIELDS
from tests.integration.gate.tables import Running
from tests.integration.reports.aggregation import body as job_body
from tests.integration.reports.front import Front, front
from tests.integration.reports.test_collect import ATTRIBUTION, body
from tests.unit.reports import made

LONE = "\ud800"
TEXTS = st.text(max_size=20) | st.sampled_from([LONE, "\ufffe", "9" * 400, "1e400", "-0", "NaN", "2026-02-30", "\x00"])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXTS,
    lambda value: st.lists(value, max_size=3) | st.dictionaries(TEXTS, value, max_size=3),
    max_leaves=6,
)
FEW = settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
ANSWERS = {200, 202, 400, 404, 409, 413, 415}


@pytest.fixture(scope="module")
def service(engine: Running) -> Front:
    return front(engine)


def changed(value: Any, place: list[int], new: Any) -> Any:
    """A value with another one at a place in it: the number of a field, of a field of that field, and so on."""
    if not place or not isinstance(value, dict | list) or not value:
        return new
    names = list(value) if isinstance(value, dict) else list(range(len(value)))
    name = names[place[0] % len(names)]
    copy: Any = value.copy()
    copy[name] = changed(value[name], place[1:], new)
    return copy


PLACES = st.lists(st.integers(0, 20), max_size=4)


def sent(service: Front, function: str, path: str, value: Any) -> None:
    result = service.send(function, "POST", path, json.dumps(value))
    assert result.status in ANSWERS, result.body
    json.loads(result.body)
    assert "unexpected error" not in service.output.getvalue()


def test_the_collector_answers_every_body(service: Front) -> None:
    stored = []

    @FEW
    @given(
        path=st.sampled_from([*REPORTS, *map(debug_path, REPORTS)]),
        value=st.just(body()),
        place=PLACES,
        new=VALUES,
    )
    @example(path=ATTRIBUTION, value=body(), place=[0], new=made.info().text())  # unchanged
    @example(path=ATTRIBUTION, value=body(), place=[0], new=made.info(reporting_origin=LONE).text())
    @example(path=ATTRIBUTION, value=body(), place=[0], new=json.dumps({"api": LONE}))
    def check(path: str, value: Any, place: list[int], new: Any) -> None:
        sent(service, "collect", path, changed(value, place, new))
        for message in service.queued():
            assert service.store([message]) == []
            stored.append(json.loads(message["body"])["kind"])

    check()
    assert set(stored) == {"report"}


def test_jobs_answers_every_body(service: Front) -> None:
    created = []

    @FEW
    @given(
        path=st.sampled_from(["/v1alpha/createJob", "/v1/jobs:preflight", "/v1/jobs:publish"]), place=PLACES, new=VALUES
    )
    @example(path="/v1alpha/createJob", place=[0], new="an unchanged job")
    @example(path="/v1alpha/createJob", place=[5, 1], new=LONE)
    @example(path="/v1alpha/createJob", place=[5, 0], new=LONE)
    def check(path: str, place: list[int], new: Any) -> None:
        request = job_body(f"job {next(_numbers)}") | {
            "input_data_bucket_name": service.reports_bucket,
            "output_data_bucket_name": service.summaries_bucket,
        }
        request["job_parameters"] |= {"output_domain_bucket_name": service.summaries_bucket}
        sent(service, "jobs", path, changed(request, place, new))
        for message in service.queued("stages"):
            job = json.loads(message["body"])["job"]
            told = service.send("jobs", "GET", f"/v1alpha/getJob?job_request_id={job}")
            assert told.status == 200, told.body
            assert told.json()["job_request_id"] == job
            created.append(job)

    check()
    assert created


@FEW
@given(
    query=st.dictionaries(
        st.sampled_from(
            [*FIELDS, "filtering_id", "day", "other"],
        ),
        TEXTS | st.sampled_from(["kanon", "attribution-reporting", "1.0", made.ORIGIN, "2025-12-31", "9999-12-31"]),
    )
)
def test_the_budget_answers_every_query(service: Front, query: dict[str, str]) -> None:
    given = {
        "version": "2.0",
        "rawPath": "/v1/budget",
        "rawQueryString": "x",
        "headers": {},
        "requestContext": {"http": {"method": "GET", "path": "/v1/budget"}, "stage": "$default"},
        "queryStringParameters": query,
        "isBase64Encoded": False,
    }
    result = service.invoke("jobs", given)
    assert result["statusCode"] in ANSWERS, result["body"]


_numbers = iter(range(10**9))
