"""The cost of a log: the units of its joins and evaluations, and the bill of a month at its mean rate of joins.

Items and prices are those of ``kanon cost``. The touched sets and the sizes of their items are counted, not modelled.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from kanon.cost.billing import Bill, Prices, bill
from kanon.cost.scale import needs, slots_of
from kanon.cost.workload import FIXED_READS, FIXED_WRITES, Workload, usage
from kanon.dynamo.units import READ_UNIT
from kanon.gate.mechanism.parameters import Parameters
from kanon.simulate.outcome import Outcome


@dataclass(frozen=True)
class Pricing:
    """Prices and measured values in the form of ``kanon cost``, and the joins per request."""

    prices: Prices
    measured: Mapping[str, float]
    batch: int = 1


@dataclass(frozen=True)
class Cost:
    """The cost of a type on a log.

    Attributes:
        written: write units for the whole log, its joins included.
        read: read units, without those of queries.
        month: the bill of a month of 730 hours at the log's mean rate of joins, without queries.
        workload: that rate as a workload of ``kanon cost``.
    """

    written: float
    read: float
    month: Bill
    workload: Workload

    def as_json(self, prices: Prices) -> dict[str, Any]:
        """In the case of ``kanon cost --json``."""
        return {
            "writeUnits": round(self.written),
            "readUnits": round(self.read),
            "dollarsAMonth": self.month.total,
            "byService": dict(self.month.by_service()),
            "joinsASecond": self.workload.joins,
            "touchedSetsAStep": self.workload.touched_a_step,
            "slots": self.workload.slots,
            "prices": {"noted": prices.noted, "region": prices.region},
        }


def cost_of(parameters: Parameters, outcome: Outcome, steps: range, pricing: Pricing) -> Cost:
    """The cost of an outcome.

    Raises:
        CostError: the rate of joins is outside the limits of ``kanon cost``, or a price is missing.
    """
    joins = outcome.joins / (len(steps) * parameters.period)
    touched = min(outcome.touched / len(steps), joins * parameters.period)
    load = Workload(parameters, joins, pricing.batch, sets=max(1, outcome.sets), touched=touched)
    load = replace(load, slots=slots_of(needs(load, pricing.measured)))
    passed = load.slots * len(steps)
    changes = pricing.measured["changes"] * outcome.touched
    written = outcome.joins * load.logged.units + outcome.members_written + changes + FIXED_WRITES * passed
    read = (
        outcome.joins * load.logged.size / READ_UNIT + outcome.members_read + (FIXED_READS + load.partitions) * passed
    )
    scale = load.steps / len(steps)
    used = {**usage(load, pricing.measured), "dynamodb.write": written * scale, "dynamodb.read": read * scale}
    return Cost(written, read, bill(used, pricing.prices), load)
