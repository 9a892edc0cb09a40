"""The quantities that AWS charges for a workload in a month."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache, cached_property

from kanon.cost.billing import CostError, Usage, check_between
from kanon.cost.deployed import (
    ALARM_METRICS,
    DASHBOARDS,
    DEFAULT_PARTITIONS,
    DEFAULT_SLOTS,
    EDGE_SECRETS,
    EVALUATE_MB,
    KEYS,
    METRICS,
    OUTAGE_DAYS,
    REQUEST_MB,
    SECRETS,
    WAF_RULES,
)
from kanon.cost.popularity import Popularity
from kanon.dynamo.batches import KEYS_A_CALL, WRITES_A_CALL
from kanon.dynamo.units import READ_UNIT, item_size, read_units, write_units
from kanon.gate.mechanism.parameters import Parameters
from kanon.gate.models import MOST_HASHES, MOST_JOINS
from kanon.gate.parts import BYTES_A_SET
from kanon.gate.slots import Layout
from kanon.gate.storage.aws.step_log import Row, pack, pack_all

HOUR = 3600
MONTH_HOURS = 730
SECONDS = MONTH_HOURS * HOUR
"""Seconds of a month."""
GB = 1e9
INDEX_BYTES = 100
"""Bytes that DynamoDB adds to each stored item."""
FULL_PROCESSOR_MB = 1769
"""Memory at which Lambda gives a function one whole processor; less memory gives a proportional share."""
FIXED_WRITES = 5
"""Writes per slot and step: the lease, the comparison of the stamps, the horizon, the stamp of Members, the mark."""
FIXED_READS = 3
"""Read units per slot and step, besides one for each partition of the log: table ids, stamps, the mark for the lag."""
STATUS_BYTES = 100
TRUE_SHARE = 0.1
"""The share of the queried hashes that are k-anonymous."""
SLOTS = tuple(1 << bits for bits in range(9))
PARTITIONED = Layout(1, 0, 1)


@dataclass(frozen=True)
class Logged:
    """Write units, bytes and items of a join in the log, as a mean over the joins of a batch."""

    units: float
    size: float
    items: float


@cache
def logged(batch: int, slots: int) -> Logged:
    """The cost of a join in the log. A batch's only join in a slot is a row; several are one packed item.

    The slots of a batch's joins are independent, so their number in a slot has a binomial distribution. All joins of a
    batch are of different clients: a packed item holds one join per client.
    """
    units = size = items = 0.0
    for count in range(1, batch + 1):
        each = math.comb(batch, count) * (slots - 1) ** (batch - count) / slots**batch * slots
        stored = packed_bytes(count)
        units += each * write_units(stored)
        size += each * stored
        items += each
    return Logged(units / batch, size / batch, items / batch)


def packed_bytes(count: int) -> int:
    """Bytes of ``count`` joins of one batch in one slot."""
    if count == 1:
        return item_size(pack(_row(1), PARTITIONED))
    two, three = (item_size(pack_all([_row(n) for n in range(number)], PARTITIONED)) for number in (2, 3))
    return two + (count - 2) * (three - two)


def _row(number: int) -> Row:
    """A row with a token of 16 bits."""
    return Row(480_000, number.to_bytes(32, "big"), 65_535, "fledge", 10**9)


@dataclass(frozen=True)
class Workload:
    """A steady load.

    Args:
        parameters: the type of the sets.
        joins: joins per second, each of a client that the set does not count yet.
        batch: joins per request.
        queries: queries per second.
        hashes: hashes per query.
        sets: sets that joins go to.
        exponent: popularity of the sets by Zipf's law; 0 gives all sets the same share.
        touched: touched sets per step, if counted; otherwise computed from the popularity.
        slots: slots of the deployment.
        partitions: partitions of each slot in the log.

    Raises:
        CostError: a value is outside the limits of the service or the model.
    """

    parameters: Parameters
    joins: float
    batch: int = 1
    queries: float = 0.0
    hashes: int = 100
    sets: int = 1_000_000
    exponent: float = 1.1
    touched: float | None = None
    slots: int = DEFAULT_SLOTS
    partitions: int = DEFAULT_PARTITIONS

    def __post_init__(self) -> None:
        check_between(
            (self.joins, "joins", 0, 1e9), (self.batch, "batch", 1, MOST_JOINS), (self.queries, "queries", 0, 1e9),
            (self.hashes, "hashes", 1, MOST_HASHES), (self.sets, "sets", 1, 10**12),
            (self.exponent, "exponent", 0, 4),
        )  # fmt: skip
        if self.touched is not None and not 0 <= self.touched <= min(self.sets, self.joins_a_step):
            raise CostError(
                f"touched must lie between 0 and the smaller of sets ({self.sets:,}) and joins a step"
                f" ({self.joins_a_step:,.0f}), not {self.touched:,.0f}"
            )
        if self.slots not in SLOTS:
            raise CostError(f"slots must be a power of two up to {SLOTS[-1]}, not {self.slots}")

    @property
    def steps(self) -> float:
        """Steps per month."""
        return SECONDS / self.parameters.period

    @property
    def millions_a_month(self) -> float:
        """Millions of joins per month."""
        return self.joins * SECONDS / 1e6

    @property
    def joins_a_step(self) -> float:
        """Joins per step."""
        return self.joins * self.parameters.period

    @cached_property
    def popularity(self) -> Popularity:
        """The distribution of the joins over the sets."""
        return Popularity(self.sets, self.exponent)

    @cached_property
    def touched_a_step(self) -> float:
        """Sets with joins in a step."""
        return self.popularity.touched(self.joins_a_step) if self.touched is None else self.touched

    @property
    def logged(self) -> Logged:
        """The cost of a join in the log."""
        return logged(self.batch, self.slots)

    @property
    def join_requests(self) -> float:
        """Requests with joins, per second."""
        return self.joins / self.batch

    @cached_property
    def members_units(self) -> tuple[float, float]:
        """Write and read units of a touched set's Members item, the mean over the touched sets of a step."""
        writes = reads = weight = 0.0
        for group in self.popularity.groups:
            touched = group.touched(self.joins_a_step)
            size = members_bytes(self.parameters, self.joins_a_step * group.share * self.parameters.window)
            writes += touched * write_units(size)
            reads += touched * read_units(size, consistent=True)
            weight += touched
        return (writes / weight, reads / weight) if weight else (1.0, 1.0)


def members_bytes(parameters: Parameters, joined: float) -> int:
    """Bytes of the state of a set with ``joined`` members in the window."""
    return BYTES_A_SET + min(parameters.members_kept, max(1, round(joined))) * parameters.member_bytes


def written_units(workload: Workload, measured: Mapping[str, float]) -> float:
    """Write units of a step: the log, Members, statuses and wake-ups, and the fixed writes of each slot."""
    members, _ = workload.members_units
    evaluated = workload.touched_a_step * (members + measured["changes"])
    return workload.joins_a_step * workload.logged.units + evaluated + FIXED_WRITES * workload.slots


def evaluation_read_units(workload: Workload) -> float:
    """Read units of a step: the log in pages, Members, and the fixed reads of each slot."""
    _, members = workload.members_units
    log = workload.joins_a_step * workload.logged.size / READ_UNIT
    return log + workload.touched_a_step * members + (FIXED_READS + workload.partitions) * workload.slots


def usage(workload: Workload, measured: Mapping[str, float]) -> Usage:
    """The quantities of a month, by the names in ``prices.json``."""
    w, m = workload, measured
    joins, queries = w.join_requests * SECONDS, w.queries * SECONDS
    slot_steps = w.slots * w.steps
    calls = 2 * slot_steps  # repeated deliveries of a message are rare and not counted
    requests = joins + queries + slot_steps + w.steps
    query_reads = queries * (w.hashes + _horizons_a_query(w)) * read_units(0, consistent=False)
    logged = (
        joins * (m["join_log_bytes"] + m["access_log_bytes"])
        + queries * (m["query_log_bytes"] + m["access_log_bytes"])
        + slot_steps * m["evaluate_log_bytes"]
    )
    answered = joins * (m["header_bytes"] + 4 * w.batch)
    answered += queries * (m["header_bytes"] + 100 + 47 * w.hashes * TRUE_SHARE)
    evaluated = w.steps * (EVALUATE_MB / 1024 * evaluate_seconds(w, m))
    return {
        "apigateway.http": joins + queries,
        "lambda.requests": requests,
        "lambda.arm64": evaluated + SECONDS * request_gb_seconds(w, m),
        "dynamodb.write": w.steps * written_units(w, m),
        "dynamodb.read": w.steps * evaluation_read_units(w) + query_reads,
        "dynamodb.storage": stored_bytes(w) / GB,
        "sqs.requests": calls + m["pollers"] * 60 * MONTH_HOURS,
        "scheduler.events": w.steps,
        "logs.ingested": logged / GB,
        "logs.stored": logged / GB,
        "cloudwatch.metrics": METRICS,
        "cloudwatch.alarms": ALARM_METRICS,
        "cloudwatch.dashboards": DASHBOARDS,
        "kms.keys": KEYS,
        "kms.requests": m["cold_starts"] * requests,
        "secrets.stored": SECRETS,
        "secrets.requests": 2 * m["cold_starts"] * requests,
        "transfer.out": answered / GB,
    }


def request_gb_seconds(w: Workload, m: Mapping[str, float]) -> float:
    """GB-seconds of join and query per second of load."""
    if w.batch == 1:
        join = _billed_ms(m["join_ms"], 1, m)
    else:
        join = _billed_ms(m["batched_join_ms"] * w.batch, math.ceil(w.batch * w.logged.items / WRITES_A_CALL), m)
    query_calls = math.ceil(w.hashes / KEYS_A_CALL)
    query = _billed_ms(m["query_ms"] + m["hash_ms"] * w.hashes, query_calls, m)
    return REQUEST_MB / 1024 * (w.join_requests * join + w.queries * query) / 1000


def _billed_ms(processor_ms: float, calls: int, m: Mapping[str, float]) -> float:
    """The billed ms of a request: its processor time divided by the function's share of a processor, plus its calls."""
    return processor_ms * FULL_PROCESSOR_MB / REQUEST_MB + calls * m["call_ms"]


def evaluate_seconds(w: Workload, m: Mapping[str, float]) -> float:
    """Worker-seconds per step, all slots together."""
    reading = w.joins_a_step * (w.logged.items * m["row_ms"] + m["packed_join_ms"])
    calls = w.slots * (10 + w.partitions) * m["call_ms"]
    return (w.touched_a_step * m["evaluated_set_ms"] + reading + calls) / 1000


def stored_bytes(w: Workload) -> float:
    """Bytes in the tables: the log of the outage allowance, and the sets touched within their window."""
    allowance = OUTAGE_DAYS * 24 * HOUR / w.parameters.period
    log = w.joins_a_step * allowance * (w.logged.size + w.logged.items * INDEX_BYTES)
    kept_steps = w.parameters.window + allowance
    members = statuses = 0.0
    for group in w.popularity.groups:
        alive = group.touched(w.joins_a_step * kept_steps)
        joined = w.joins_a_step * group.share * w.parameters.window
        members += alive * (members_bytes(w.parameters, joined) + INDEX_BYTES)
        statuses += alive * (STATUS_BYTES + INDEX_BYTES) * (joined >= w.parameters.k)
    return log + members + statuses


def _horizons_a_query(w: Workload) -> float:
    """Mean horizons that a query reads besides its sets: each environment reads all slots at most once per step."""
    return 0.0 if w.queries * w.parameters.period > 100 * w.slots else float(min(w.slots, w.hashes))


def alternatives(w: Workload, m: Mapping[str, float], more: Usage) -> dict[str, Usage]:
    """Usage of other choices for the same load, by name. ``more`` is added to each of them."""
    base = added(usage(w, m), more)
    edge = {
        **base,
        "cloudfront.requests": base["apigateway.http"],
        "cloudfront.out": base["transfer.out"],
        "transfer.out": 0.0,
        "waf.acls": 1,
        "waf.rules": WAF_RULES,
        "secrets.stored": base["secrets.stored"] + EDGE_SECRETS,
        "waf.requests": base["apigateway.http"],
    }
    return {
        **{f"batches of {size}" if size > 1 else "one join a request": added(usage(replace(w, batch=size), m), more)
           for size in (1, 10, 100, MOST_JOINS)},
        "REST API instead of HTTP API": {**base, "apigateway.http": 0.0, "apigateway.rest": base["apigateway.http"]},
        "with CloudFront and WAF in front": edge,
        "one item a client and hour, counted by queries (no privacy)": added(counted_by_queries(w, m), more),
    }  # fmt: skip


def added(one: Usage, other: Usage) -> Usage:
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
    join_only = replace(w, queries=0.0, touched=0.0)
    query_ms = _billed_ms(m["query_ms"] * w.hashes, w.hashes, m)  # each call costs as much as a minimal request
    gb_seconds = SECONDS * (request_gb_seconds(join_only, m) + REQUEST_MB / 1024 * w.queries * query_ms / 1000)
    return {
        **base,
        "lambda.arm64": gb_seconds,
        "lambda.requests": (w.join_requests + w.queries) * SECONDS,
        "dynamodb.write": w.joins * SECONDS * write_units(item),
        "dynamodb.read": hashes * pages / 2,
        "dynamodb.storage": rows * (item + INDEX_BYTES) / GB,
        "sqs.requests": 0.0,
        "scheduler.events": 0.0,
    }
