"""The description of the routes of reports is generated from the code and matches it."""

import json
import re
from typing import Any

import pytest

from infra import openapi
from kanon.local.gateway import ApiGateway, Route


@pytest.fixture(scope="module")
def description() -> dict[str, Any]:
    return openapi.description()


def test_reports_are_described_apart_from_the_gate(description: dict[str, Any]) -> None:
    gate = openapi.description(openapi.GATE)
    assert "/v1:query" in gate["paths"]
    assert not any("eport" in path or "ob" in path for path in gate["paths"])
    assert gate["paths"].items() <= description["paths"].items()
    for path in description["paths"].keys() - gate["paths"].keys():
        assert [one["tags"] for one in description["paths"][path].values()] in ([["reports"]], [["lists"]])
    assert "404" in {tag["name"]: tag["description"] for tag in description["tags"]}["reports"]


def test_every_path_is_accepted_by_api_gateway(description: dict[str, Any]) -> None:
    paths = description["paths"].keys() - openapi.description(openapi.GATE)["paths"].keys()
    routes = [Route(f"{method.upper()} {path}", "f") for path in paths for method in ("get", "post")]
    assert len(ApiGateway(routes).routes) == 2 * len(paths)


def test_every_reference_has_a_target_and_every_schema_is_used(description: dict[str, Any]) -> None:
    references = set(re.findall(r'"#/components/schemas/(\w+)"', json.dumps(description)))
    assert references == set(description["components"]["schemas"])


def test_every_object_of_a_body_is_named_and_typed(description: dict[str, Any]) -> None:
    named = description["components"]["schemas"]
    objects = [named, description["paths"]]
    while objects:
        schema = objects.pop()
        parts = schema.values() if isinstance(schema, dict) else schema
        objects += [part for part in parts if isinstance(part, dict | list)]
        if isinstance(schema, dict) and schema.get("type") == "object":
            is_map = isinstance(schema.get("additionalProperties"), dict)
            assert is_map or any(schema is one for one in named.values()), f"an object has no name: {schema}"
    assert named["BatchJoinBody"]["properties"]["joins"]["items"] == {"$ref": "#/components/schemas/BatchedJoin"}


def test_parameters_that_must_be_given_are_required(description: dict[str, Any]) -> None:
    asked = {
        parameter["name"]: parameter["required"]
        for operation in (description["paths"]["/v1/budget"]["get"], description["paths"]["/v1alpha/getJob"]["get"])
        for parameter in operation["parameters"]
    }
    needed = {"job_request_id", "api", "version", "reporting_origin", "day"}
    others = {"attribution_destination", "source_registration_time", "filtering_id"}
    assert asked == dict.fromkeys(needed, True) | dict.fromkeys(others, False)


def test_the_committed_schemas_are_those_of_the_description() -> None:
    schemas = json.loads(openapi.SCHEMAS.read_text())
    assert schemas == openapi.schemas(), "run: make openapi"
    references = set(re.findall(r'"\$ref": "([^"]+)"', json.dumps(schemas)))
    assert references <= {f"#/$defs/{name}" for name in schemas["$defs"]}


def test_jobs_are_signed_and_reports_are_not(description: dict[str, Any]) -> None:
    assert {"/v1alpha/createJob", "/v1/budget"} <= description["paths"].keys()
    for path, methods in description["paths"].items():
        for operation in methods.values():
            if operation["tags"] != ["reports"]:
                continue
            is_job = path.startswith(("/v1alpha", "/v1/jobs", "/v1/budget"))
            assert operation.get("security") == ([{"signature": []}] if is_job else None)
            assert ({"401", "403"} <= operation["responses"].keys()) == is_job
            own, _ = operation["responses"]["500"]["content"]["application/json"]["schema"]["anyOf"]
            assert own["$ref"].endswith("/JobsErrorAnswer" if is_job else "/ErrorAnswer")
