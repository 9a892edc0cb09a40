"""The runbook and the page of the metrics know every alarm and metric, and CloudWatch takes the definitions."""

import re
from typing import Any

import boto3
import pytest
from moto import mock_aws

from tests.infrastructure import cloudwatch as judged
from tests.infrastructure.rules import ALARM, EVERYTHING, FILTER, HARMLESS, LOSSES
from tests.infrastructure.template import ROOT, Documents
from tests.monitor.allowed_output import METRICS

RUNBOOK = ROOT / "docs" / "guides" / "operate.md"
METRICS_PAGE = ROOT / "docs" / "reference" / "metrics.md"
OF_THE_ACCOUNT = {"Spending"}
COMMAND = re.compile(r"\b(aws|kanon|curl)\s[a-z-]")


def alarms() -> set[str]:
    return {*Documents().deployed(**EVERYTHING).of_type(ALARM), *OF_THE_ACCOUNT}


def entries(text: str) -> dict[str, str]:
    """The entries of the runbook that are named like an alarm."""
    section = text.partition("\n## Runbook\n")[2].partition("\n## ")[0]
    found = re.split(r"^### (.+)$", section, flags=re.MULTILINE)[1:]
    return {name: body for name, body in zip(found[::2], found[1::2], strict=True) if re.fullmatch(r"\w+", name)}


def without_help(text: str) -> set[str]:
    """The alarms that have no entry, or one without a command or in few words; and entries without an alarm."""
    found = entries(text)
    helpful = {
        name
        for name, body in found.items()
        if any(COMMAND.search(" ".join(code)) for code in re.findall(r"```sh\n(.*?)```|`([^`]+)`", body, re.DOTALL))
        and len(re.sub(r"```.*?```|`[^`]*`", "", body, flags=re.DOTALL).split()) >= 3
    }
    return (alarms() ^ set(found)) | (set(found) - helpful)


def test_the_runbook_says_of_every_alarm_what_it_means_and_what_to_type() -> None:
    assert without_help(RUNBOOK.read_text()) == set()


@pytest.mark.parametrize(
    ("entry", "name"),
    [
        ("### JobsFailed\n", "JobsRefused"),
        ("### QueryFailing\n\nRead its log.\n\n### Other\n", "QueryFailing"),
        ("### Spending\n\n`aws logs tail`\n\n### Other\n", "Spending"),
    ],
)
def test_an_alarm_without_help_is_found(entry: str, name: str) -> None:
    assert name in without_help(RUNBOOK.read_text().replace(f"### {name}\n", entry))


def test_the_metrics_page_describes_every_metric_of_the_service() -> None:
    rows = METRICS_PAGE.read_text().partition("\n| metric | of |")[2].partition("\n\n")[0].splitlines()[2:]
    described = {name for row in rows for name in re.findall(r"`(\w+)`", row.split("|")[1])}
    filters = Documents().deployed().of_type(FILTER).values()
    filtered = {change["MetricName"] for found in filters for change in found["MetricTransformations"]}
    assert described == {*METRICS, *filtered}


def test_every_metric_of_every_function_is_a_loss_or_harmless() -> None:
    """A new metric is one of both: a loss has an alarm."""
    emitted = {(name, function) for name, (functions, *_) in METRICS.items() for function in functions.split()}
    losses = {(name, dict(dimensions).get("service", "")) for _, name, dimensions in LOSSES}
    assert {(name, one) for name, one in emitted if name not in HARMLESS} == {(n, one) for n, one in losses if one}
    assert not {name for name, _ in losses} & set(HARMLESS)


def test_two_alarms_watch_exactly_the_service_levels() -> None:
    found = Documents().deployed().of_type(ALARM)
    watched = {name for _, name, _ in dict(judged.metrics(found["JoinsRefused"]))}
    assert watched == {"JoinsAccepted", "JoinsRefused", "JoinRequestsAccepted", "JoinRequestsRefused"}
    assert {name for _, name, _ in dict(judged.metrics(found["PublishLate"]))} == {"PublishLag"}
    section = RUNBOOK.read_text().partition("\n## Runbook\n")[0]
    assert set(re.findall(r"\(#(\w+)\)", section)) == {"joinsrefused", "publishlate"}


@mock_aws
def test_cloudwatch_accepts_alarms_dashboard_and_filters() -> None:
    # No emulator deploys alarms that calculate; their properties are what the calls take.
    stack = Documents().deployed(AlarmEmail="somebody@example.org", **EVERYTHING)
    aws = boto3.Session("x", "x", region_name="eu-west-1")
    cloudwatch, logs = aws.client("cloudwatch"), aws.client("logs")
    for name, alarm in stack.of_type(ALARM).items():
        cloudwatch.put_metric_alarm(AlarmName=name, **numbers(alarm))
    taken = {alarm["AlarmName"]: alarm for alarm in cloudwatch.describe_alarms()["MetricAlarms"]}
    assert set(taken) == set(stack.of_type(ALARM))
    assert taken["EvaluationLate"]["Period"] == 3600
    (shown,) = stack.of_type("AWS::CloudWatch::Dashboard").values()
    cloudwatch.put_dashboard(**shown)
    logs.create_log_group(logGroupName="kanon-AccessLogs")
    for name, found in stack.of_type(FILTER).items():
        changes = found["MetricTransformations"]
        logs.put_metric_filter(
            filterName=name,
            logGroupName=found["LogGroupName"],
            filterPattern=found["FilterPattern"],
            metricTransformations=[{name[0].lower() + name[1:]: v for name, v in c.items()} for c in changes],
        )
    assert len(logs.describe_metric_filters()["metricFilters"]) == 3


def numbers(node: Any) -> Any:
    """The node with every number as CloudFormation turns it: a parameter is a text."""
    if isinstance(node, dict):
        return {name: int(v) if name == "Period" else numbers(v) for name, v in node.items()}
    return [numbers(entry) for entry in node] if isinstance(node, list) else node
