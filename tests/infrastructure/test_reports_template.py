"""Without reports the stack is unchanged, and with them only one resource is more."""

import copy
import json
import re
from collections.abc import Callable
from typing import Any

import pytest

from kanon.local.template import Template
from tests.infrastructure import template
from tests.infrastructure.rules import SETTINGS
from tests.infrastructure.template import REPORT_FUNCTIONS, REPORTS, ROOT, Document, parameter, properties

Mutation = Callable[[Document], object]
PARAMETERS = (
    *("Reports", "EpsilonCap", "DeltaCap", "ReportBuckets", "MapConcurrency", "AllowedOrigins"),
    *("ReportsDeletionProtection", "CollectReservedConcurrency", "JobsReservedConcurrency"),
)
"""The parameters of the parent that are for reports alone."""


def read() -> Document:
    return template.read(ROOT / REPORTS)


def without_reports(document: Document) -> Document:
    """The template as if there were no reports."""
    made = copy.deepcopy(document)
    del made["Resources"]["ReportsStack"]
    del made["Conditions"]["HasReports"]
    for name in PARAMETERS:
        del made["Parameters"][name]
    made["Outputs"] = {name: one for name, one in made["Outputs"].items() if one.get("Condition") != "HasReports"}
    return made


def resolved(document: Document, parameters: dict[str, str]) -> dict[str, Any]:
    """The resources that exist, with every intrinsic function that the parameters decide."""
    types = {one["Type"] for one in document["Resources"].values()}
    found = Template(unselected(document), parameters, "kanon", directory=template.ROOT).resources(*types)
    attributes = ("DependsOn", "DeletionPolicy", "UpdateReplacePolicy", "Metadata")
    return {
        one.logical_id: [one.properties, {word: document["Resources"][one.logical_id].get(word) for word in attributes}]
        for one in found
    }


def unselected(node: Any) -> Any:
    """A document without Fn::Select: what is left out of a list matters, too, in the description of the layer."""
    if isinstance(node, dict):
        return {name.replace("Fn::Select", "Select"): unselected(value) for name, value in node.items()}
    return [unselected(value) for value in node] if isinstance(node, list) else node


EDGE = {"DomainName": "a.example", "CertificateArn": "arn:aws:acm:us-east-1:123456789012:certificate/1", "Edge": "ON"}
VARIANTS: list[dict[str, str]] = [
    {},
    EDGE,
    {"AlarmEmail": "a@example.org", "JoinAuth": "OPEN", "CorsOrigins": "*", "DeletionProtection": "ON"},
]


@pytest.mark.parametrize("parameters", VARIANTS)
def test_without_reports_every_resource_is_unchanged(parameters: dict[str, str]) -> None:
    document = template.read()
    off = resolved(document, parameters | {"Reports": "OFF"})
    assert off == resolved(without_reports(document), parameters)
    assert len(off) > 40


@pytest.mark.parametrize("parameters", VARIANTS)
def test_reports_add_one_resource_and_change_no_other(parameters: dict[str, str]) -> None:
    """No parameter of reports changes a resource of the gate or the layer's name."""
    document = template.read()
    given = {
        "EpsilonCap": "10",
        "DeltaCap": "1e-8",
        "ReportBuckets": "one,two",
        "MapConcurrency": "7",
        "AllowedOrigins": "https://a.example",
        "ReportsDeletionProtection": "ON",
        "CollectReservedConcurrency": "9",
        "JobsReservedConcurrency": "9",
    }
    assert {*given, "Reports"} == set(PARAMETERS)
    on = resolved(document, parameters | given | {"Reports": "ON"})
    del on["ReportsStack"]
    assert on == resolved(without_reports(document), parameters)


def named_by_the_gate(document: Document) -> set[str]:
    """What the resources and conditions of the gate name of reports."""
    kept = without_reports(document)
    words = re.findall(r"\w+", json.dumps([kept["Resources"], kept["Conditions"]]))
    return {"ReportsStack", "HasReports", *PARAMETERS} & set(words)


def test_the_gate_names_nothing_of_reports() -> None:
    assert named_by_the_gate(template.read()) == set()


@pytest.mark.parametrize(
    ("name", "spoil"),
    [
        ("Join", lambda join: join["Properties"]["Environment"]["Variables"].update(X={"Ref": "EpsilonCap"})),
        ("Shared", lambda shared: shared["Properties"]["Description"]["Fn::Select"][1].append({"Ref": "Reports"})),
        ("Queue", lambda queue: queue["Properties"].update(VisibilityTimeout={"Fn::If": ["HasReports", 1, 720]})),
        ("Query", lambda query: query.update(DependsOn=["ReportsStack"])),
    ],
)
def test_a_resource_of_the_gate_that_depends_on_reports_is_found(name: str, spoil: Mutation) -> None:
    spoiled = template.read()
    spoil(spoiled["Resources"][name])
    assert len(named_by_the_gate(spoiled)) == 1
    with_reports = resolved(spoiled, {"Reports": "ON"})
    expected = resolved(without_reports(template.read()), {})
    assert {one for one in expected if with_reports[one] != expected[one]} == {name}


@pytest.mark.parametrize("function", REPORT_FUNCTIONS)
def test_a_function_accepts_its_environment(function: str) -> None:
    given = {name: str(parameter(template.read(), name)["Default"]) for name in PARAMETERS}
    given |= {name: "1" for name in read()["Parameters"] if name not in given}
    document = Template(read(), {name: given[name] for name in read()["Parameters"]}, "kanon")
    variables = {
        name: str(document.resolve(value)).lower() if "Bucket" in str(value) else str(document.resolve(value))
        for name, value in properties(read(), function)["Environment"]["Variables"].items()
    }
    assert SETTINGS[function].from_environment(variables)
