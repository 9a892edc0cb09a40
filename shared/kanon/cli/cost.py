"""``kanon cost``: the monthly bill of a workload by service, and the cost of other choices."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kanon.cli.options import Json, OneType, StepLength, TypesFile, own_types, refuse_unused
from kanon.cli.screen import new_table, show_json

if TYPE_CHECKING:
    from rich.table import Table

    from kanon.cost.billing import Bill, Prices
    from kanon.cost.elsewhere import Compared
    from kanon.cost.reports import JobCost, JobTimes, ReportLoad
    from kanon.cost.scale import Needs, ScaleRow
    from kanon.cost.workload import Workload


FOR_ANY_TABLE = {"table", "prices", "measured", "as_json"}
OF_A_VALUE = 32
"""Bytes of a value, if the type is listed and nobody says."""
FOR_SCALE = FOR_ANY_TABLE | {"given", "types", "period"}
DEFAULT_TYPE = '{"k": 50, "window": 720, "profile": "published"}'


class ShownTable(StrEnum):
    """Tables to show instead of a bill."""

    SCALE = "scale"
    REPORTS = "reports"
    ELSEWHERE = "elsewhere"
    ANONYMOUS = "anonymous"


def cost(
    context: typer.Context,
    joins: Annotated[float, typer.Option(help="Joins per second, the mean over the month.")] = 10.0,
    batch: Annotated[int, typer.Option(help="Joins per request, 1 to 500.")] = 1,
    queries: Annotated[float, typer.Option(help="Queries per second.")] = 0.0,
    hashes: Annotated[int, typer.Option(help="Hashes per query, 1 to 1,000.")] = 100,
    sets: Annotated[int, typer.Option(help="Sets that get joins.")] = 1_000_000,
    popularity: Annotated[float, typer.Option(help="Exponent of Zipf's law; 0: all sets are equally popular.")] = 1.1,
    value_bytes: Annotated[
        int | None, typer.Option(min=1, help="Of a listed type: bytes of a value, at most 512; by default 32.")
    ] = None,
    given: OneType = None,
    types: TypesFile = None,
    period: StepLength = 3600,
    slots: Annotated[
        int | None, typer.Option(help="Slots of the deployment; by default as many as needed, at least 16.")
    ] = None,
    reports: Annotated[float, typer.Option(help="Encrypted reports per day; 0 for a stack without reports.")] = 0.0,
    jobs: Annotated[float, typer.Option(help="Jobs per day.")] = 1.0,
    prices: Annotated[Path | None, typer.Option(help="Price file; by default the prices of the package.")] = None,
    measured: Annotated[
        Path | None, typer.Option(help="File of measured values and assumptions; by default that of the package.")
    ] = None,
    table: Annotated[
        ShownTable | None,
        typer.Option(
            help="Show a table instead: scale (rates of joins), reports (sizes of jobs), elsewhere (others), anonymous"
            " (joins without a name)."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Estimate the monthly bill of a workload by service, at list prices.

    Example: kanon cost --joins 100 --batch 100 --queries 20 --sets 5000000
    """
    from kanon.cost import anonymous, elsewhere, lists, scale
    from kanon.cost import reports as of_reports
    from kanon.cost.billing import bill, read_measured, read_prices
    from kanon.cost.month import added, alternatives, usage
    from kanon.cost.workload import Workload

    if table is not None:
        taken = FOR_ANY_TABLE if table is ShownTable.REPORTS else FOR_SCALE
        refuse_unused(context, set(context.params) - taken, "with --table: leave it out")
    else:
        _refuse_without_load(context, joins, queries, reports)
    own = own_types(given, types, period) or own_types([DEFAULT_TYPE], None, period)
    if own is None or len(own.types) != 1:
        raise typer.BadParameter("give one type only: a bill is for one type")
    (type_,) = own.types.values()
    if not type_.listed:
        refuse_unused(context, ("value_bytes",), "with a type that is not listed")
    listed, values = read_prices(prices), read_measured(measured)
    if table is ShownTable.SCALE:
        _rows(map(_of_scale, scale.table(type_.parameters, values, listed)), listed, as_json=as_json)
        return
    if table is ShownTable.ELSEWHERE:
        _rows(map(_of_others, elsewhere.table(type_.parameters, values, listed)), listed, as_json=as_json)
        if not as_json:
            typer.echo("\n" + "\n".join(f"- **{each.name}**: {each.assumes}." for each in elsewhere.SYSTEMS))
        return
    if table is ShownTable.ANONYMOUS:
        _rows(map(_of_anonymous, anonymous.table(type_.parameters, values, listed)), listed, as_json=as_json)
        return
    if table is ShownTable.REPORTS:
        _rows(map(_of_jobs, of_reports.table(values, listed)), listed, as_json=as_json)
        return
    value = (value_bytes or OF_A_VALUE) if type_.listed else 0
    load = Workload(type_.parameters, joins, batch, queries, hashes, sets, popularity, value=value)
    load = scale.with_slots(load, values) if slots is None else replace(load, slots=slots)
    scale.check_finishes(load, values)
    needs = scale.needs(load, values)
    sent = of_reports.ReportLoad(reports, jobs=jobs)
    of_sent = of_reports.usage(sent, values) if reports else {}
    more = added(of_sent, lists.usage(load)) if type_.listed else of_sent
    made = bill(added(usage(load, values), more), listed)
    others = {name: bill(used, listed).total for name, used in alternatives(load, values, more).items()}
    if load.joins:
        others |= {f"{name} (no privacy)": d for name, d in elsewhere.totals(load, values, listed).items()}
    of_jobs = of_reports.limits(sent, values) if sent.jobs else ()
    needs = replace(needs, limits=(*needs.limits, *of_jobs))
    part = ReportsPart(sent, of_reports.times(sent, values), bill(of_sent, listed).total) if reports else None
    estimate = CostEstimate(load, needs, made, others, listed, part)
    if as_json:
        show_json(estimate.document)
    else:
        _show(estimate)


def _refuse_without_load(context: typer.Context, joins: float, queries: float, reports: float) -> None:
    """Refuse the options of a load that is not there."""
    if not joins:
        of_joins = ("batch", "sets", "popularity", "value_bytes")
        refuse_unused(context, of_joins, "without joins: give --joins above 0")
    if not queries:
        refuse_unused(context, ("hashes",), "without queries: give --queries")
    if not reports:
        refuse_unused(context, ("jobs",), "without reports: give --reports")


@dataclass(frozen=True)
class ReportsPart:
    """Reports as a part of a bill: their load, how long a job takes, and dollars a month."""

    load: "ReportLoad"
    times: "JobTimes"
    dollars: float

    @property
    def summary(self) -> str:
        """The part in words."""
        load = self.load
        jobs = (
            f"Jobs a day: {load.jobs:,g}, each of {load.reports:,.0f} reports, {load.keys:,} keys, {load.rows:,} rows"
            f" of budget. Shards of a job: {load.shards:,}. Parts of its summary: {load.parts}. It takes about"
            f" {self.times.total:,.0f} s."
        )
        return (
            f"{load.reports:,.0f} reports a day of {load.size:,} bytes. {jobs if load.jobs else 'No jobs.'}\n"
            f"Reports are ${self.dollars:,.2f} of the total.\n"
        )

    @property
    def document(self) -> dict[str, Any]:
        """The part as JSON."""
        shards, parts = self.load.shards, self.load.parts
        return {"shards": shards, "parts": parts, "secondsAJob": self.times.stages, "dollarsAMonth": self.dollars}


@dataclass(frozen=True)
class CostEstimate:
    """A workload, its needs, the bill of a month, the totals of other choices, and the part of reports."""

    load: "Workload"
    needs: "Needs"
    made: "Bill"
    others: dict[str, float]
    prices: "Prices"
    part: ReportsPart | None

    @property
    def a_million(self) -> float | None:
        """Dollars per million joins, everything but reports included; None without joins."""
        dollars = self.made.total - (self.part.dollars if self.part else 0.0)
        return dollars / self.load.millions_a_month if self.load.joins else None

    @property
    def summary(self) -> str:
        """The estimate in words, without the tables."""
        load, each = self.load, self.a_million
        of_joins = f", ${each:,.2f} a million joins" if each else ""
        limits = "".join(f"Beyond a limit: {limit}.\n" for limit in self.needs.limits)
        return (
            f"{load.joins:,g} joins/s in requests of {load.batch}, {load.queries:,g} queries/s of {load.hashes} hashes,"
            f" {load.sets:,} sets, {load.touched_a_step:,.0f} of them touched in a step.\n"
            f"Slots: {load.slots}. Slots evaluated at once (MaximumConcurrency): {self.needs.workers}. A step of a slot"
            f" takes {self.needs.seconds:,.0f} s, workers one after the other: {self.needs.in_a_row}.\n"
            f"{limits}{self.part.summary if self.part else ''}"
            f"Total: ${self.made.total:,.2f} a month{of_joins}.\n"
        )

    @property
    def document(self) -> dict[str, Any]:
        """The estimate as JSON, in dollars per month."""
        return {
            "prices": {"noted": self.prices.noted, "region": self.prices.region},
            "touchedSetsAStep": self.load.touched_a_step,
            "slots": self.load.slots,
            "needs": asdict(self.needs),
            "dollarsAMonth": self.made.total,
            "dollarsAMillionJoins": self.a_million,
            "reports": self.part.document if self.part else None,
            "lines": list(map(asdict, self.made.lines)),
            "alternatives": self.others,
        }


def _show(estimate: CostEstimate) -> None:
    from rich.console import Console

    typer.echo(estimate.summary)
    console = Console(width=120)
    for table in (_lines(estimate.made), _alternatives(estimate.made, estimate.others)):
        with console.capture() as captured:
            console.print(table)
        typer.echo(captured.get())
    typer.echo(estimate.prices.summary)


def _lines(made: "Bill") -> "Table":
    numbers = ("$ a month", "quantity", "$")
    table = new_table("service", "$ a month", "what", "quantity", "$", numbers=numbers)
    totals = dict(made.by_service())
    for line in made.lines:
        total = totals.pop(line.service, None)
        service = ("", "") if total is None else (line.service, f"{total:,.2f}")
        quantity = f"{line.quantity:,.0f}" if line.quantity >= 100 else f"{line.quantity:.3g}"
        table.add_row(*service, line.what, quantity, f"{line.dollars:,.2f}")
    return table


def _alternatives(made: "Bill", others: dict[str, float]) -> "Table":
    numbers = ("$ a month", "share")
    table = new_table("the same load with another choice", "$ a month", "share", numbers=numbers)
    for name, total in others.items():
        table.add_row(name, f"{total:,.2f}", f"{total / made.total:.0%}")
    return table


TableCells = Mapping[str, str]
Document = Mapping[str, Any]


def _rows(rows: Iterable[tuple[TableCells, Document]], prices: "Prices", *, as_json: bool) -> None:
    """Print a table, whose rows are given as texts by column and as JSON, as Markdown or as JSON."""
    if as_json:
        show_json([document for _, document in rows])
        return
    every = [cells for cells, _ in rows]
    typer.echo(f"{prices.summary}\n")
    typer.echo(f"| {' | '.join(every[0])} |\n|{'---|' * len(every[0])}")
    for cells in every:
        typer.echo(f"| {' | '.join(cells.values())} |")


def _of_scale(row: "ScaleRow") -> tuple[TableCells, Document]:
    load, needs = row.workload, row.needs
    cells = {
        "joins/s": f"{load.joins:,g}",
        "a request": str(load.batch),
        "spread": row.spread,
        "$ a million joins": "-" if row.a_million is None else f"{row.a_million:.2f}",
        "slots": str(load.slots),
        "at once": f"{needs.workers:,}",
        "s a step": "-" if row.a_million is None else f"{needs.seconds:,.0f}",
        "limits": "; ".join(needs.limits) or "none",
    }
    return cells, {
        "joins": load.joins,
        "batch": load.batch,
        "sets": load.sets,
        "dollarsAMillionJoins": row.a_million,
        **asdict(needs),
        "seconds": None if row.a_million is None else needs.seconds,
    }


def _of_others(row: "Compared") -> tuple[TableCells, Document]:
    cells = {
        "load": row.load,
        "kanon, $ a month": f"{row.ours.total:,.0f}",
        "$ a million joins": f"{row.a_million:.2f}",
        **{name: f"{total:,.0f}" for name, total in row.others.items()},
    }
    return cells, {
        "load": row.load,
        "dollarsAMonth": row.ours.total,
        "dollarsAMillionJoins": row.a_million,
        "elsewhere": dict(row.others),
    }


def _of_anonymous(row: tuple[str, float]) -> tuple[TableCells, Document]:
    what, dollars = row
    return {"what": what, "$": f"{dollars:.2f}"}, {"what": what, "dollarsAMillion": dollars}


def _of_jobs(row: "JobCost") -> tuple[TableCells, Document]:
    load, times = row.load, row.times
    cells = {
        "reports": f"{load.reports:,.0f}",
        "keys": f"{load.keys:,}",
        "concurrency": f"{load.concurrency:,}",
        "shards": f"{load.shards:,}",
        "parts": str(load.parts),
        **{stage: _time(seconds) for stage, seconds in times.stages.items()},
        "$ a job": f"{row.job.total:.2f}",
        "$ its reports": f"{row.collected.total:,.2f}",
        "limits": "; ".join(row.limits) or "none",
    }
    return cells, {
        "reports": load.reports,
        **{name: getattr(load, name) for name in ("keys", "concurrency", "shards", "parts")},
        "secondsAJob": times.stages,
        "dollarsAJob": row.job.total,
        "dollarsToCollect": row.collected.total,
        "limits": list(row.limits),
    }


def _time(seconds: float) -> str:
    return f"{seconds:,.1f} s" if seconds < 120 else f"{seconds / 60:,.0f} min"
