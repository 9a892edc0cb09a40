"""The scale of the design: slots and workers for a workload, the limits it exceeds, and a table of workloads."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from kanon.cost.billing import Bill, Prices, Usage, bill
from kanon.cost.deployed import DEFAULT_SLOTS, EVALUATE_MB, REQUEST_MB, SECONDS_TO_TICK
from kanon.cost.workload import (
    GB,
    HOUR,
    SLOTS,
    Workload,
    evaluate_seconds,
    logged,
    packed_bytes,
    request_gb_seconds,
    usage,
    written_units,
)
from kanon.gate.mechanism.parameters import Parameters
from kanon.gate.models import MOST_JOINS

PARTITION_UNITS = 1_000
"""DynamoDB's limit of write units per second for one partition key."""
TABLE_UNITS = 40_000
"""Write units per second of one on-demand table by the default quota. AWS raises it on request."""

GATEWAY_REQUESTS = 10_000
"""Requests per second of an account's HTTP APIs in a region, by the default quota."""
LAMBDA_CONCURRENCY = 1_000
"""Functions that run at once in an account and region, by the default quota."""

RATES = (10.0, 1_000.0, 100_000.0)
TABLE_SETS = (10**6, 10**9)


@dataclass(frozen=True)
class Needs:
    """What a workload needs from a deployment.

    Args:
        slots: the least number of slots, a power of two; None if 256 are too few.
        workers: concurrent ``evaluate`` functions that make every step visible at its tick.
        limits: limits that the workload exceeds, in words.
    """

    slots: int | None
    workers: int
    limits: tuple[str, ...]


def needs(workload: Workload, measured: Mapping[str, float]) -> Needs:
    """The slots and workers of a workload, and the limits it exceeds.

    One worker evaluates a slot, so there are at least as many slots as workers. The rows of a step and slot are
    spread over its partitions. Joins are spread evenly over the slots, except those of the most popular set.
    """
    one_slot = replace(workload, slots=1)
    workers = max(1, math.ceil(evaluate_seconds(one_slot, measured) / SECONDS_TO_TICK))
    log_units = workload.joins * logged(workload.batch, DEFAULT_SLOTS).units
    of_a_slot = PARTITION_UNITS * workload.partitions
    least = max(workers, math.ceil(log_units / of_a_slot))
    at_once = request_gb_seconds(workload, measured) * 1024 / REQUEST_MB + workers
    evaluating = written_units(workload, measured) - workload.joins_a_step * workload.logged.units
    limits = (
        (workload.join_requests + workload.queries, GATEWAY_REQUESTS,
         "API Gateway takes {:,.0f} requests/s, the default quota is {:,}"),
        (at_once, LAMBDA_CONCURRENCY, "Lambda runs {:,.0f} functions at once, the default quota is {:,}"),
        (workload.popularity.groups[0].share * log_units, of_a_slot,
         "the most popular set takes {:,.0f} units/s, its partitions take {:,}"),
        (log_units, TABLE_UNITS, "StepLog takes {:,.0f} units/s, the default quota of a table is {:,}"),
        (evaluating / SECONDS_TO_TICK, TABLE_UNITS,
         "Members takes {:,.0f} units/s until the tick, the default quota is {:,}"),
        (least, SLOTS[-1], "{:,} slots are needed, there are at most {}"),
    )  # fmt: skip
    beyond = tuple(text.format(needed, most) for needed, most, text in limits if needed > most)
    fitting = [slots for slots in SLOTS if slots >= least]
    return Needs(fitting[0] if fitting else None, workers, beyond)


def slots_of(needed: Needs) -> int:
    """The slots of a deployment for a workload: at least the default."""
    return max(DEFAULT_SLOTS, needed.slots or SLOTS[-1])


@dataclass(frozen=True)
class ScaleRow:
    """A line of the table."""

    workload: Workload
    spread: str
    needs: Needs
    bill: Bill
    merged: Bill

    @property
    def a_million(self) -> float:
        """Dollars per million joins, everything included."""
        return self.bill.total / self.workload.millions_a_month

    @property
    def merged_a_million(self) -> float:
        """The same with the state in sorted files on S3: an estimate, not a part of kanon."""
        return self.merged.total / self.workload.millions_a_month


def table(parameters: Parameters, measured: Mapping[str, float], prices: Prices) -> Iterator[ScaleRow]:
    """The table for several rates of joins, single and in full batches, into one set, a million and a billion sets."""
    for rate in RATES:
        for batch in (1, MOST_JOINS):
            for spread, sets in (("one set", 1), *((f"{count:,} sets alike", count) for count in TABLE_SETS)):
                load = Workload(parameters, rate, batch, sets=sets, exponent=0.0)
                needed = needs(load, measured)
                load = replace(load, slots=slots_of(needed))
                yield ScaleRow(
                    load, spread, needed, bill(usage(load, measured), prices),
                    bill(merged_on_s3(load, measured), prices),
                )  # fmt: skip


def merged_on_s3(w: Workload, measured: Mapping[str, float]) -> Usage:
    """An estimate for a design that is not built: state in sorted files on S3, rewritten at each step.

    The log of a step is packed segments of 8 MB. A step merges them with the whole state, sorted by set: it reads and
    writes every set with members once, at 50 MB/s per worker. Members take their packed bytes, not whole write units.
    Requests cost the same.
    """
    base = usage(w, measured)
    segment, rate, decide_ms = 8e6, 50e6, 0.02
    log = w.joins_a_step * (packed_bytes(3) - packed_bytes(2))
    kept = w.parameters.window
    alive = w.popularity.touched(w.joins_a_step * kept)
    joined = min(float(w.parameters.members_kept), max(1.0, w.joins_a_step * kept / w.sets))
    state = alive * (50 + 4 * joined)
    files = w.slots + (log + state) / segment
    seconds = (log + 2 * state) / rate + w.touched_a_step * decide_ms / 1000
    evaluated = EVALUATE_MB / 1024 * (seconds - evaluate_seconds(w, measured)) * w.steps
    return {
        **base,
        "lambda.arm64": base["lambda.arm64"] + evaluated,
        "dynamodb.write": 5.0 * w.slots * w.steps,
        "dynamodb.read": 5.0 * w.slots * w.steps,
        "dynamodb.storage": 0.0,
        "s3.puts": (files + log / segment) * w.steps,
        "s3.gets": 2 * files * w.steps,
        "s3.storage": (state + 7 * 24 * log * HOUR / w.parameters.period) / GB,
    }
