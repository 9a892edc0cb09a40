"""The figures of what is deployed equal those of the templates, the reference and the modules that decide them."""

import re
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from kanon.cost import deployed, lists
from kanon.cost.workload import sealed_bytes
from kanon.gate import listed_sets, ranges, sealing
from kanon.gate.settings import JoinSettings
from kanon.gate.slots import Layout
from kanon.reports import histogram
from kanon.reports.service import shards
from tests.infrastructure.template import (
    ANONYMOUS,
    CREDENTIALS,
    EDGE,
    FUNCTIONS,
    GATE,
    LISTS,
    OBSERVABILITY,
    REPORT_FUNCTIONS,
    REPORTS,
    ROOT,
    functions,
    of_type,
    read,
)
from tests.unit.gate.test_settings import JOIN

SECRET = "AWS::SecretsManager::Secret"


def sealed(length: int) -> bytes:
    key = X25519PrivateKey.from_private_bytes(bytes(range(32)))
    return sealing.seal(bytes(length), key.public_key(), bytes(32))


def text(path: str) -> str:
    return (ROOT / path).read_text()


def default(parameter: str) -> Any:
    return read()["Parameters"][parameter]["Default"]


def metrics_of(*names: str) -> int:
    """How many metrics the reference names for these functions."""
    rows = re.findall(r"^\| (`.+`) \| (.+) \| \w+ \|", text("docs/reference/metrics.md"), re.MULTILINE)
    return sum(metrics.count("`") // 2 * len({*of.split(", ")} & {*names}) for metrics, of in rows)


def metrics_in_alarms(path: str) -> int:
    """The metrics that the alarms of a template read. Its metric filters make metrics, and read none."""
    alarms = text(path).partition("AWS::CloudWatch::Dashboard")[0]
    return alarms.count("MetricName: ") - alarms.count("MetricNamespace: ")


def functions_of(path: str, names: tuple[str, ...], field: str) -> list[int]:
    found = functions(read(ROOT / path))
    assert found.keys() == {*names}
    return [found[name][field] for name in names]


def store_batch() -> int:
    mappings = of_type(read(ROOT / REPORTS), "AWS::Lambda::EventSourceMapping").values()
    return max(mapping["Properties"]["BatchSize"] for mapping in mappings)


def secrets(conditional: bool) -> int:
    return sum(("Condition" in secret) == conditional for secret in of_type(read(), SECRET).values())


def runs_an_hour() -> int:
    every = re.findall(r"ScheduleExpression: cron\(\d/(\d+) \* \* \* \? \*\)", text(REPORTS))
    return sum(60 // int(minutes) for minutes in every)


def rules_of_the_edge() -> list[int]:
    """Those of any edge, and those with a function URL."""
    rules = read(ROOT / EDGE)["Resources"]["Firewall"]["Properties"]["Rules"]
    conditions = [rule.get("Fn::If", [None])[0] for rule in rules]
    return [conditions.count(condition) for condition in (None, "HasJoinOrigin")]


d = deployed
FIGURES = {
    "memory of the gate": (
        lambda: functions_of(GATE, FUNCTIONS, "MemorySize"), [d.REQUEST_MB, d.EVALUATE_MB, d.REQUEST_MB, d.REQUEST_MB],
    ),
    "memory of reports": (
        lambda: functions_of(REPORTS, REPORT_FUNCTIONS, "MemorySize"),
        [d.REQUEST_MB, d.STORE_MB, d.JOBS_MB, d.WORKER_MB, d.WORKER_MB, d.REQUEST_MB],
    ),
    "timeout of workers": (
        lambda: functions_of(REPORTS, REPORT_FUNCTIONS, "Timeout")[3:5], [d.WORKER_SECONDS, d.WORKER_SECONDS],
    ),
    "timeout of evaluate": (
        lambda: functions(read())["Evaluate"]["Timeout"], d.EVALUATE_SECONDS,
    ),
    "temporary files of evaluate": (
        lambda: functions(read())["Evaluate"].get("EphemeralStorage", {"Size": 512})["Size"], d.TEMPORARY_MB,
    ),
    "periods": (lambda: [int(period) for period in read()["Mappings"]["Periods"]], list(d.PERIODS)),
    "sealed values": (
        lambda: (*map(len, (sealed(1), sealed(30), sealed(31), sealed(512))), listed_sets._SET.size),
        (*map(sealed_bytes, (1, 30, 31, 512)), d.LISTED_SET_BYTES),
    ),
    "read units": (lambda: default("MaxReadUnits"), d.MOST_READ_UNITS),
    "secrets": (lambda: secrets(conditional=False), d.SECRETS),
    "secrets of the edge": (lambda: secrets(conditional=True), d.EDGE_SECRETS),
    "secrets of reports": (lambda: len(of_type(read(ROOT / REPORTS), SECRET)), 1),
    "secrets of the gateway": (lambda: len(of_type(read(ROOT / ANONYMOUS), SECRET)), d.GATEWAY_SECRETS),
    "metrics of the gateway": (lambda: metrics_of("gateway"), d.GATEWAY_METRICS),
    "metrics in alarms of the gateway": (lambda: metrics_in_alarms(ANONYMOUS), d.GATEWAY_ALARM_METRICS),
    "secrets of the issuer": (lambda: len(of_type(read(ROOT / CREDENTIALS), SECRET)) + 1, d.ISSUER_SECRETS),
    "metrics of the issuer": (lambda: metrics_of("issuer"), d.ISSUER_METRICS),
    "metrics in alarms of the issuer": (lambda: metrics_in_alarms(CREDENTIALS), d.ISSUER_ALARM_METRICS),
    "memory of the gateway": (lambda: functions_of(ANONYMOUS, ("Gateway",), "MemorySize"), [d.REQUEST_MB]),
    "memory of the issuer": (lambda: functions_of(CREDENTIALS, ("Issuer",), "MemorySize"), [d.REQUEST_MB]),
    "metrics of lists": (lambda: metrics_of("list", "released"), lists.METRICS),
    "metrics in alarms of lists": (lambda: metrics_in_alarms(LISTS), lists.ALARM_METRICS),
    "memory of lists": (lambda: functions_of(LISTS, ("List", "Released"), "MemorySize"), [lists.LIST_MB, d.REQUEST_MB]),
    "temporary files of lists": (
        lambda: functions(read(ROOT / LISTS))["List"]["EphemeralStorage"]["Size"], lists.LIST_TEMPORARY_MB,
    ),
    "runs of the schedule of lists": (
        lambda: re.findall(r"cron\(\d/(\d+) ", text(LISTS)), [str(60 // lists.RUNS_AN_HOUR)],
    ),
    "days of the history of lists": (lambda: default("ListDays"), lists.LIST_DAYS),
    "hashes of a range file": (lambda: ranges.most_hashes("x"), lists.HASHES_A_FILE),
    "keys": (lambda: [text(path).count("AWS::KMS::Key\n") for path in (GATE, REPORTS)], [d.KEYS, 1]),
    "dashboards": (lambda: text(OBSERVABILITY).count("AWS::CloudWatch::Dashboard\n"), d.DASHBOARDS),
    "metrics": (lambda: metrics_of("join", "query", "evaluate", "access log"), d.METRICS),
    "metrics of reports": (lambda: metrics_of(*map(str.lower, REPORT_FUNCTIONS)), d.REPORT_METRICS),
    "metrics in alarms": (lambda: metrics_in_alarms(OBSERVABILITY), d.ALARM_METRICS),
    "metrics in alarms of reports": (lambda: metrics_in_alarms(REPORTS), d.REPORT_ALARM_METRICS),
    "rules of the edge": (rules_of_the_edge, [d.WAF_RULES, d.URL_RULES]),
    "slots": (
        lambda: JoinSettings.from_environment({**JOIN, "KANON_SLOTS": default("Slots")}).layouts.entries,
        (Layout(d.DEFAULT_SLOTS, 0, d.DEFAULT_PARTITIONS),),
    ),
    "outage allowance": (lambda: default("OutageAllowance"), d.OUTAGE_DAYS * 86_400),
    "time to the tick": (
        # The schedule fires three minutes after the end of a step.
        lambda: default("PublishDelay") - 180 - default("PublishMargin"), d.SECONDS_TO_TICK,
    ),
    "minutes of the schedule": (
        lambda: {period["Cron"][5] for period in read()["Mappings"]["Periods"].values()}, {"3", "*"},
    ),
    "days of a report": (lambda: f"ExpirationInDays: {d.KEPT_DAYS}}}" in text(REPORTS), True),
    "a batch of messages": (store_batch, d.MOST_MESSAGES),
    "runs of the schedules of reports": (runs_an_hour, d.SWEEPS_AN_HOUR),
    "shards": (lambda: (shards.SHARD_BYTES, shards.MOST_SHARDS), (d.SHARD_BYTES, d.MOST_SHARDS)),
    "parts of a summary": (lambda: (histogram.KEYS_A_PARTITION, shards.MOST_KEYS), (d.KEYS_A_PART, d.MOST_KEYS)),
}  # fmt: skip


@pytest.mark.parametrize(("decided", "figure"), FIGURES.values(), ids=list(FIGURES))
def test_a_figure_of_a_bill_equals_what_is_deployed(decided: Any, figure: Any) -> None:
    assert decided() == figure
