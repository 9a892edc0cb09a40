"""The whole interface against valid and invalid inputs generated from its own description.

`FUZZ_EXAMPLES` says how many examples each call gets in each mode; `make fuzz` asks for thousands.
"""

import io
import json
import os
from collections.abc import Iterator
from typing import Any

import pytest
import requests
import schemathesis
import urllib3
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from requests.adapters import BaseAdapter, HTTPAdapter
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from infra.openapi import description
from kanon.local import Stack, gateway

EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "10"))
START = 1_700_000_000.0
URL = "http://kanon.test"
TYPES = json.dumps({"fledge": {"k": 50, "window": 720, "profile": "published"}})

CONFORMANCE = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]
DESCRIPTION = schemathesis.openapi.from_dict(description())
OPERATIONS = {
    operation.definition.raw["operationId"]: operation
    for operation in (found.ok() for found in DESCRIPTION.get_all_operations())
}

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
    """A running stack behind a session."""

    def __init__(self, stack: Stack, session: requests.Session, logs: io.StringIO) -> None:
        self.stack, self.session, self.logs = stack, session, logs

    def written(self) -> int:
        return sum(self.stack.meter.written.values())

    def check(self, case: Any, checks: list[Any]) -> requests.Response:
        """Send a case: a refused request writes nothing, fails nothing and logs no error."""
        before = self.written()
        response = case.call(base_url=URL, session=self.session)
        case.validate_response(response, checks=checks)
        if response.status_code != 200:
            assert self.written() == before
        assert self.stack.failures == []
        return response


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    logs = io.StringIO()
    with Stack({"Types": TYPES}, start=START, logs=logs) as stack, requests.Session() as session:
        session.mount(URL, InProcess(stack))
        # Fingerprints are written once, at the cold start.
        stack.request("POST", "/v1/types/fledge/sets/asdf:join", {"client": "first"})
        stack.request("GET", "/v1/types/fledge/sets/asdf")
        yield Service(stack, session, logs)
        for line in logs.getvalue().splitlines():
            entry = json.loads(line)
            assert "_aws" in entry, f"a request made the function log: {line}"


# Rules that a schema cannot express: bytes instead of characters, and a sum over entries.
BEYOND_SCHEMAS = ("at most 256 bytes of UTF-8", "split the request", "or sign it and call batchQuery")


@pytest.mark.parametrize("name", OPERATIONS)
def test_every_request_that_the_openapi_description_allows_is_accepted(name: str, service: Service) -> None:
    statuses = set()

    @fuzz
    @given(case=OPERATIONS[name].as_strategy(), known=st.booleans())
    def run(case: Any, known: bool) -> None:
        if known and "type" in case.path_parameters:
            case.path_parameters["type"] = "fledge"
        response = service.check(case, CONFORMANCE)
        statuses.add(response.status_code)
        errors = [response.json()["error"]] if response.status_code != 200 else []
        errors += [result["error"] for result in response.json().get("results", []) if result]
        for error in errors:
            assert error["code"] == 404 or error["message"].endswith(BEYOND_SCHEMAS)
            assert not (known and error["code"] == 404 and "type" in case.path_parameters)

    run()
    assert 200 in statuses


@pytest.mark.parametrize("name", sorted(set(OPERATIONS) - {"listTypes"}))  # it has no parameter and no body
def test_every_request_that_the_openapi_description_forbids_is_refused(name: str, service: Service) -> None:
    @fuzz
    @given(case=OPERATIONS[name].as_strategy(generation_mode=schemathesis.GenerationMode.NEGATIVE))
    def run(case: Any) -> None:
        response = service.check(case, CONFORMANCE)
        if response.status_code == 200:  # of a batch only the invalid join is refused
            assert name == "batchJoin"
            assert any(response.json()["results"])

    run()
