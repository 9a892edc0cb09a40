"""The alarms watch the service levels and use only existing metrics; each has its entry in the runbook."""

import copy
import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import boto3
import pytest
from moto import mock_aws

from kanon.local.template import Template
from tests.infrastructure import reports_rules
from tests.infrastructure.template import ROOT, Document, of_type, properties, read, strings
from tests.monitor.allowed_output import METRICS

PATH = ROOT / "infra" / "observability.yaml"
RUNBOOK = ROOT / "docs" / "guides" / "operate.md"
METRICS_PAGE = ROOT / "docs" / "reference" / "metrics.md"
DIMENSIONS = {"service", "FunctionName", "TableName", "QueueName", "ApiId"}
OF_AWS = {
    "AWS/Lambda": {"Errors", "Throttles", "Duration"},
    "AWS/SQS": {"ApproximateNumberOfMessagesVisible", "ApproximateAgeOfOldestMessage"},
    "AWS/DynamoDB": {"WriteThrottleEvents", "ReadThrottleEvents", "ConsumedWriteCapacityUnits"},
    "AWS/ApiGateway": {"Count", "4xx", "5xx", "Latency"},
}
EXTERNAL = {"AWS::Region"}


def document() -> Document:
    return read(PATH)


def alarms(watched: Document) -> dict[str, Any]:
    return {n: r["Properties"] for n, r in of_type(watched, "AWS::CloudWatch::Alarm").items()}


def metrics(alarm: Any) -> Iterator[Any]:
    """The metrics an alarm reads: namespace, name and dimensions of each."""
    if "MetricName" in alarm:
        yield alarm
    for entry in alarm.get("Metrics", []):
        if "MetricStat" in entry:
            yield entry["MetricStat"]["Metric"]


def headings(text: str) -> list[str]:
    """The entries of the runbook."""
    section = text.partition("\n## Runbook\n")[2].partition("\n## ")[0]
    return re.findall(r"^### (\w+)$", section, re.MULTILINE)


def emitted() -> dict[str, set[str]]:
    """The metrics each function emits, as its source names them."""
    return {
        name: set(re.findall(r'"([A-Z][a-z]+(?:[A-Z][a-z]+)+)"', (ROOT / f"functions/{name}/app.py").read_text()))
        for name in ("join", "evaluate", "query")
    }


def alarms_without_an_entry(watched: Document, runbook: str) -> list[str]:
    return sorted({*alarms(watched), *alarms(reports_rules.read())} ^ set(headings(runbook)))


def unknown_metrics(watched: Document) -> Iterator[str]:
    """Metrics that no function emits, or with a dimension that they do not have."""
    filtered = {
        change["MetricName"]
        for found in of_type(watched, "AWS::Logs::MetricFilter").values()
        for change in found["Properties"]["MetricTransformations"]
    }
    for name, alarm in alarms(watched).items():
        for metric in metrics(alarm):
            dimensions = {d["Name"]: d["Value"] for d in metric.get("Dimensions", [])}
            if metric["Namespace"] != {"Ref": "Namespace"}:
                known = OF_AWS.get(metric["Namespace"], set())
            elif dimensions:
                known = emitted().get(dimensions.get("service", ""), set())
            else:
                known = filtered
            if metric["MetricName"] not in known or set(dimensions) - DIMENSIONS:
                yield f"{name}: {metric['MetricName']} {dimensions}"


def badly_behaved_alarms(watched: Document) -> Iterator[str]:
    for name, alarm in alarms(watched).items():
        if "AlarmName" in alarm:
            yield f"{name} has a fixed name"
        if alarm.get("TreatMissingData") not in ("breaching", "notBreaching"):
            yield f"{name} does not say what missing data mean"
        for word in ("AlarmActions", "OKActions"):
            if "Topic" not in json.dumps(alarm.get(word, "")):
                yield f"{name} tells nobody ({word})"
        periods = [alarm["Period"]] if "Period" in alarm else []
        periods += [entry["MetricStat"]["Period"] for entry in alarm.get("Metrics", []) if "MetricStat" in entry]
        lengths = [int(p) for period in periods for p in (step_lengths() if isinstance(period, dict) else [period])]
        for length in lengths:
            if length % 60 or length * alarm["EvaluationPeriods"] > (86_400 if length < 3600 else 604_800):
                yield f"{name} looks at periods CloudWatch refuses"
        ids = [entry["Id"] for entry in alarm.get("Metrics", [])]
        for entry in alarm.get("Metrics", []):
            used = set(re.findall(r"\b[a-z]\w*\b", entry.get("Expression", "")))
            if used - set(ids):
                yield f"{name} calculates with {used - set(ids)}"
        if sum(entry.get("ReturnData", True) for entry in alarm.get("Metrics", [])) != bool(ids):
            yield f"{name} does not judge one series"


HOUR, FIVE_MINUTES, STEP = 3600, 300, {"Ref": "Period"}
JUDGED: dict[str, tuple[set[str], Any, int, float]] = {
    "JoinsRefused": ({"Sum"}, HOUR, 1, 0.1),
    "PublishLate": ({"p99"}, STEP, 1, 0),
    "EvaluationLate": ({"Maximum"}, STEP, 2, 0),  # one slot that is behind is enough
    "EvaluationStopped": ({"Sum"}, FIVE_MINUTES, 1, 0),
    "DeadLettersWaiting": ({"Maximum"}, FIVE_MINUTES, 1, 0),
    "LostEventsWaiting": ({"Maximum"}, FIVE_MINUTES, 1, 0),
    "QueriesRefused": ({"Sum"}, FIVE_MINUTES, 3, 0),
    "FunctionErrors": ({"Sum"}, FIVE_MINUTES, 1, 0),
    "FunctionsThrottled": ({"Sum"}, FIVE_MINUTES, 3, 0),
    "TablesThrottled": ({"Sum"}, FIVE_MINUTES, 3, 0),
    "RequestsThrottled": ({"Sum"}, FIVE_MINUTES, 3, 0),
}
"""How each alarm judges: the statistics of its metrics, their period in seconds, periods in a row, threshold."""


def otherwise_judged(watched: Document) -> Iterator[str]:
    """Alarms with another statistic, period or threshold than theirs."""
    for name in sorted(alarms(watched).keys() | JUDGED.keys()):
        alarm = alarms(watched).get(name, {})
        figures = (
            [alarm]
            if "MetricName" in alarm
            else [m["MetricStat"] for m in alarm.get("Metrics", []) if "MetricStat" in m]
        )
        words = ("Stat", "Statistic", "ExtendedStatistic")
        statistics = {figure[word] for figure in figures for word in words if word in figure}
        periods = [figure["Period"] for figure in figures]
        found = (statistics, periods[:1], alarm.get("EvaluationPeriods"), alarm.get("Threshold"))
        kind, period, times, threshold = JUDGED.get(name, (set(), None, 0, 0))
        if found != (kind, [period], times, threshold) or any(p != period for p in periods):
            yield f"{name} is judged by {found}"
        if alarm.get("ComparisonOperator") != "GreaterThanThreshold":
            yield f"{name} does not compare with greater-than"
        if alarm.get("DatapointsToAlarm", times) != times:
            yield f"{name} may overlook a period"
        if "ExtendedStatistic" in alarm and alarm.get("EvaluateLowSampleCountPercentile") != "evaluate":
            yield f"{name} is silent while there are few slots"


def step_lengths() -> list[str]:
    lengths: list[str] = read()["Parameters"]["Period"]["AllowedValues"]
    return lengths


def what_alarms_do_not_see(watched: Document, service: Document) -> Iterator[str]:
    """Functions and tables without a cause alarm."""
    wanted = {
        "FunctionErrors": of_type(service, "AWS::Serverless::Function"),
        "FunctionsThrottled": of_type(service, "AWS::Serverless::Function"),
        "TablesThrottled": of_type(service, "AWS::DynamoDB::Table"),
    }
    for name, things in wanted.items():
        seen = {text for metric in metrics(alarms(watched)[name]) for text in strings(metric["Dimensions"])}
        (expression,) = (e["Expression"] for e in alarms(watched)[name]["Metrics"] if "Expression" in e)
        added = set(re.findall(r"FILL\((\w+), 0\)", expression))
        if added != {entry["Id"] for entry in alarms(watched)[name]["Metrics"] if "MetricStat" in entry}:
            yield f"{name} does not add up what it reads"
        yield from (f"{name} does not see {thing}" for thing in things if thing not in seen)


def filters_that_find_nothing(watched: Document, service: Document) -> Iterator[str]:
    """Metric filters that read what the access log does not have, or other joins than the API's."""
    logged = json.loads(properties(service, "Stage")["AccessLogSettings"]["Format"])
    routes = [r["Properties"] for r in of_type(service, "AWS::ApiGatewayV2::Route").values()]
    joins = {r["RouteKey"] for r in routes if "JoinIntegration" in json.dumps(r["Target"])}
    for name, found in of_type(watched, "AWS::Logs::MetricFilter").items():
        pattern = found["Properties"]["FilterPattern"]
        if set(re.findall(r"\$\.(\w+)", pattern)) - set(logged):
            yield f"{name} reads a field that is not logged"
        named = set(re.findall(r'routeKey = "([^"]+)"', pattern))
        if named != (joins if "Join" in name else set()):
            yield f"{name} counts {named}"


def dashboard(watched: Document) -> Any:
    """The dashboard's body with every variable replaced by its name."""
    body = properties(watched, "Dashboard")["DashboardBody"]["Fn::Sub"]
    known = {*watched["Parameters"], *watched["Resources"], *EXTERNAL}

    def value(match: re.Match[str]) -> str:
        name = match[1]
        assert name.removesuffix(".Arn") in known, name
        return "60" if name == "Period" else name

    return json.loads(re.sub(r"\$\{([^}]+)\}", value, body))


def test_every_alarm_has_an_entry_in_the_runbook_and_every_entry_an_alarm() -> None:
    assert alarms_without_an_entry(document(), RUNBOOK.read_text()) == []


def test_alarms_use_only_metrics_that_are_emitted() -> None:
    assert list(unknown_metrics(document())) == []


def test_alarms_are_well_formed() -> None:
    assert list(badly_behaved_alarms(document())) == []


def test_alarms_have_their_documented_statistic_period_and_threshold() -> None:
    assert list(otherwise_judged(document())) == []


def test_cause_alarms_cover_every_function_and_table() -> None:
    assert list(what_alarms_do_not_see(document(), read())) == []


def test_metric_filters_read_what_the_access_log_writes() -> None:
    assert list(filters_that_find_nothing(document(), read())) == []


def test_two_alarms_watch_exactly_the_service_levels() -> None:
    joins, slots = alarms(document())["JoinsRefused"], alarms(document())["PublishLate"]
    percent = {e["Id"]: e["Expression"] for e in joins["Metrics"] if "Expression" in e}
    just_kept = {"accepted": 999, "refused": 1, "requestsaccepted": 0, "requestsrefused": 0}
    assert _percentage(percent, just_kept) == pytest.approx(joins["Threshold"])
    before_the_function = {"accepted": 0, "refused": 0, "requestsaccepted": 998, "requestsrefused": 2}
    assert _percentage(percent, before_the_function) == pytest.approx(2 * joins["Threshold"])
    both = {"accepted": 9, "refused": 1, "requestsaccepted": 1, "requestsrefused": 1}
    assert _percentage(percent, both) == pytest.approx(50)
    assert joins["ComparisonOperator"] == "GreaterThanThreshold"
    assert {e["MetricStat"]["Period"] for e in joins["Metrics"] if "MetricStat" in e} == {3600}
    assert (slots["MetricName"], slots["ExtendedStatistic"], slots["Threshold"]) == ("PublishLag", "p99", 0)
    assert slots["Period"] == {"Ref": "Period"}
    section = RUNBOOK.read_text().partition("\n## Runbook\n")[0]
    assert set(re.findall(r"\(#(\w+)\)", section)) == {"joinsrefused", "publishlate"}


def _percentage(expressions: dict[str, str], figures: dict[str, int]) -> float:
    """The value of ``percent``: MAX of quotients of sums of FILLs. As CloudWatch does, it leaves out a divisor of 0."""

    def quotient(expression: str) -> float | None:
        plain = re.sub(r"FILL\((\w+), 0\)", lambda match: str(figures[match[1]]), expression)
        found = re.fullmatch(r"100 \* (\d+) / \((\d+) \+ (\d+)\)", plain)
        assert found, expression
        above, one, other = map(int, found.groups())
        return 100 * above / (one + other) if one + other else None

    found = re.fullmatch(r"MAX\(\[(\w+), (\w+)\]\)", expressions["percent"])
    assert found
    return max(value for name in found.groups() if (value := quotient(expressions[name])) is not None)


def test_missing_evaluation_data_counts_as_late() -> None:
    assert alarms(document())["EvaluationLate"]["TreatMissingData"] == "breaching"


def test_the_dashboard_shows_every_alarm() -> None:
    (first, *rest) = dashboard(document())["widgets"]
    assert {name.removesuffix(".Arn") for name in first["properties"]["alarms"]} == set(alarms(document()))
    assert rest
    places = [(w["x"], w["y"]) for w in [first, *rest]]
    assert len(set(places)) == len(places)


def test_the_template_passes_every_name_that_the_alarms_need() -> None:
    told = properties(read(), "Observability")["Parameters"]
    assert set(told) == set(document()["Parameters"])
    namespace = read()["Globals"]["Function"]["Environment"]["Variables"]["POWERTOOLS_METRICS_NAMESPACE"]
    assert told["Namespace"] == namespace
    assert "${AWS::StackName}" in strings(namespace)[0], "two stacks of one account would share their metrics"
    assert properties(read(), "Observability")["TemplateURL"] == str(PATH.relative_to(ROOT))


def test_the_metrics_page_describes_every_metric_of_the_service() -> None:
    rows = METRICS_PAGE.read_text().partition("\n| metric | of |")[2].partition("\n\n")[0].splitlines()[2:]
    described = {name for row in rows for name in re.findall(r"`(\w+)`", row.split("|")[1])}
    filtered = {
        change["MetricName"]
        for found in of_type(document(), "AWS::Logs::MetricFilter").values()
        for change in found["Properties"]["MetricTransformations"]
    }
    assert described == {*METRICS, *filtered}


def test_links_of_the_runbook_have_a_target() -> None:
    text = RUNBOOK.read_text()
    links = re.findall(r"\]\(([\w./-]*)#([\w-]+)\)", text)
    assert links
    for page, anchor in links:
        target = text if not page else (RUNBOOK.parent / page).read_text()
        found = [h.lower().replace(" ", "-") for h in re.findall(r"^#+ (.+)$", target, re.MULTILINE)]
        assert anchor in found


def change(name: str, **values: Any) -> Callable[[Document], None]:
    return lambda watched: properties(watched, name).update(values)


def first_metric(name: str, **values: Any) -> Callable[[Document], None]:
    return lambda watched: next(metrics(properties(watched, name))).update(values)


def unsummed(watched: Document) -> None:
    sums = properties(watched, "FunctionErrors")["Metrics"][0]
    sums["Expression"] = sums["Expression"].replace(", FILL(query, 0)", "")


def blind(watched: Document) -> None:
    entries = properties(watched, "TablesThrottled")["Metrics"]
    entries[:] = [e for e in entries if e["Id"] != "marks"]
    entries[0]["Expression"] = entries[0]["Expression"].replace(", FILL(marks, 0)", "")


CHECKS: dict[str, Callable[[Document], Any]] = {
    "entry": lambda watched: alarms_without_an_entry(watched, RUNBOOK.read_text()),
    "metric": unknown_metrics,
    "form": badly_behaved_alarms,
    "judgement": otherwise_judged,
    "sight": lambda watched: what_alarms_do_not_see(watched, read()),
    "filter": lambda watched: filters_that_find_nothing(watched, read()),
}


@pytest.mark.parametrize(
    ("check", "violation"),
    [
        ("entry", lambda watched: watched["Resources"].update(New=watched["Resources"]["PublishLate"])),
        ("entry", lambda watched: watched["Resources"].pop("EvaluationLate")),
        ("metric", change("PublishLate", MetricName="PublishDelay")),
        ("metric", change("PublishLate", Dimensions=[{"Name": "service", "Value": "query"}])),
        ("metric", first_metric("JoinsRefused", Dimensions=[{"Name": "set", "Value": "x"}])),
        ("metric", change("RequestsThrottled", MetricName="Throttled")),
        ("form", change("EvaluationLate", AlarmName="late")),
        ("form", change("EvaluationLate", TreatMissingData="ignore")),
        ("form", change("EvaluationLate", AlarmActions=[])),
        ("form", change("EvaluationLate", EvaluationPeriods=8)),
        ("form", change("QueriesRefused", Period=45)),
        ("form", lambda watched: properties(watched, "JoinsRefused")["Metrics"].pop()),
        ("form", lambda watched: properties(watched, "JoinsRefused")["Metrics"][1].pop("ReturnData")),
        ("judgement", change("EvaluationLate", Statistic="Minimum")),
        ("judgement", change("DeadLettersWaiting", Statistic="Minimum")),
        ("judgement", change("LostEventsWaiting", Statistic="Average")),
        ("judgement", change("EvaluationStopped", Statistic="Average")),
        ("judgement", change("PublishLate", ExtendedStatistic="p50")),
        ("judgement", change("PublishLate", EvaluateLowSampleCountPercentile="ignore")),
        ("judgement", change("EvaluationLate", Period=60)),
        ("judgement", change("EvaluationLate", EvaluationPeriods=1)),
        ("judgement", change("QueriesRefused", DatapointsToAlarm=1)),
        ("judgement", change("FunctionErrors", Threshold=10)),
        ("judgement", change("FunctionErrors", ComparisonOperator="LessThanThreshold")),
        (
            "judgement",
            lambda watched: properties(watched, "JoinsRefused")["Metrics"][3]["MetricStat"].update(Stat="Average"),
        ),
        (
            "judgement",
            lambda watched: properties(watched, "TablesThrottled")["Metrics"][-1]["MetricStat"].update(Period=60),
        ),
        ("judgement", lambda watched: watched["Resources"].pop("EvaluationLate")),
        ("sight", unsummed),
        ("sight", blind),
        ("filter", change("RequestsThrottledInLog", FilterPattern='{ $.path = "x" }')),
        ("filter", change("JoinRequestsRefusedInLog", FilterPattern='{ $.routeKey = "POST /v1:query" }')),
    ],
)
def test_a_planted_violation_is_found(check: str, violation: Callable[[Document], Any]) -> None:
    spoiled = copy.deepcopy(document())
    violation(spoiled)
    assert spoiled != document()
    assert list(CHECKS[check](spoiled))


@mock_aws
def test_cloudwatch_accepts_alarms_dashboard_and_filters() -> None:
    # No emulator deploys alarms that calculate; their properties are what the calls take.
    given = {name: "3600" if name == "Period" else f"the-{name}" for name in document()["Parameters"]}
    given["AlarmEmail"] = "somebody@example.org"
    template = Template(document(), given, "alarms")
    aws = boto3.Session("x", "x", region_name="eu-west-1")
    cloudwatch, logs = aws.client("cloudwatch"), aws.client("logs")
    for alarm in template.resources("AWS::CloudWatch::Alarm"):
        cloudwatch.put_metric_alarm(AlarmName=alarm.logical_id, **numbers(alarm.properties))
    taken = {alarm["AlarmName"]: alarm for alarm in cloudwatch.describe_alarms()["MetricAlarms"]}
    assert set(taken) == set(alarms(document()))
    assert taken["EvaluationLate"]["Period"] == 3600
    assert all(alarm["AlarmActions"] for alarm in taken.values())
    (shown,) = template.resources("AWS::CloudWatch::Dashboard")
    cloudwatch.put_dashboard(**shown.properties)
    logs.create_log_group(logGroupName="the-AccessLogs")
    for found in template.resources("AWS::Logs::MetricFilter"):
        changes = found.properties["MetricTransformations"]
        logs.put_metric_filter(
            filterName=found.logical_id,
            logGroupName=found.properties["LogGroupName"],
            filterPattern=found.properties["FilterPattern"],
            metricTransformations=[{name[0].lower() + name[1:]: v for name, v in c.items()} for c in changes],
        )
    assert len(logs.describe_metric_filters()["metricFilters"]) == 3


def numbers(node: Any) -> Any:
    """The node with every number as CloudFormation turns it: a parameter is a text."""
    if isinstance(node, dict):
        return {name: int(v) if name == "Period" else numbers(v) for name, v in node.items()}
    return [numbers(entry) for entry in node] if isinstance(node, list) else node
