"""What the same load costs in systems that somebody would build or buy instead. None of them protects anybody.

Each takes the joins, keeps them for a window, counts the distinct clients of every set once a step, and serves the
statuses. The counts are exact, so a status that turns tells that a client joined. Nothing here was measured: each
system states what it assumes. The people who run servers are in no figure.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from kanon.cost.billing import Bill, Prices, Usage, bill
from kanon.cost.month import request_gb_seconds, usage
from kanon.cost.scale import check_finishes, with_slots
from kanon.cost.workload import GB, MONTH_HOURS, SECONDS, Workload
from kanon.gate.mechanism.parameters import Parameters

MB, TB, GIB, TIB = 1e6, 1e12, float(1 << 30), float(1 << 40)
SENT_BYTES = 60
"""A join in the body of a batch."""
ROW_BYTES = 16
"""A join in a compressed column store: hashes of set and client, which do not shrink; the time does."""
REQUESTS_A_VCPU, ROWS_TAKEN, ROWS_COUNTED = 2_000, 100_000, 10_000_000
"""Per second and vCPU of ClickHouse: requests of any kind, rows taken, rows counted by set and distinct client."""
SHARE_OF_STEP = 0.5
"""The part of a step after which its counts are there, as with the default tick."""
LEAST_VCPUS, KEEPER_VCPUS, LEAST_DISK = 2, 3, 50
"""Of a node; of the three nodes that agree which replica leads; GB of a node's disk."""
LCU_REQUESTS, LCU_BYTES = 25, 1e9
"""New connections a second, and bytes an hour, of one capacity unit of a load balancer."""
STATE_BYTES, JOINS_A_KPU, GB_A_KPU = 40, 10_000, 50
"""Flink: a client of a set with its last join, joins a second of a KPU, and its storage."""
SHARD_RECORDS, SHARD_BYTES, PUT_BYTES = 1_000, 1e6, 25_000
"""Kinesis: records and bytes a second of a shard, bytes of a payload unit. A request is a record."""
RECORD_BYTES, LEAST_SCAN = 5_000, 10e6
"""Firehose bills records in such steps, Athena and BigQuery at least so many bytes a query."""
LOGICAL_BYTES = 24
"""A join in BigQuery, which bills columns uncompressed: set, client, time."""

Measured = Mapping[str, float]


def window_rows(w: Workload) -> float:
    """The joins of a window."""
    return w.joins_a_step * w.parameters.window


def clickhouse(w: Workload, m: Measured) -> Usage:
    """Two replicas behind a load balancer, and three keepers."""
    requests = w.join_requests + w.queries
    counting = window_rows(w) / (ROWS_COUNTED * SHARE_OF_STEP * w.parameters.period)
    needed = requests / REQUESTS_A_VCPU + w.joins / ROWS_TAKEN + counting
    node = max(LEAST_VCPUS, 1 << math.ceil(math.log2(max(1.0, needed))))
    disk = max(LEAST_DISK, 2 * window_rows(w) * ROW_BYTES / GB)
    capacity = max(1.0, requests / LCU_REQUESTS, w.joins * SENT_BYTES * 3600 / LCU_BYTES)
    return {
        "ec2.vcpus": MONTH_HOURS * (2 * node + KEEPER_VCPUS),
        "ebs.storage": 2 * disk + KEEPER_VCPUS * 10,
        "elb.hours": MONTH_HOURS,
        "elb.capacity": MONTH_HOURS * capacity,
        "transfer.out": usage(replace(w, slots=1), m)["transfer.out"],
    }


def flink(w: Workload, m: Measured) -> Usage:
    """API Gateway, a Kinesis stream, a Flink application that remembers each client of each set, and a table."""
    sent = w.batch * SENT_BYTES
    shards = max(1, math.ceil(w.join_requests / SHARD_RECORDS), math.ceil(w.join_requests * sent / SHARD_BYTES))
    state = window_rows(w) * STATE_BYTES / GB
    kpus = max(1, math.ceil(w.joins / JOINS_A_KPU), math.ceil(state / GB_A_KPU))
    return {
        **_served_from_a_table(w, m),
        "kinesis.shards": MONTH_HOURS * shards,
        "kinesis.puts": w.join_requests * SECONDS * math.ceil(sent / PUT_BYTES),
        "flink.kpus": MONTH_HOURS * (kpus + 1),  # one orchestrates
        "flink.storage": GB_A_KPU * kpus,
    }


def athena(w: Workload, m: Measured) -> Usage:
    """API Gateway, Firehose, Parquet in S3, a query over the window after each step, and a table."""
    records = math.ceil(w.batch * SENT_BYTES / RECORD_BYTES) * RECORD_BYTES
    stored = window_rows(w) * ROW_BYTES
    return {
        **_served_from_a_table(w, m),
        "firehose.in": w.join_requests * SECONDS * records / GB,
        "firehose.parquet": w.joins * SECONDS * SENT_BYTES / GB,
        "athena.scanned": w.steps * max(LEAST_SCAN, stored) / TB,
        "s3.storage": stored / GB,
    }


def bigquery(w: Workload, m: Measured) -> Usage:
    """API Gateway, the Storage Write API, a query over the window after each step, and a table."""
    stored = window_rows(w) * LOGICAL_BYTES
    return {
        **_served_from_a_table(w, m),
        "bigquery.in": w.joins * SECONDS * SENT_BYTES / GIB,
        "bigquery.storage": stored / GIB,
        "bigquery.scanned": w.steps * max(LEAST_SCAN, stored) / TIB,
        "transfer.out": w.joins * SECONDS * SENT_BYTES / GB,
    }


def _served_from_a_table(w: Workload, m: Measured) -> dict[str, float]:
    """The requests, and statuses in DynamoDB that queries read as those of kanon."""
    queries = w.queries * SECONDS
    return {
        "apigateway.http": w.join_requests * SECONDS + queries,
        "lambda.requests": queries,
        "lambda.arm64": SECONDS * request_gb_seconds(replace(w, joins=0.0), m),
        "dynamodb.read": queries * w.hashes / 2,
        "dynamodb.write": w.crossed_a_step * w.steps,
    }


class System(NamedTuple):
    """Another system: its name, the quantities of a month, and what these assume, in words."""

    name: str
    usage: Callable[[Workload, Measured], Usage]
    assumes: str


SYSTEMS = (
    System(
        "ClickHouse, two replicas",
        clickhouse,
        f"m7g nodes of at least {LEAST_VCPUS} vCPUs, three keepers, a load balancer. A vCPU takes {REQUESTS_A_VCPU:,}"
        f" requests or {ROWS_TAKEN:,} rows a second and counts {ROWS_COUNTED:,}, key range by key range, within half a"
        f" step. {ROW_BYTES} bytes a join on disk, and as much free. No backup, no staff",
    ),
    System(
        "Kinesis and Flink",
        flink,
        f"Provisioned shards, a request is a record. Flink keeps {STATE_BYTES} bytes for each client of a set in a"
        f" window; a KPU has {GB_A_KPU} GB and takes {JOINS_A_KPU:,} joins a second; one more orchestrates",
    ),
    System(
        "S3 and Athena",
        athena,
        f"Firehose writes Parquet, {ROW_BYTES} bytes a join. After each step one query scans the whole window",
    ),
    System(
        "BigQuery",
        bigquery,
        f"Storage Write API, on-demand queries. After each step one query scans the whole window, {LOGICAL_BYTES} bytes"
        f" a join. Joins leave AWS",
    ),
)


def totals(w: Workload, m: Measured, prices: Prices) -> dict[str, float]:
    """Dollars a month of each system."""
    return {system.name: bill(system.usage(w, m), prices).total for system in SYSTEMS}


LOADS: tuple[tuple[str, dict[str, float]], ...] = (
    ("10 joins/s, each a request; 2 queries/s", {"joins": 10, "queries": 2}),
    ("100 joins/s, batches of 100; 20 queries/s", {"joins": 100, "batch": 100, "queries": 20, "sets": 5_000_000}),
    ("1,000 joins/s, batches of 500; 20 queries/s", {"joins": 1_000, "batch": 500, "queries": 20, "sets": 10_000_000}),
    (
        "the same over 10^9 sets alike",
        {"joins": 1_000, "batch": 500, "queries": 20, "sets": 1_000_000_000, "exponent": 0},
    ),
)
"""The loads of the table; sets by Zipf's law with exponent 1.1 if nothing else is said."""


@dataclass(frozen=True)
class Compared:
    """A line of the table: a load, kanon's bill, and dollars a month of the other systems."""

    load: str
    workload: Workload
    ours: Bill
    others: Mapping[str, float]

    @property
    def a_million(self) -> float:
        """Kanon's dollars for a million joins, with the queries."""
        return self.ours.total / self.workload.millions_a_month


def table(parameters: Parameters, measured: Measured, prices: Prices) -> Iterator[Compared]:
    """The table of :data:`LOADS`."""
    for name, load in LOADS:
        w = with_slots(Workload(parameters, **load), measured)  # type: ignore[arg-type]
        check_finishes(w, measured)
        yield Compared(name, w, bill(usage(w, measured), prices), totals(w, measured, prices))
