"""The whole interface against valid and invalid inputs generated from its own description.

Every check of schemathesis judges every answer: of a stack with reports, and of the service on one machine, which also
checks who calls. What a check leaves out is in the description itself (`x-refused-if`). `FUZZ_EXAMPLES` says how many
examples each call gets in each mode; `make fuzz` asks for thousands.
"""

import io
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
import requests
import schemathesis
import urllib3
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from requests.adapters import BaseAdapter, HTTPAdapter
from schemathesis.config import SchemathesisConfig
from schemathesis.specs.openapi.checks import negative_data_rejection, positive_data_acceptance

from infra.openapi import GATE, IN_WORDS, ONE_BY_ONE, WHOLE, Document, description, schemas
from kanon.client import value_id
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
LISTED = {"terms": {"k": 20, "window": 24, "profile": "crossing", "listed": True}}
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
OF_LISTS = {name for name, one in OPERATIONS.items() if one.tags == ["lists"]}
OF_REPORTS = OPERATIONS.keys() - ON_ONE_MACHINE.keys() - OF_LISTS
WITH_INPUT = sorted(name for name, one in OPERATIONS.items() if one.body or one.path_parameters or one.query)
DEFINITIONS = schemas()["$defs"]
ENTRY = jsonschema_rs.validator_for({"$ref": "#/$defs/BatchedJoin", "$defs": DEFINITIONS})
WITHOUT_ENTRIES = jsonschema_rs.validator_for(
    {"$ref": "#/$defs/BatchJoinBody", "$defs": {**DEFINITIONS, "BatchedJoin": {}}}
)
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
            gateway.GatewayRequest(
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

    def check(self, case: Any, name: str) -> requests.Response:
        """Send a case, and judge the answer by every check. A refused request writes nothing and fails nothing."""
        before = self.written()
        response: requests.Response = case.call(base_url=URL, session=self.session)
        but_for = excused(name, case, response)
        case.validate_response(response, excluded_checks=but_for, transport_kwargs={"session": self.session})
        if response.status_code >= 400:
            assert self.written() == before
        assert self.stack.failures == []
        return response

    def make_known(self, name: str, case: Any) -> None:
        """Name what the stack has: a type, its buckets, a job, a public key."""
        if name in OF_LISTS:
            case.path_parameters |= {key: value for key, value in self.a_list().items() if key in case.path_parameters}
            case.query.pop("after", None)  # only the service makes one
        elif "type" in case.path_parameters:
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

    def a_list(self) -> dict[str, Any]:
        """The path of a range file."""
        ranges = self.stack.request("GET", "/v1/types/terms/ranges").json()
        return {"type": "terms", "step": str(ranges["step"]), "prefix": "all"}

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


def breaks_a_rule(name: str, case: Any) -> bool:
    """Whether a request of the gate breaks a rule that its description says in words."""
    if name == "join":
        too_long = len(case.body.get("client", "").encode()) > MOST_CLIENT_BYTES
        return too_long or not {"value", "presentation"}.isdisjoint(case.body)
    return sum(len(entry["hashes"]) for entry in asked(name, case.body)) > MOST_HASHES.get(name, 0)


def is_refused(result: Any) -> bool:
    """Whether an answer, or the result of an entry, is an error of the request itself."""
    return result.get("error", {}).get("status") == "INVALID_ARGUMENT"


def is_refused_in_words(name: str, result: Any) -> bool:
    """Whether it refuses fields for which the description says rules in words, and no other ones."""
    if not is_refused(result):
        return False
    details = result["error"]["details"]
    fields = {detail["field"] if "field" in detail else detail["metadata"]["field"] for detail in details}
    words = OPERATIONS[name].definition.raw.get(IN_WORDS, {})
    return bool(fields) and all({field, field.partition(".")[0]} & words.keys() for field in fields)


def wrong_entries(name: str, body: Any) -> list[bool] | None:
    """Which entries of a request are invalid, if its description says that these are refused alone; None if not so."""
    place = OPERATIONS[name].definition.raw.get(ONE_BY_ONE)
    if place is None or not isinstance(body, dict) or not WITHOUT_ENTRIES.is_valid(body):
        return None
    return [not ENTRY.is_valid(entry) for entry in body[place]]


def excused(name: str, case: Any, response: Any) -> list[Any]:
    """The check that the description itself takes back for an answer."""
    if response.status_code == 400 and is_refused_in_words(name, response.json()):
        return [positive_data_acceptance]
    wrong = wrong_entries(name, case.body) if response.status_code == 200 else None
    if not wrong:
        return []
    for result, is_wrong in zip(response.json()["results"], wrong, strict=True):
        assert is_refused(result) if is_wrong else not is_refused(result) or is_refused_in_words(name, result)
    return [negative_data_rejection] if any(wrong) else []


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


@pytest.fixture(scope="module")
def listing() -> Iterator[Service]:
    """A stack with a list."""
    with Stack({"Types": json.dumps(LISTED)}, start=made.NOW, logs=io.StringIO()) as stack:
        joins = [{"type": "terms", "set": value_id("shoes"), "value": "shoes", "client": f"{n}"} for n in range(60)]
        assert stack.request("POST", "/v1:batchJoin", {"joins": joins}).status == 200
        stack.advance(3 * 3600)
        service = Service(stack)
        assert service.a_list()["step"].isdecimal()
        yield service
        service.session.close()


@pytest.mark.parametrize("name", OPERATIONS)
def test_every_request_that_the_openapi_description_allows_is_accepted(
    name: str, request: pytest.FixtureRequest
) -> None:
    service: Service = request.getfixturevalue("listing" if name in OF_LISTS else "service")
    statuses = set()

    @fuzz
    @given(case=OPERATIONS[name].as_strategy(), known=st.booleans())
    def run(case: Any, known: bool) -> None:
        if known:
            service.make_known(name, case)
        response = service.check(case, name)
        statuses.add(response.status_code)
        if name in OF_LISTS:
            assert not known or response.status_code == 200
        elif name not in OF_REPORTS:
            refused, broken = response.status_code == 400, breaks_a_rule(name, case)
            assert refused is broken if known else refused <= broken
        elif known:
            assert response.status_code == (409 if name == "publish" else 202 if name == "createJob" else 200)
        for result in response.json()["results"] if name == "batchJoin" and response.status_code == 200 else []:
            assert not result or result["error"]["code"] == 404 or is_refused_in_words(name, result)

    run()
    assert statuses & {200, 202, 409}


@pytest.mark.parametrize("name", WITH_INPUT)
def test_every_request_that_the_openapi_description_forbids_is_refused(
    name: str, request: pytest.FixtureRequest
) -> None:
    service: Service = request.getfixturevalue("listing" if name in OF_LISTS else "service")

    @fuzz
    @given(case=OPERATIONS[name].as_strategy(generation_mode=NEGATIVE))
    def run(case: Any) -> None:
        response = service.check(case, name)
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
        if "type" in case.path_parameters:
            case.path_parameters["type"] = "fledge"
        for entry in asked(name, case.body):
            entry["type"] = "fledge"
        response = case.call(base_url=one_machine.server.url, headers=headers)
        case.validate_response(response, excluded_checks=excused(name, case, response), headers=headers)
        assert (response.status_code == 400) is breaks_a_rule(name, case)
        statuses.add(response.status_code)

    run()
    assert 200 in statuses
