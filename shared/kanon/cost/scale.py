"""The scale of the design: slots and workers for a workload, the limits it exceeds, and a table of workloads."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice

from kanon.cost.billing import Bill, CostError, Prices, bill
from kanon.cost.deployed import (
    DEFAULT_SLOTS,
    EVALUATE_SECONDS,
    MOST_READ_UNITS,
    PERIODS,
    REQUEST_MB,
    SECONDS_TO_TICK,
)
from kanon.cost.evaluating import MOST_JOINS_HELD, TRANSACTED, SlotStep, evaluation_read_units
from kanon.cost.month import request_gb_seconds, usage
from kanon.cost.workload import SLOTS, Workload
from kanon.gate.mechanism.parameters import LONGEST_WINDOW, Parameters
from kanon.gate.models import MOST_JOINS

PARTITION_UNITS = 1_000
"""DynamoDB's limit of write units per second for one partition key."""
TABLE_UNITS = 40_000
"""Write units per second of one on-demand table by the default quota. AWS raises it on request."""

GATEWAY_REQUESTS = 10_000
"""Requests per second of an account's HTTP APIs in a region, by the default quota."""
LAMBDA_CONCURRENCY = 1_000
"""Functions that run at once in an account and region, by the default quota."""

BATCHES = (10, 100, MOST_JOINS)
RATES = (10.0, 1_000.0, 100_000.0)
TABLE_SETS = (10**6, 10**9)


@dataclass(frozen=True)
class Needs:
    """What a workload needs from a deployment.

    Args:
        slots: the least number of slots, a power of two; None if 256 are too few.
        workers: concurrent ``evaluate`` functions (``MaximumConcurrency``) that make every step visible at its tick.
        in_a_row: workers that a slot takes for a step, one after the other.
        seconds: the time of a slot's step.
        limits: limits that the workload exceeds, in words.
    """

    slots: int | None
    workers: int
    in_a_row: int | None
    seconds: float
    limits: tuple[str, ...]


def needs(workload: Workload, measured: Mapping[str, float]) -> Needs:
    """The slots and workers of a workload, and the limits that it exceeds with the slots that it has.

    The rows of a step and slot are spread over its partitions. Joins are spread evenly over the slots, except those of
    the most popular set.
    """
    slots = least_slots(workload, measured)
    step = SlotStep(workload, measured)
    of_all = workload.slots * step.seconds
    workers = max(1, math.ceil(of_all / in_time(workload))) if step.time.workers else 1
    log_units = workload.joins * workload.logged.units
    of_a_slot = PARTITION_UNITS * workload.partitions
    at_once = request_gb_seconds(workload, measured) * 1024 / REQUEST_MB + workers
    crossings = TRANSACTED * workload.crossed_a_step / in_time(workload)
    limits = (
        (workload.join_requests + workload.queries, GATEWAY_REQUESTS,
         "API Gateway takes {:,.0f} requests/s, the default quota is {:,}"),
        (at_once, LAMBDA_CONCURRENCY, "Lambda runs {:,.0f} functions at once, the default quota is {:,}"),
        (workload.popularity.groups[0].share * log_units, of_a_slot,
         "the most popular set takes {:,.0f} units/s, its partitions take {:,}"),
        (log_units, TABLE_UNITS, "StepLog takes {:,.0f} units/s, the default quota of a table is {:,}"),
        (evaluation_read_units(workload) / in_time(workload), MOST_READ_UNITS,
         "StepLog serves {:,.0f} read units/s until the tick, MaxReadUnits is {:,} by default"),
        (crossings, TABLE_UNITS, "Statuses takes {:,.0f} units/s until the tick, the default quota is {:,}"),
        (0 if math.isinf(step.time.seconds) else step.time.seconds, in_time(workload),
         "a slot takes {:,.0f} s for a step, its tick is {:,} s after the start"),
    )  # fmt: skip
    beyond = tuple(text.format(needed, most) for needed, most, text in limits if needed > most)
    return Needs(slots, workers, step.time.workers, step.time.seconds, beyond)


def in_time(workload: Workload) -> int:
    """Seconds in which a slot must have finished a step: before the tick, and before the next step."""
    return min(SECONDS_TO_TICK, workload.parameters.period)


def least_slots(workload: Workload, measured: Mapping[str, float]) -> int | None:
    """The least number of slots, a power of two, with which every step is visible at its tick; None if 256 are few."""

    def enough(slots: int) -> bool:
        load = replace(workload, slots=slots)
        step = SlotStep(load, measured)
        written = load.joins * load.logged.units / slots <= PARTITION_UNITS * load.partitions
        return written and step.fits and step.time.seconds <= in_time(load)

    return next(filter(enough, SLOTS), None)


def with_slots(workload: Workload, measured: Mapping[str, float]) -> Workload:
    """The workload with the slots of a deployment for it: at least the default."""
    return replace(workload, slots=max(DEFAULT_SLOTS, least_slots(workload, measured) or SLOTS[-1]))


def check_finishes(workload: Workload, measured: Mapping[str, float]) -> None:
    """Check that each step is finished before the next one is closed: otherwise the slot never catches up.

    Raises:
        CostError: it is not; the message says what to change.
    """
    if reason := _unfinished(workload, measured):
        changes = "; ".join(_changes(workload, measured)) or "split the load over several deployments"
        slots = f"{workload.slots} slot{'s' if workload.slots > 1 else ''}"
        raise CostError(f"with {slots} a step never finishes: {reason}. What helps: {changes}")


def _unfinished(workload: Workload, measured: Mapping[str, float]) -> str | None:
    """Why a slot does not finish a step in a period; None if it does."""
    step, period = SlotStep(workload, measured), workload.parameters.period
    if not step.fits:
        return f"its busiest slot gets {step.busiest:,.0f} joins, a worker holds {MOST_JOINS_HELD:,}"
    if step.time.workers is None:
        return (
            f"a worker needs {step.time.again + step.time.range:,.0f} s for a range of a slot, which leaves too little"
            f" of the {EVALUATE_SECONDS} s that it has"
        )
    if step.time.seconds > period:
        return f"a slot takes {step.time.seconds:,.0f} s for a step of {period:,} s"
    return None


def _changes(workload: Workload, measured: Mapping[str, float]) -> Iterator[str]:
    """The least change of each kind with which the steps are finished."""
    longer, shorter = _split(PERIODS, workload.parameters.period)
    kinds: tuple[tuple[str, Callable[[int], Workload], Iterable[int]], ...] = (
        ("at least {:,} slots", lambda slots: replace(workload, slots=slots), _split(SLOTS, workload.slots)[0]),
        ("batches of {:,}", lambda size: replace(workload, batch=size), _split(BATCHES, workload.batch)[0]),
        ("a period of {:,} s", partial(_with_period, workload), longer),
        ("a period of {:,} s", partial(_with_period, workload), shorter),
    )
    for text, changed, values in kinds:
        helps = (value for value in values if _unfinished(changed(value), measured) is None)
        yield from (text.format(value) for value in islice(helps, 1))


def _split(values: Sequence[int], at: int) -> tuple[Sequence[int], Sequence[int]]:
    """The values above, in ascending order, and those below, in descending order."""
    return [value for value in values if value > at], [value for value in reversed(values) if value < at]


def _with_period(workload: Workload, period: int) -> Workload:
    """The workload with another period, and a window of the same time."""
    p = workload.parameters
    window = min(LONGEST_WINDOW, max(2, p.window * p.period // period))
    return replace(workload, parameters=replace(p, period=period, window=window, restart=None))


@dataclass(frozen=True)
class ScaleRow:
    """A line of the table."""

    workload: Workload
    spread: str
    needs: Needs
    bill: Bill | None

    @property
    def a_million(self) -> float | None:
        """Dollars per million joins, everything included; None if no deployment finishes the steps."""
        return None if self.bill is None else self.bill.total / self.workload.millions_a_month


def table(parameters: Parameters, measured: Mapping[str, float], prices: Prices) -> Iterator[ScaleRow]:
    """The table for several rates of joins, single and in full batches, into one set, a million and a billion sets."""
    for rate in RATES:
        for batch in (1, MOST_JOINS):
            for spread, sets in (("one set", 1), *((f"{count:,} sets alike", count) for count in TABLE_SETS)):
                load = Workload(parameters, rate, batch, sets=sets, exponent=0.0)
                load = with_slots(load, measured)
                needed, reason = needs(load, measured), _unfinished(load, measured)
                if reason is None:
                    yield ScaleRow(load, spread, needed, bill(usage(load, measured), prices))
                else:
                    limits = (f"a step never finishes: {reason}", *needed.limits)
                    yield ScaleRow(load, spread, replace(needed, limits=limits), None)
