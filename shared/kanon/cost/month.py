"""The quantities that AWS charges for a workload in a month, and for other choices."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from kanon.cost.billing import Usage
from kanon.cost.deployed import (
    ALARM_METRICS,
    DASHBOARDS,
    EDGE_SECRETS,
    EVALUATE_MB,
    GATEWAY_ALARM_METRICS,
    GATEWAY_METRICS,
    GATEWAY_SECRETS,
    ISSUER_ALARM_METRICS,
    ISSUER_METRICS,
    ISSUER_SECRETS,
    KEYS,
    LISTER_SECRETS,
    METRICS,
    OUTAGE_DAYS,
    REQUEST_MB,
    SECRETS,
    TEMPORARY_MB,
    URL_RULES,
    WAF_RULES,
)
from kanon.cost.evaluating import SlotStep, evaluate_seconds, evaluation_read_units, written_units
from kanon.cost.workload import (
    FULL_PROCESSOR_MB,
    GB,
    HOUR,
    INDEX_BYTES,
    MONTH_HOURS,
    SECONDS,
    Workload,
    packed_bytes,
)
from kanon.dynamo.batches import KEYS_A_CALL, WRITES_A_CALL
from kanon.dynamo.units import READ_UNIT, read_units, write_units
from kanon.gate.memory import MOST_BYTES as MOST_HELD_BYTES
from kanon.gate.memory import SPREAD as WAIT_SECONDS
from kanon.gate.models import MOST_JOINS
from kanon.gate.true_sets import ENTRY_BYTES as TRUE_BYTES
from kanon.gate.true_sets import MOST_TRUE

STATUS_BYTES = 100
FREE_TEMPORARY_MB = 512
RELAYED_BYTES = 1024 + 48
"""The answer to a join through a relay: padded, with a nonce and a tag."""
TRUE_SHARE = 0.1
"""The share of the queried hashes that are k-anonymous."""


def usage(workload: Workload, measured: Mapping[str, float]) -> Usage:
    """The quantities of a month, by the names in ``prices.json``."""
    w, m, step = workload, measured, SlotStep(workload, measured)
    joins, queries = w.join_requests * SECONDS, w.queries * SECONDS
    slot_steps = w.slots * w.steps
    workers = step.time.workers or 1
    calls = 2 * slot_steps * workers  # repeated deliveries of a message are rare and not counted
    requests = joins + queries + slot_steps * workers + w.steps
    asked = querying(w, m)
    query_reads = (queries * (1 + asked.from_table * w.hashes) + asked.horizons) * read_units(0, consistent=False)
    logged = (
        _join_lines(w, m) * m["join_log_bytes"]
        + joins * m["access_log_bytes"]
        + queries * (m["query_log_bytes"] + m["access_log_bytes"])
        + slot_steps * m["evaluate_log_bytes"]
    )
    objects = step.put + step.got
    answered = joins * (m["header_bytes"] + 4 * w.batch)
    answered += queries * (m["header_bytes"] + 100 + 47 * w.hashes * TRUE_SHARE)
    seconds = w.steps * evaluate_seconds(w, m)
    return {
        "apigateway.http": joins + queries,
        "lambda.requests": requests,
        "lambda.arm64": EVALUATE_MB / 1024 * seconds + SECONDS * request_gb_seconds(w, m),
        "lambda.temporary": (TEMPORARY_MB - FREE_TEMPORARY_MB) / 1024 * seconds,
        "dynamodb.write": w.steps * written_units(w, m),
        "dynamodb.read": w.steps * evaluation_read_units(w) + query_reads,
        "dynamodb.storage": table_bytes(w) / GB,
        "s3.puts": slot_steps * step.put,
        "s3.gets": slot_steps * step.got + asked.objects,
        "s3.storage": step.stored / GB,
        "sqs.requests": calls + m["pollers"] * 60 * MONTH_HOURS,
        "scheduler.events": w.steps,
        "logs.ingested": logged / GB,
        "logs.stored": logged / GB,
        "cloudwatch.metrics": METRICS,
        "cloudwatch.alarms": ALARM_METRICS,
        "cloudwatch.dashboards": DASHBOARDS,
        "kms.keys": KEYS,
        "kms.requests": m["cold_starts"] * requests + m["bucket_key_share"] * (slot_steps * objects + asked.objects),
        "secrets.stored": SECRETS + (LISTER_SECRETS if w.sealed else 0),
        "secrets.requests": 2 * m["cold_starts"] * requests,
        "transfer.out": answered / GB,
    }


def request_gb_seconds(w: Workload, m: Mapping[str, float]) -> float:
    """GB-seconds of join and query per second of load."""
    sealing = m["seal_ms"] * w.batch if w.sealed else 0.0
    if w.batch == 1:
        join = billed_ms(m["join_ms"] + sealing, 1, m)
    else:
        calls = math.ceil(w.batch * w.logged.items / WRITES_A_CALL)
        join = billed_ms(m["batched_join_ms"] * w.batch + sealing, calls, m)
    return REQUEST_MB / 1024 * (w.join_requests * join + w.queries * _query_ms(w, m, querying(w, m).from_table)) / 1000


@dataclass(frozen=True)
class Queried:
    """What queries read in a month.

    Attributes:
        from_table: the share of the hashes that the table answers; the others are answered from memory.
        horizons: horizons that all environments read.
        objects: objects of true sets that they get.
    """

    from_table: float
    horizons: float
    objects: float


def querying(w: Workload, m: Mapping[str, float]) -> Queried:
    """What queries read: after a tick each environment waits, and then gets one object with each request.

    Queries are spread evenly over the environments that are busy at once.
    """
    if not w.queries:
        return Queried(0.0, 0.0, 0.0)
    environments = math.ceil(w.queries * _query_ms(w, m, 1.0) / 1000)
    requests = w.queries * w.parameters.period / environments
    ticks = environments * w.steps * min(1.0, requests)
    changed, held = SlotStep(w, m).shown * w.slots, w.popular * TRUE_BYTES
    if held > min(MOST_HELD_BYTES, w.slots * MOST_TRUE * TRUE_BYTES):
        return Queried(1.0, ticks * w.slots, 0.0)
    waiting = 1 + w.queries / environments * WAIT_SECONDS / 2
    loading = min(changed, max(0.0, requests - waiting))
    asked = changed / w.slots * min(requests, waiting + loading / 2)
    return Queried(min(1.0, max(1.0, asked) / requests), ticks * w.slots, ticks * loading)


def _query_ms(w: Workload, m: Mapping[str, float], from_table: float) -> float:
    """The billed ms of a query."""
    calls = math.ceil((1 + from_table * w.hashes) / KEYS_A_CALL)
    return billed_ms(m["query_ms"] + m["hash_ms"] * w.hashes, calls, m)


def billed_ms(processor_ms: float, calls: int, m: Mapping[str, float]) -> float:
    """The billed ms of a request: its processor time divided by the function's share of a processor, plus its calls."""
    return processor_ms * FULL_PROCESSOR_MB / REQUEST_MB + calls * m["call_ms"]


def _join_lines(w: Workload, m: Mapping[str, float]) -> float:
    """Lines of join in a month: an environment writes one at its first request, and then at most one a minute."""
    joins = w.join_requests * SECONDS
    busy = request_gb_seconds(replace(w, queries=0.0), m) * 1024 / REQUEST_MB
    return min(joins, m["cold_starts"] * joins + math.ceil(busy) * 60 * MONTH_HOURS)


def table_bytes(w: Workload) -> float:
    """Bytes in the tables: the log of the outage allowance, and the statuses of popular sets."""
    allowance = OUTAGE_DAYS * 24 * HOUR / w.parameters.period
    log = w.joins_a_step * allowance * (w.logged.size + w.logged.items * INDEX_BYTES)
    return log + w.popular * (STATUS_BYTES + INDEX_BYTES)


def alternatives(w: Workload, m: Mapping[str, float], more: Usage) -> dict[str, Usage]:
    """Usage of other choices for the same load, by name. ``more`` is added to each of them."""
    base = added(usage(w, m), more)
    edge = _behind_an_edge(base)
    single = {
        "single joins at a function URL, signed": _at_url(base, w, m),
        "with CloudFront and WAF in front, single joins at a function URL": {
            **_at_url(edge, w, m), "waf.rules": edge["waf.rules"] + URL_RULES
        },
        "single joins through a relay": _through_a_relay(base, w, m),
        "single joins with credentials": _with_credentials(base, 1, w, m),
        "single joins through a relay, with credentials": _with_credentials(_through_a_relay(base, w, m), 2, w, m),
    }  # fmt: skip
    return {
        **{f"batches of {size}" if size > 1 else "one join a request": added(usage(replace(w, batch=size), m), more)
           for size in (1, 10, 100, MOST_JOINS)},
        "REST API instead of HTTP API": {**base, "apigateway.http": 0.0, "apigateway.rest": base["apigateway.http"]},
        "with CloudFront and WAF in front": edge,
        **(single if w.batch == 1 else {}),
        "one item a client and hour, counted by queries (no privacy)": added(counted_by_queries(w, m), more),
    }  # fmt: skip


def _behind_an_edge(base: Usage) -> dict[str, float]:
    return {
        **base,
        "cloudfront.requests": base["apigateway.http"],
        "cloudfront.out": base["transfer.out"],
        "transfer.out": 0.0,
        "waf.acls": 1,
        "waf.rules": WAF_RULES,
        "secrets.stored": base["secrets.stored"] + EDGE_SECRETS,
        "waf.requests": base["apigateway.http"],
    }


def _at_url(base: Usage, w: Workload, m: Mapping[str, float]) -> dict[str, float]:
    """The usage without API Gateway and its access log for joins."""
    joins = w.join_requests * SECONDS
    logged = joins * m["access_log_bytes"] / GB
    return added(base, {"apigateway.http": -joins, "logs.ingested": -logged, "logs.stored": -logged})


def added(one: Usage, other: Usage) -> dict[str, float]:
    """The sum of two usages."""
    return {name: one.get(name, 0.0) + other.get(name, 0.0) for name in {**one, **other}}


def counted_by_queries(w: Workload, m: Mapping[str, float]) -> Usage:
    """A design without evaluation: a join puts an item (key: set; hour and client), a query counts the items of each
    set.

    Its answers are exact counts or thresholds without noise: they protect nobody. All sets with items are queried
    equally often. A query makes one Query call for each of its sets.
    """
    base = usage(w, m)
    window = w.parameters.window
    item = packed_bytes(1)
    rows = w.joins_a_step * window
    alive = w.popularity.touched(rows) or 1.0
    pages = max(1.0, rows / alive * item / READ_UNIT)
    hashes = w.queries * SECONDS * w.hashes
    join_only = replace(w, queries=0.0)
    query_ms = billed_ms(m["query_ms"] * w.hashes, w.hashes, m)  # each call costs as much as a minimal request
    gb_seconds = SECONDS * (request_gb_seconds(join_only, m) + REQUEST_MB / 1024 * w.queries * query_ms / 1000)
    return {
        **base,
        "lambda.arm64": gb_seconds,
        "lambda.requests": (w.join_requests + w.queries) * SECONDS,
        "dynamodb.write": w.joins * SECONDS * write_units(item),
        "dynamodb.read": hashes * pages / 2,
        "dynamodb.storage": rows * (item + INDEX_BYTES) / GB,
        **dict.fromkeys(("lambda.temporary", "s3.puts", "s3.gets", "s3.storage"), 0.0),
        "sqs.requests": 0.0,
        "scheduler.events": 0.0,
    }


def _through_a_relay(base: Usage, w: Workload, m: Mapping[str, float]) -> dict[str, float]:
    """The usage with a call of the gateway for each join: it waits for join, and its answers are padded."""
    joins = w.join_requests * SECONDS
    waited = billed_ms(m["join_ms"], 1, m) + m["call_ms"]
    seconds = joins * (billed_ms(m["gateway_ms"], 0, m) + waited) / 1000
    logged, secrets = joins * m["query_log_bytes"] / GB, GATEWAY_SECRETS * m["cold_starts"] * joins
    return added(
        base,
        {
            "lambda.requests": joins,
            "lambda.arm64": REQUEST_MB / 1024 * seconds,
            "logs.ingested": logged,
            "logs.stored": logged,
            "cloudwatch.metrics": GATEWAY_METRICS,
            "cloudwatch.alarms": GATEWAY_ALARM_METRICS,
            "kms.requests": secrets,
            "secrets.stored": GATEWAY_SECRETS,
            "secrets.requests": secrets,
            "transfer.out": joins * RELAYED_BYTES / GB,
        },
    )


def _with_credentials(base: Usage, waiting: int, w: Workload, m: Mapping[str, float]) -> dict[str, float]:
    """The usage with a presentation in each join: join verifies it, and so many functions wait for that.

    The issuer is in it, and no enrolment.
    """
    verified = billed_ms(m["join_ms"] + m["verify_ms"], 1, m) - billed_ms(m["join_ms"], 1, m)
    seconds = waiting * w.join_requests * SECONDS * verified / 1000
    secrets = m["cold_starts"] * w.join_requests * SECONDS  # join reads one more
    return added(
        base,
        {
            "lambda.arm64": REQUEST_MB / 1024 * seconds,
            "cloudwatch.metrics": ISSUER_METRICS,
            "cloudwatch.alarms": ISSUER_ALARM_METRICS,
            "kms.requests": secrets,
            "secrets.stored": ISSUER_SECRETS,
            "secrets.requests": secrets,
        },
    )
