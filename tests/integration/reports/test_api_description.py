"""The description of the routes of reports is generated from the code and matches it."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from infra import openapi
from kanon.local.gateway import Gateway, Route
from tests.integration.gate.tables import Running
from tests.integration.reports.front import Front, front


@pytest.fixture(scope="module")
def description() -> dict[str, Any]:
    return openapi.description(openapi.REPORTS)


@pytest.fixture(scope="module")
def service(engine: Running) -> Front:
    return front(engine)


@pytest.mark.parametrize("file", openapi.REPORTS.files, ids=lambda file: file.parent.name)
def test_the_committed_description_equals_the_generated_one(file: Path, description: dict[str, Any]) -> None:
    assert json.loads(file.read_text()) == description, "run: make openapi"


def test_collect_serves_the_description_of_both_functions(service: Front, description: dict[str, Any]) -> None:
    result = service.send("collect", "GET", "/reports/openapi.json")
    assert result.json() == description
    assert service.calls == []


def test_a_stack_without_reports_describes_no_reports() -> None:
    paths = openapi.description()["paths"]
    assert "/v1:query" in paths
    assert not any("report" in path or "Job" in path for path in paths)


def test_every_path_is_accepted_by_api_gateway(description: dict[str, Any]) -> None:
    routes = [Route(f"{method.upper()} {path}", "f") for path in description["paths"] for method in ("get", "post")]
    assert len(Gateway(routes).routes) == 2 * len(description["paths"])


def test_every_reference_has_a_target_and_every_schema_is_used(description: dict[str, Any]) -> None:
    references = set(re.findall(r'"#/components/schemas/(\w+)"', json.dumps(description)))
    assert references == set(description["components"]["schemas"])


def test_jobs_are_signed_and_reports_are_not(description: dict[str, Any]) -> None:
    assert {"/v1alpha/createJob", "/v1/budget"} <= description["paths"].keys()
    for path, methods in description["paths"].items():
        for operation in methods.values():
            is_job = path.startswith(("/v1alpha", "/v1/jobs", "/v1/budget"))
            assert ({"401", "403"} <= operation["responses"].keys()) == is_job
            schema = operation["responses"]["500"]["content"]["application/json"]["schema"]["$ref"]
            assert schema.endswith("/JobsErrorAnswer" if is_job else "/ErrorAnswer")
