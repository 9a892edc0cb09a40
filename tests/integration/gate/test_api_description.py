"""The description of the interface is generated from the code and matches it."""

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from infra import openapi
from kanon.gate.models import BatchJoinBody, JoinBody, QueryBody, ValidateHashesBody
from tests.integration.gate.edge import Edge


@pytest.fixture(scope="module")
def description() -> dict[str, Any]:
    return openapi.description(openapi.GATE)


@pytest.fixture(scope="module")
def edge() -> Iterator[Edge]:
    with Edge() as edge:
        yield edge


@pytest.mark.parametrize("document", [openapi.GATE, openapi.WITH_REPORTS], ids=["gate", "whole"])
def test_the_committed_openapi_descriptions_equal_the_generated_ones(document: openapi.Document) -> None:
    for file in document.files:
        assert json.loads(file.read_text()) == openapi.description(document), "run: make openapi"


def test_query_serves_the_description_of_all_functions(edge: Edge) -> None:
    result = edge.get("/openapi.json")
    assert result.headers["Content-Type"] == "application/json"
    assert result.json() == openapi.description(openapi.WITH_REPORTS)
    assert edge.calls == []


def test_every_reference_has_a_target_and_every_schema_is_used(description: dict[str, Any]) -> None:
    references = set(re.findall(r'"#/components/schemas/(\w+)"', json.dumps(description)))
    assert references == set(description["components"]["schemas"])


def test_every_error_has_one_form_and_no_error_is_422(description: dict[str, Any]) -> None:
    assert "/v1:query" in description["paths"]
    for methods in description["paths"].values():
        for operation in methods.values():
            for code, answer in operation["responses"].items():
                assert code in ("200", "400", "401", "403", "404", "413", "415", "429", "500", "503")
                if code != "200":
                    schema = answer["content"]["application/json"]["schema"]
                    own, other = ({"$ref": f"#/components/schemas/{form}Answer"} for form in ("Error", "Gateway"))
                    either = code in ("401", "403", "429", "500", "503")
                    assert schema == ({"anyOf": [own, other]} if either else own)
                later = code == "503" or (code == "200" and operation["operationId"] == "batchJoin")
                assert ("Retry-After" in answer.get("headers", {})) == later
            assert {"429", "500"} <= operation["responses"].keys()
            signed = operation["operationId"] in ("join", "batchJoin", "batchQuery")
            assert ("403" in operation["responses"]) == ("401" in operation["responses"]) == signed
            ways = [{"signature": []}, {"token": []}, {}]
            asked = ways if operation["operationId"] == "join" else ways[:2] if signed else None
            assert operation.get("security") == asked


def test_the_examples_of_the_description_are_accepted(description: dict[str, Any]) -> None:
    schemas = description["components"]["schemas"]
    hashes = schemas["Hashes"]["examples"]
    JoinBody.model_validate(schemas["JoinBody"]["examples"][0])
    QueryBody.model_validate({"setsForType": hashes})
    ValidateHashesBody.model_validate({"sets": hashes})
    (join,) = schemas["BatchedJoin"]["examples"]
    BatchJoinBody.model_validate({"joins": [join]})


def test_the_documentation_page_is_self_contained_and_may_load_nothing_else(edge: Edge) -> None:
    result = edge.get("/docs")
    assert result.headers["Content-Type"].startswith("text/html")
    policy = result.headers["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; connect-src 'self';")
    assert not re.findall(r"https?:|//[\w.]+/|\bsrc=|@import|url\(", result.body)
    assert re.findall(r'href="([^"]*)"', result.body) == ["data:,", "openapi.json"]
    assert 'fetch("openapi.json")' in result.body
