"""The effect of a deployment by SAM: which versions are published, and the order in which they go live."""

import json
import os
import subprocess
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Any

import pytest

from tests.infrastructure.rules import versioned_parameters
from tests.infrastructure.template import PATH, REPORT_FUNCTIONS, REPORTS, ROOT, parameter, read

pytestmark = pytest.mark.build

SAM = ROOT / ".venv-sam" / "bin" / "python"
SCRIPT = Path(__file__).with_name("published.py")
FUNCTIONS = ("Join", "Query", "Evaluate", "Sweep")
UNVERSIONED = ("LogRetention", "ThrottleRate", "MaxWriteUnits", "DeletionProtection", "JoinReservedConcurrency")
Resources = dict[str, Any]


def translate(*cases: dict[str, Any]) -> list[Resources]:
    """The resources of each case."""
    done = subprocess.run(
        [SAM, SCRIPT],
        input=json.dumps([{"template": str(PATH), "parameters": {}, "contents": {}, **case} for case in cases]),
        env={**os.environ, "AWS_DEFAULT_REGION": "us-east-1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return [template["Resources"] for template in json.loads(done.stdout.splitlines()[-1])]


def changed(name: str) -> str:
    """Another value of a parameter than its default."""
    declared = parameter(read(), name)
    if "AllowedValues" in declared:
        return next(str(value) for value in declared["AllowedValues"] if value != declared["Default"])
    return str(int(declared["Default"]) + 1) if declared["Type"] == "Number" else f"{declared['Default']} "


def versions(resources: Resources) -> dict[str, tuple[str, str]]:
    """The values that identify the version of each function: CloudFormation publishes a new one if either changes."""
    found = {}
    for name, resource in resources.items():
        if resource["Type"] == "AWS::Lambda::Version":
            function = resource["Properties"]["FunctionName"]["Ref"]
            found[function] = (name, json.dumps(resource["Properties"]["Description"]))
    return found


@cache
def now() -> Resources:
    (resources,) = translate({})
    return resources


def test_each_parameter_that_a_version_depends_on_publishes_all_versions_when_it_changes_alone() -> None:
    """SAM itself overlooks such a change (its issue 3820): aliases would go on with the old values."""
    names = sorted(versioned_parameters(read()))
    assert {"Types", "NoiseKeys", "LogGenerations", "LogLevel"} <= set(names)
    before = versions(now())
    assert set(before) == set(FUNCTIONS)
    for name, resources in zip(names, translate(*({"parameters": {n: changed(n)}} for n in names)), strict=True):
        after = versions(resources)
        assert [f for f in FUNCTIONS if after[f] == before[f]] == [], name


def test_other_parameters_publish_no_version() -> None:
    for resources in translate(*({"parameters": {name: changed(name)}} for name in UNVERSIONED)):
        assert versions(resources) == versions(now())


def test_a_change_of_the_layer_alone_publishes_all_versions() -> None:
    (resources,) = translate({"contents": {"Shared": "s3://code/another"}})
    assert not set(versions(resources).values()) & set(versions(now()).values())
    (shared,) = [name for name in resources if name.startswith("Shared")]
    for name in FUNCTIONS:
        assert {layer["Ref"] for layer in resources[name]["Properties"]["Layers"] if "Ref" in layer} == {shared}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_change_of_one_function_publishes_its_version_alone(name: str) -> None:
    (resources,) = translate({"contents": {name: "s3://code/another"}})
    after, before = versions(resources), versions(now())
    assert {function for function in FUNCTIONS if after[function] != before[function]} == {name}


def needed(node: Any, names: set[str]) -> Iterator[str]:
    """The resources that a node refers to."""
    if isinstance(node, list):
        for entry in node:
            yield from needed(entry, names)
    elif isinstance(node, dict):
        for key, value in node.items():
            found = value[0] if key == "Fn::GetAtt" else value if key in ("Ref", "DependsOn") else None
            yield from {found} & names if isinstance(found, str) else needed(value, names)


def order(resources: Resources) -> dict[str, set[str]]:
    """The resources that CloudFormation finishes before it begins with a resource."""
    names = set(resources)
    graph = {name: set(needed(resource, names)) for name, resource in resources.items()}
    before: dict[str, set[str]] = {}
    for name in TopologicalSorter(graph).static_order():  # raises a CycleError
        before[name] = graph[name].union(*(before[other] for other in graph[name]))
    return before


@pytest.mark.parametrize("canary", ["AllAtOnce", "Canary10Percent5Minutes"])
def test_evaluate_goes_live_before_join_and_query_change(canary: str) -> None:
    (resources,) = translate({"parameters": {"Canary": canary}})
    before = order(resources)
    for name in ("Join", "Query"):
        assert "EvaluateAliaslive" in before[name]
        assert {name, "EvaluateAliaslive", versions(resources)[name][0]} <= before[f"{name}Aliaslive"]
    assert not {"Join", "Query", "JoinAliaslive", "QueryAliaslive"} & before["EvaluateAliaslive"]


def test_join_and_query_move_by_canary_and_evaluate_at_once() -> None:
    all_at_once, canary = translate({"parameters": {"Canary": "AllAtOnce"}}, {})
    for name in ("Join", "Query"):
        policy = canary[f"{name}Aliaslive"]["UpdatePolicy"]["CodeDeployLambdaAliasUpdate"]
        group = canary[policy["DeploymentGroupName"]["Ref"]]["Properties"]
        alarm = {"Fn::If": ["HasCanary", {"Enabled": True, "Alarms": [{"Name": {"Ref": f"{name}Failing"}}]}, {}]}
        assert group["AlarmConfiguration"] == alarm
        assert "DEPLOYMENT_STOP_ON_ALARM" in group["AutoRollbackConfiguration"]["Events"]
        assert "Canary10Percent5Minutes" in json.dumps(group["DeploymentConfigName"])
    assert "UpdatePolicy" not in canary["EvaluateAliaslive"]
    assert not [name for name, resource in all_at_once.items() if resource["Type"].startswith("AWS::CodeDeploy")]


# --------------------------------------------------------------------------------------------- reports
GIVEN = dict.fromkeys(read(ROOT / REPORTS)["Parameters"], "1") | {"Runtime": "python3.13", "Architecture": "arm64"}
ANOTHER = {"Runtime": "python3.12", "Architecture": "x86_64"}


def of_reports(*cases: dict[str, dict[str, str]]) -> list[dict[str, tuple[str, str]]]:
    """The versions of the functions of reports in each case."""
    made = translate(
        *(
            {
                "template": str(ROOT / REPORTS),
                "parameters": GIVEN | case.get("parameters", {}),
                "contents": case.get("contents", {}),
            }
            for case in cases
        )
    )
    return [versions(resources) for resources in made]


def test_a_changed_parameter_or_layer_of_the_gate_publishes_all_versions_of_reports() -> None:
    names = sorted(versioned_parameters(read(ROOT / REPORTS)) - {"Deployment", "Name", "Control", "KeyArn"})
    assert {"Shared", "EpsilonCap", "AllowedOrigins", "EdgeSecret"} <= set(names)
    before, *after = of_reports({}, *({"parameters": {name: ANOTHER.get(name, "2")}} for name in names))
    assert set(before) == set(REPORT_FUNCTIONS)
    for name, found in zip(names, after, strict=True):
        assert [f for f in before if found[f] == before[f]] == [], name


def test_other_parameters_of_reports_publish_no_version() -> None:
    before, *after = of_reports(
        {}, *({"parameters": {n: "2"}} for n in ("MapConcurrency", "LogRetention", "AlarmTopic"))
    )
    assert len(before) > 0
    assert after == [before] * 3


@pytest.mark.parametrize("name", REPORT_FUNCTIONS)
def test_a_change_of_one_function_of_reports_publishes_its_version_alone(name: str) -> None:
    before, after = of_reports({}, {"contents": {name: "s3://code/another"}})
    assert {function for function in before if after[function] != before[function]} == {name}
