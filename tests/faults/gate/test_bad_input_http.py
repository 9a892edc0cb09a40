"""The whole interface against valid and invalid inputs generated from its own description.

Every check of schemathesis judges every answer: of a stack with reports, and of the service on one machine, which also
checks who calls. `FUZZ_EXAMPLES` says how many examples each call gets in each mode; `make fuzz` asks for thousands.
"""

import io
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
import schemathesis
import urllib3
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from requests.adapters import BaseAdapter, HTTPAdapter
from schemathesis.config import SchemathesisConfig
from schemathesis.specs.openapi.checks import negative_data_rejection, positive_data_acceptance

from infra.openapi import GATE, WHOLE, Document, description
from kanon.gate.models import MOST_CLIENT_BYTES
from kanon.local import Stack, gateway
from kanon.reports.collecting import REPORTS
from tests.integration.reports.aggregation import body as job_body
from tests.integration.reports.test_collect import body as attribution_report
from tests.integration.reports.test_collect import other_api
from tests.integration.reports.test_over_http import publish
from tests.integration.serving.machine import Machine, machine
from tests.unit.reports import made

EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "10"))
URL = "http://kanon.test"
TYPES = json.dumps({"fledge": {"k": 50, "window": 720, "profile": "published"}})
# A body that is too large is refused before it is read.
CONFIG = SchemathesisConfig.from_dict(
    {"checks": {"negative_data_rejection": {"expected-statuses": [400, 401, 404, 413, 415]}}}
)
FIRST = {"job_request_id": "the first"}
MOST_HASHES = {"query": 100, "validateHashes": 100, "batchQuery": 1000}


def operations(document: Document, *, checked: bool) -> dict[str, Any]:
    """The calls of a description by name. Without ``checked`` nobody checks who calls, as in the local stack."""
    described = description(document)
    for methods in described["paths"].values():
        for operation in methods.values():
            if not checked:
                operation.pop("security", None)
    found = schemathesis.openapi.from_dict(described, config=CONFIG).get_all_operations()
    return {operation.definition.raw["operationId"]: operation for operation in (one.ok() for one in found)}


OPERATIONS = operations(WHOLE, checked=False)
ON_ONE_MACHINE = operations(GATE, checked=True)
OF_REPORTS = OPERATIONS.keys() - ON_ONE_MACHINE.keys()
WITH_INPUT = sorted(name for name, one in OPERATIONS.items() if one.body or one.path_parameters or one.query)
NEGATIVE = schemathesis.GenerationMode.NEGATIVE

fuzz = settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize=EXAMPLES <= 100,  # the short form is the same every day
    database=None,
    phases=[Phase.generate, Phase.shrink],
    suppress_health_check=list(HealthCheck),
)


class InProcess(BaseAdapter):
    """Hands requests to the local stack's gateway without a socket."""

    def __init__(self, stack: Stack) -> None:
        super().__init__()
        self.stack = stack

    def send(self, request: requests.PreparedRequest, **_: Any) -> requests.Response:  # type: ignore[override]
        body = request.body or b""
        answer = self.stack.answer(
            gateway.Request(
                method=str(request.method),
                target=request.path_url,
                headers=[(name.lower(), str(value)) for name, value in request.headers.items()],
                body=body.encode() if isinstance(body, str) else body,
            )
        )
        raw = urllib3.HTTPResponse(
            io.BytesIO(answer.body), answer.headers, answer.status, version=11, preload_content=False
        )
        return HTTPAdapter().build_response(request, raw)

    def close(self) -> None:
        pass


class Service:
    """A running stack with reports, behind a session."""

    def __init__(self, stack: Stack) -> None:
        self.stack, self.session = stack, requests.Session()
        self.session.mount(URL, InProcess(stack))
        self.jobs = 0

    def written(self) -> int:
        return sum(self.stack.meter.written.values())

    def check(self, case: Any, *, but_for: tuple[Any, ...] = ()) -> requests.Response:
        """Send a case, and judge the answer by every check. A refused request writes nothing and fails nothing."""
        before = self.written()
        response: requests.Response = case.call(base_url=URL, session=self.session)
        case.validate_response(response, excluded_checks=list(but_for), transport_kwargs={"session": self.session})
        if response.status_code >= 400:
            assert self.written() == before
        assert self.stack.failures == []
        return response

    def make_known(self, name: str, case: Any) -> None:
        """Name what the stack has: a type, its buckets, a job, a public key."""
        if "type" in case.path_parameters:
            case.path_parameters["type"] = "fledge"
        for entry in asked(name, case.body):
            entry["type"] = "fledge"
        api = name.partition("report-")[2]
        if api:
            case.body = attribution_report() if api == "attribution-reporting" else other_api(api)
        if name in ("createJob", "preflight"):
            self.jobs += 1
            case.body = self.job(f"job {self.jobs}")
        if name == "getJob":
            case.query = FIRST
        if name == "publish":
            case.body = FIRST
        if name == "getBudget":
            case.query = {"api": "kanon", "version": "1.0", "reporting_origin": made.ORIGIN, "day": "2025-12-31"}

    def job(self, job_request_id: str) -> dict[str, Any]:
        environment = self.stack.functions["jobs"].environment
        reports, summaries = environment["KANON_REPORTS_BUCKET"], environment["KANON_SUMMARIES_BUCKET"]
        body = job_body(job_request_id, input_data_blob_prefix="reports/", output_data_bucket_name=summaries)
        body["input_data_bucket_name"] = reports
        body["job_parameters"]["output_domain_bucket_name"] = summaries
        return body


def asked(name: str, body: Any) -> list[Any]:
    """The entries of a query."""
    return list(body["sets" if name == "validateHashes" else "setsForType"]) if name in MOST_HASHES else []


def without_values(name: str, case: Any) -> None:
    """Take the values out of joins: no schema says that they are for listed types only."""
    joins = case.body["joins"] if name == "batchJoin" else [case.body] if name == "join" else []
    for one in joins:
        one.pop("value", None)


def is_beyond_schemas(name: str, case: Any) -> bool:
    """Whether a request breaks a rule that no schema can express: bytes instead of characters, a sum over entries."""
    if name == "join" and "client" in case.body:
        return len(case.body["client"].encode()) > MOST_CLIENT_BYTES
    return sum(len(entry["hashes"]) for entry in asked(name, case.body)) > MOST_HASHES.get(name, 0)


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    logs = io.StringIO()
    with Stack({"Types": TYPES, "Reports": "ON"}, start=made.NOW, logs=logs) as stack:
        publish(stack)
        service = Service(stack)
        # Fingerprints are written once, at the cold start.
        stack.request("POST", "/v1/types/fledge/sets/asdf:join", {"client": "first"})
        stack.request("GET", "/v1/types/fledge/sets/asdf")
        assert stack.request("POST", next(iter(REPORTS)), attribution_report()).status == 200
        stack.advance(61)
        assert stack.request("POST", "/v1alpha/createJob", service.job(**FIRST)).status == 202
        logs.truncate(0)
        yield service
        service.session.close()
        for line in logs.getvalue().splitlines():
            entry = json.loads(line.lstrip("\0"))
            assert "_aws" in entry, f"a request made the function log: {line}"


@pytest.mark.parametrize("name", OPERATIONS)
def test_every_request_that_the_openapi_description_allows_is_accepted(name: str, service: Service) -> None:
    statuses = set()

    @fuzz
    @given(case=OPERATIONS[name].as_strategy(), known=st.booleans())
    def run(case: Any, known: bool) -> None:
        without_values(name, case)
        if known:
            service.make_known(name, case)
        beyond = is_beyond_schemas(name, case)
        # What stands in the text shared_info, and which buckets there are, is no matter of a schema.
        is_free = beyond or (not known and name in OF_REPORTS)
        response = service.check(case, but_for=(positive_data_acceptance,) if is_free else ())
        statuses.add(response.status_code)
        assert not beyond or response.status_code == 400
        if known and not beyond:
            assert response.status_code == (409 if name == "publish" else 202 if name == "createJob" else 200)
        for result in response.json().get("results", []) if response.status_code == 200 else []:
            assert not result or result["error"]["code"] == 404 or "bytes of UTF-8" in result["error"]["message"]

    run()
    assert statuses & {200, 202, 409}


@pytest.mark.parametrize("name", WITH_INPUT)
def test_every_request_that_the_openapi_description_forbids_is_refused(name: str, service: Service) -> None:
    @fuzz
    @given(case=OPERATIONS[name].as_strategy(generation_mode=NEGATIVE))
    def run(case: Any) -> None:
        partly = name == "batchJoin"  # only the invalid join is refused
        response = service.check(case, but_for=(negative_data_rejection,) if partly else ())
        assert response.status_code != 200 or any(response.json()["results"])

    run()


@pytest.fixture(scope="module")
def one_machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    path: Path = tmp_path_factory.mktemp("machine")
    with machine(path / "data") as made:
        yield made


@pytest.mark.parametrize("name", ON_ONE_MACHINE)
def test_one_machine_keeps_the_description_and_asks_who_calls(name: str, one_machine: Machine) -> None:
    headers = {"Authorization": f"Bearer {one_machine.key}"}
    statuses = set()

    @fuzz
    @given(case=ON_ONE_MACHINE[name].as_strategy())
    def run(case: Any) -> None:
        without_values(name, case)
        if "type" in case.path_parameters:
            case.path_parameters["type"] = "fledge"
        for entry in asked(name, case.body):
            entry["type"] = "fledge"
        but_for = [positive_data_acceptance] if is_beyond_schemas(name, case) else []
        response = case.call(base_url=one_machine.server.url, headers=headers)
        case.validate_response(response, excluded_checks=but_for, headers=headers)
        statuses.add(response.status_code)

    run()
    assert 200 in statuses
