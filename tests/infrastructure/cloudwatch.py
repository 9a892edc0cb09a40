"""CloudWatch's judgement of an alarm, on samples that a test gives or that a stack emitted."""

import ast
import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from math import ceil
from typing import Any

Metric = tuple[str, str, frozenset[tuple[str, str]]]
"""Namespace, name and dimensions."""
Samples = Mapping[Metric, list[tuple[float, float]]]
"""By metric: how many seconds ago, and the value."""

STATISTICS: dict[str, Callable[[list[float]], float]] = {
    "Sum": sum,
    "Maximum": max,
    "Minimum": min,
    "Average": lambda values: sum(values) / len(values),
    "p99": lambda values: sorted(values)[ceil(0.99 * len(values)) - 1],
}


def metric(given: Any) -> Metric:
    """The metric of a resolved alarm or of one of its entries."""
    dimensions = frozenset((one["Name"], one["Value"]) for one in given.get("Dimensions", []))
    return given["Namespace"], given["MetricName"], dimensions


def metrics(alarm: Any) -> Iterator[tuple[Metric, Any]]:
    """The metrics that a resolved alarm reads, each with the part that has its statistic and period."""
    if "MetricName" in alarm:
        yield metric(alarm), alarm
    for entry in alarm.get("Metrics", []):
        if "MetricStat" in entry:
            yield metric(entry["MetricStat"]["Metric"]), entry["MetricStat"]


def period(alarm: Any) -> int:
    """The seconds of one period; an alarm has one for all of its metrics."""
    (seconds,) = {int(figures["Period"]) for _, figures in metrics(alarm)}
    return seconds


def lasts(alarm: Any) -> int:
    """For how many seconds the cause must last."""
    return period(alarm) * int(alarm["EvaluationPeriods"])


def state(alarm: Any, samples: Samples) -> str:
    """``OK`` or ``ALARM``, now."""
    assert alarm["ComparisonOperator"] == "GreaterThanThreshold"
    assert alarm["TreatMissingData"] in ("breaching", "notBreaching")
    missing = alarm["TreatMissingData"] == "breaching"
    periods, seconds = int(alarm["EvaluationPeriods"]), period(alarm)
    needed = int(alarm.get("DatapointsToAlarm", periods))
    values = [_value(alarm, samples, seconds * number, seconds * (number + 1)) for number in range(periods)]
    breaching = sum(missing if value is None else value > float(alarm["Threshold"]) for value in values)
    return "ALARM" if breaching >= needed else "OK"


def _value(alarm: Any, samples: Samples, since: float, until: float) -> float | None:
    """The value of one period; None if there are no data."""

    def read(given: Metric, figures: Any) -> float | None:
        values = [value for ago, value in samples.get(given, []) if since <= ago < until]
        statistic = STATISTICS[figures.get("Stat") or figures.get("Statistic") or figures["ExtendedStatistic"]]
        return statistic(values) if values else None

    if "MetricName" in alarm:
        return read(metric(alarm), alarm)
    found: dict[str, float | None] = {}
    (judged,) = (entry["Id"] for entry in alarm["Metrics"] if entry.get("ReturnData", True))
    for entry in alarm["Metrics"]:
        if "MetricStat" in entry:
            found[entry["Id"]] = read(metric(entry["MetricStat"]["Metric"]), entry["MetricStat"])
    expressions = {entry["Id"]: entry["Expression"] for entry in alarm["Metrics"] if "Expression" in entry}
    return _calculate(ast.parse(expressions[judged], mode="eval").body, found, expressions)


def _calculate(node: ast.AST, found: Mapping[str, float | None], expressions: Mapping[str, str]) -> Any:
    """The value of an expression; None if it is missing or divides by 0."""

    def value(part: ast.AST) -> Any:
        return _calculate(part, found, expressions)

    match node:
        case ast.Constant(number):
            return number
        case ast.Name(name) if name in expressions:
            return value(ast.parse(expressions[name], mode="eval").body)
        case ast.Name(name):
            return found[name]
        case ast.List(parts):
            return [value(part) for part in parts]
        case ast.Call(ast.Name("FILL"), [part, ast.Constant(filling)]):
            given = value(part)
            return filling if given is None else given
        case ast.Call(ast.Name("SUM" | "MAX" as name), [part]):
            given = [one for one in value(part) if one is not None]
            return (sum if name == "SUM" else max)(given) if given else None
        case ast.BinOp(left, operator, right):
            one, other = value(left), value(right)
            if one is None or other is None or (isinstance(operator, ast.Div) and not other):
                return None
            return _OPERATORS[type(operator)](one, other)
    raise ValueError(f"not an expression of these alarms: {ast.dump(node)}")


_OPERATORS: dict[type, Callable[[float, float], float]] = {
    ast.Add: lambda one, other: one + other,
    ast.Mult: lambda one, other: one * other,
    ast.Div: lambda one, other: one / other,
}


def emitted(log: str) -> dict[Metric, list[tuple[float, float]]]:
    """The samples that functions wrote to their log in the embedded metric format, as of now."""
    found = defaultdict(list)
    for line in log.splitlines():
        if not line.startswith("{") or '"_aws"' not in line:
            continue
        entry = json.loads(line)
        for described in entry["_aws"]["CloudWatchMetrics"]:
            (names,) = described["Dimensions"]
            dimensions = frozenset((name, entry[name]) for name in names)
            for one in described["Metrics"]:
                key = described["Namespace"], one["Name"], dimensions
                found[key] += [(0.0, float(value)) for value in entry[one["Name"]]]
    return dict(found)


def matches(pattern: str, line: Mapping[str, str]) -> bool:
    """Whether a filter pattern of CloudWatch Logs takes a line: comparisons of fields with texts, && and ||."""

    def compare(found: re.Match[str]) -> str:
        given, text = line[found[1]], found[2]
        return str(given.startswith(text[:-1]) if text.endswith("*") else given == text)

    text = re.sub(r'\$\.(\w+) = "([^"]*)"', compare, pattern.strip().removeprefix("{").removesuffix("}"))
    return _truth(ast.parse(text.replace("&&", " and ").replace("||", " or ").strip(), mode="eval").body)


def _truth(node: ast.AST) -> bool:
    match node:
        case ast.Constant(bool(given)):
            return given
        case ast.BoolOp(operator, parts):
            return (all if isinstance(operator, ast.And) else any)(map(_truth, parts))
    raise ValueError(f"not a pattern of these filters: {ast.dump(node)}")
