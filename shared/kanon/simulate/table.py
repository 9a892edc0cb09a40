"""The figures of a simulation: as JSON, and as the rows of a table.

The cost of a log is that of its joins and evaluations, and the bill of a month at its mean rate of joins. Items and
prices are those of ``kanon cost``. The touched sets and their crossings are counted, not modelled.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from kanon.cost.billing import Bill, Prices, bill
from kanon.cost.evaluating import evaluation_read_units, written_units
from kanon.cost.month import usage
from kanon.cost.scale import check_finishes, with_slots
from kanon.cost.workload import Workload
from kanon.gate.mechanism.bounds import interval_aware
from kanon.gate.mechanism.parameters import Parameters
from kanon.gate.models import TypeAnswer
from kanon.gate.types import Type
from kanon.noise.bound import Bound
from kanon.plan.planner import type_document, zone
from kanon.simulate.outcome import TypeOutcome
from kanon.simulate.rejoining import bounds_of
from kanon.simulate.run import Simulation

NOT_PRIVATE = (
    "These figures are computed from the raw log, without noise of their own. They are not differentially private:"
    " keep them as you keep the log."
)


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


def cost_of(parameters: Parameters, outcome: TypeOutcome, steps: range, pricing: Pricing) -> Cost:
    """The cost of an outcome.

    Raises:
        CostError: the rate of joins is outside the limits of ``kanon cost``, a price is missing, or no deployment
            finishes its steps.
    """
    joins = outcome.joins / (len(steps) * parameters.period)
    touched = min(outcome.touched / len(steps), joins * parameters.period)
    crossed = outcome.crossings / len(steps)
    load = Workload(parameters, joins, pricing.batch, sets=max(1, outcome.sets), touched=touched, crossed=crossed)
    load = with_slots(load, pricing.measured)
    check_finishes(load, pricing.measured)
    written = len(steps) * written_units(load, pricing.measured, len(steps))
    read = len(steps) * evaluation_read_units(load)
    return Cost(written, read, bill(usage(load, pricing.measured), pricing.prices), load)


class RejoiningCosts(NamedTuple):
    """The privacy bounds of clients for all their joins in one set: the median, the 99% quantile, the maximum."""

    median: Bound
    ninety_nine: Bound
    most: Bound
    clients: int
    rejoined: int


@dataclass(frozen=True)
class Judged:
    """A type and its results on a log. ``label`` distinguishes it from the other types of the simulation."""

    label: str
    type_: Type
    outcome: TypeOutcome
    cost: Cost
    prices: Prices

    @cached_property
    def rejoining(self) -> RejoiningCosts:
        """The privacy bounds of the log's clients."""
        bounds = bounds_of(self.type_.parameters, self.outcome.rejoining)
        ends = np.cumsum([clients for clients, _ in bounds])
        one = interval_aware(self.type_.parameters).epsilon
        more = sum(clients for clients, bound in bounds if bound.epsilon > one)

        def at(share: float) -> Bound:
            return bounds[int(np.searchsorted(ends, share * ends[-1]))][1]

        return RejoiningCosts(at(0.5), at(0.99), bounds[-1][1], int(ends[-1]), more)

    def delay(self, share: float) -> int | None:
        """The steps within which the given share of the sets that reach k read true; None if fewer ever do."""
        rank = max(0, int(np.ceil(share * self.outcome.sets_reached)) - 1)
        delays = np.sort(self.outcome.delays)
        return int(delays[rank]) if rank < len(delays) else None

    def as_json(self) -> dict[str, Any]:
        """All figures, in the case of ``kanon plan --json``."""
        p, o, cost = self.type_.parameters, self.outcome, self.rejoining
        return {
            "label": self.label,
            "types": {self.type_.name: type_document(self.type_)},
            **TypeAnswer.of(self.type_).model_dump(by_alias=True, include={"never_true_below", "surely_true_from"}),
            "zone99": list(zone(p)),
            "sets": {"total": o.sets, "true": o.sets_true, "reachedK": o.sets_reached},
            "joins": {"total": o.joins, "ofTrueSets": o.joins_of_true_sets, "atTrue": o.joins_at_true},
            "answers": {
                "total": o.answers,
                "true": o.answers_true,
                "trueBelowK": o.true_below_k,
                "falseFromK": o.false_from_k,
                "shareOfTrueBelowK": _share(o.true_below_k, o.answers_true),
                "shareOfFalseFromK": _share(o.false_from_k, o.answers - o.answers_true),
            },
            "delay": {
                "atOnce": int((o.delays == 0).sum()),
                "median": self.delay(0.5),
                "ninetyFive": self.delay(0.95),
                "most": int(o.delays.max()) if len(o.delays) else None,
                "never": o.never,
            },
            "lost": {"total": o.lost, "fromK": o.lost_reached},
            "rejoining": {
                "clients": cost.clients,
                "moreThanOneJoin": cost.rejoined,
                "median": _bound(cost.median),
                "ninetyNine": _bound(cost.ninety_nine),
                "most": _bound(cost.most),
            },
            "costly": {
                "sets": o.costly_sets,
                "clients": o.costly.shape[1],
                "mostOfAClient": int(o.costly[1].max(initial=0)),
            },
            "membersKept": {"inASet": p.members_kept, "mostAtOnce": o.most_members},
            "evaluations": o.touched,
            "cost": self.cost.as_json(self.prices),
            "crossings": {"total": o.crossings, "belowK": o.crossings_below_k},
        }


def judge(simulation: Simulation, pricing: Pricing) -> list[Judged]:
    """The types of a simulation with their outcomes. Labels have the values that differ: k, window, noise, name."""
    types = simulation.types
    names = len({type_.name for type_ in types}) > 1

    def label(type_: Type) -> str:
        p = type_.parameters
        parts = [type_.name] if names else []
        return " ".join([*parts, f"k={p.k}", f"w={p.window}", type_.profile or "own noise"])

    return [
        Judged(label(t), t, o, cost_of(t.parameters, o, simulation.steps, pricing), pricing.prices)
        for t, o in zip(types, simulation.outcomes, strict=True)
    ]


def as_json(simulation: Simulation, types: Sequence[Judged]) -> dict[str, Any]:
    """The whole simulation."""
    return {"note": NOT_PRIVATE, "log": _log(simulation), "results": [one.as_json() for one in types]}


def _log(simulation: Simulation) -> dict[str, Any]:
    first = simulation.outcomes[0]
    return {
        "joins": first.joins,
        "sets": first.sets,
        "period": simulation.period,
        "steps": len(simulation.steps),
        "from": _moment(simulation.steps.start * simulation.period),
        "to": _moment(simulation.steps.stop * simulation.period),
    }


def title(simulation: Simulation) -> str:
    """One line about the log."""
    told = _log(simulation)
    return (
        f"{told['joins']:,} joins of {told['sets']:,} sets, {told['from'][:10]} to {told['to'][:10]},"
        f" {told['steps']:,} steps of {told['period']:,} s"
    )


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 0.0


def _bound(bound: Bound) -> dict[str, float]:
    return {"epsilon": float(bound.epsilon), "delta": float(bound.delta)}


def _moment(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")


class Figure(NamedTuple):
    """A line of the table: its name, its value for a type, and its meaning."""

    name: str
    value: Callable[[Judged], str]
    meaning: str


def _percent(part: int, whole: int) -> str:
    share = 100 * _share(part, whole)
    if 0 < share < 0.01:
        return "below 0.01%"
    return f"{share:.0f}%" if share in (0, 100) else f"{share:.2g}%" if share < 1 else f"{share:.1f}%"


def _steps(steps: int | None) -> str:
    return "never" if steps is None else "immediately" if steps == 0 else f"{steps:,}"


def _epsilon(bound: Bound) -> str:
    return f"{float(bound.epsilon):g}"


SECTIONS: Sequence[tuple[str, Sequence[Figure]]] = (
    (
        "What becomes k-anonymous",
        (
            Figure(
                "sets that read true",
                lambda j: f"{j.outcome.sets_true:,} ({_percent(j.outcome.sets_true, j.outcome.sets)})",
                "at some step; of all sets of the log",
            ),
            Figure(
                "their joins",
                lambda j: _percent(j.outcome.joins_of_true_sets, j.outcome.joins),
                "share of all joins that go to such a set",
            ),
            Figure(
                "joins to a set that reads true",
                lambda j: _percent(j.outcome.joins_at_true, j.outcome.joins),
                "in the step of the join itself",
            ),
            Figure("sets that reach k", lambda j: f"{j.outcome.sets_reached:,}", "by the exact count of clients"),
        ),
    ),
    (
        "How well the answers fit the exact counts",
        (
            Figure(
                "delay after k: median, steps", lambda j: _steps(j.delay(0.5)), "from the step that reaches k, by set"
            ),
            Figure(
                "delay after k: 95%, steps", lambda j: _steps(j.delay(0.95)), "within so long 95% of them read true"
            ),
            Figure("never true after k", lambda j: f"{j.outcome.never:,}", "sets, up to the end of the log"),
            Figure(
                "status lost",
                lambda j: f"{j.outcome.lost:,} ({j.outcome.lost_reached:,} at k or more)",
                "times that an instance ended and the next answer was false",
            ),
            Figure(
                "true answers below k",
                lambda j: _percent(j.outcome.true_below_k, j.outcome.answers_true),
                "share of the true answers",
            ),
            Figure("crossings", lambda j: f"{j.outcome.crossings:,}", "of a set in an instance"),
            Figure(
                "crossings below k",
                lambda j: _percent(j.outcome.crossings_below_k, j.outcome.crossings),
                "share of the crossings; a set that crossed stays true until its instance ends",
            ),
            Figure(
                "false answers at k or more",
                lambda j: _percent(j.outcome.false_from_k, j.outcome.answers - j.outcome.answers_true),
                "share of the false answers",
            ),
            Figure(
                "answers at k or more that are false",
                lambda j: _percent(j.outcome.false_from_k, j.outcome.answers_reached),
                "share of the answers whose exact count is at least k",
            ),
            Figure(
                "noise decides",
                lambda j: "{} to {}".format(*zone(j.type_.parameters)),
                "clients; below, false for an instance with 99%, above, true immediately with 99%",
            ),
        ),
    ),
    (
        "Privacy",
        (
            Figure("one join: epsilon", lambda j: _epsilon(interval_aware(j.type_.parameters)), "the proved bound"),
            Figure(
                "clients that lose more",
                lambda j: _percent(j.rejoining.rejoined, j.rejoining.clients),
                "because they join a set again; counted by client and set",
            ),
            Figure("median client: epsilon", lambda j: _epsilon(j.rejoining.median), "for all its joins in one set"),
            Figure("99% of clients: epsilon", lambda j: _epsilon(j.rejoining.ninety_nine), "at most, in one set"),
            Figure("the worst client: epsilon", lambda j: _epsilon(j.rejoining.most), "in one set; sets add up"),
            Figure("the worst client: delta", lambda j: f"{float(j.rejoining.most.delta):.1e}", "in one set"),
            Figure(
                "sets that can cost anything",
                lambda j: f"{j.outcome.costly_sets:,} of {j.outcome.sets:,}",
                "joins in the others cost nothing: a fact about this log, not a guarantee before it",
            ),
            Figure(
                "such sets of one client",
                lambda j: f"at most {j.outcome.costly[1].max(initial=0):,}",
                "the same warning holds",
            ),
        ),
    ),
    (
        "Cost",
        (
            Figure("members kept", lambda j: f"{j.outcome.most_members:,}", "at most at the same time, over all sets"),
            Figure("members of a set", lambda j: f"{j.type_.parameters.members_kept:,}", "at most"),
            Figure("evaluations", lambda j: f"{j.outcome.touched:,}", "of a set in a step in which it was joined"),
            Figure("write units", lambda j: f"{j.cost.written:,.0f}", "of DynamoDB, for the whole log"),
            Figure("read units", lambda j: f"{j.cost.read:,.0f}", "the same, without queries"),
            Figure(
                "dollars a month",
                lambda j: f"{j.cost.month.total:,.2f}",
                "at the pace of the log, everything but queries; kanon cost has the lines",
            ),
        ),
    ),
)
"""The table, section by section."""
