"""``kanon cost``: the monthly bill of a workload by service, and the cost of other choices."""

from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kanon.cli.errors import one_line
from kanon.cli.options import Json, OneType, TypesFile, own_types, refuse_unused
from kanon.cli.screen import new_table, show_json

if TYPE_CHECKING:
    from rich.table import Table

    from kanon.cost.billing import Bill, Prices
    from kanon.cost.reports import JobTimes, ReportLoad
    from kanon.cost.reports import Row as ReportsRow
    from kanon.cost.scale import Needs, Row
    from kanon.cost.workload import Workload


FOR_ANY_TABLE = {"table", "prices", "measured", "markdown", "as_json"}
FOR_SCALE = FOR_ANY_TABLE | {"given", "types", "period"}
DEFAULT_TYPE = '{"k": 50, "window": 720, "profile": "published"}'


class Shown(StrEnum):
    """Tables to show instead of a bill."""

    SCALE = "scale"
    REPORTS = "reports"


def cost(
    context: typer.Context,
    joins: Annotated[float, typer.Option(help="Joins per second, the mean over the month.")] = 10.0,
    batch: Annotated[int, typer.Option(help="Joins per request, 1 to 500.")] = 1,
    queries: Annotated[float, typer.Option(help="Queries per second.")] = 0.0,
    hashes: Annotated[int, typer.Option(help="Hashes per query, 1 to 1,000.")] = 100,
    sets: Annotated[int, typer.Option(help="Sets that get joins.")] = 1_000_000,
    popularity: Annotated[float, typer.Option(help="Exponent of Zipf's law; 0: all sets are equally popular.")] = 1.1,
    slots: Annotated[int | None, typer.Option(help="Slots; by default 16, or more if the workload needs them.")] = None,
    given: OneType = None,
    types: TypesFile = None,
    period: Annotated[int, typer.Option(min=1, help="Seconds per step.")] = 3600,
    architecture: Annotated[str, typer.Option(help="Architecture of the functions: arm64 or x86_64.")] = "arm64",
    reports: Annotated[float, typer.Option(help="Encrypted reports per day; 0 for a stack without reports.")] = 0.0,
    jobs: Annotated[float, typer.Option(help="Jobs per day.")] = 1.0,
    prices: Annotated[Path | None, typer.Option(help="Price file; by default the prices of the package.")] = None,
    measured: Annotated[
        Path | None, typer.Option(help="File of measured values and assumptions; by default that of the package.")
    ] = None,
    table: Annotated[
        Shown | None, typer.Option(help="Show a table instead: scale (rates of joins) or reports (sizes of jobs).")
    ] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print the tables as Markdown.")] = False,
    as_json: Json = False,
) -> None:
    """Estimate the monthly bill of a workload by service, at list prices.

    Example: kanon cost --joins 100 --batch 100 --queries 20 --sets 5000000
    """
    from kanon.cost import reports as of_reports
    from kanon.cost import scale
    from kanon.cost.billing import CostError, bill, read_measured, read_prices
    from kanon.cost.reports import ReportLoad
    from kanon.cost.workload import Workload, added, alternatives, usage

    if table is not None:
        taken = FOR_SCALE if table is Shown.SCALE else FOR_ANY_TABLE
        refuse_unused(context, set(context.params) - taken, "with --table: leave it out")
    elif not reports:
        refuse_unused(context, ("jobs",), "without reports: give --reports")
    own = own_types(given, types, period) or own_types([DEFAULT_TYPE], None, period)
    if own is None or len(own.types) != 1:
        raise typer.BadParameter("give one type only: a bill is for one type")
    (type_,) = own.types.values()
    with one_line(CostError):
        listed, values = read_prices(prices), read_measured(measured)
        if table is Shown.SCALE:
            _scale(list(scale.table(type_.parameters, values, listed)), listed, as_json=as_json)
            return
        if table is Shown.REPORTS:
            _reports(list(of_reports.table(values, listed)), listed, as_json=as_json)
            return
        load = Workload(type_.parameters, joins, batch, queries, hashes, sets, popularity, architecture=architecture)
        needs = scale.needs(load, values)
        load = replace(load, slots=slots or scale.slots_of(needs))
        sent = ReportLoad(reports, jobs=jobs)
        more = of_reports.usage(sent, values, architecture) if reports else {}
        made = bill(added(usage(load, values), more), listed)
        others = {name: bill(used, listed).total for name, used in alternatives(load, values, more).items()}
        needs = replace(needs, limits=(*needs.limits, *of_reports.limits(sent, values)))
        part = ReportsPart(sent, of_reports.times(sent, values), bill(more, listed).total) if reports else None
    estimate = Estimate(load, needs, made, others, listed, part)
    if as_json:
        show_json(estimate.document)
    else:
        _show(estimate, markdown=markdown)


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
        return (
            f"{load.reports:,.0f} reports a day of {load.size:,} bytes. Jobs a day: {load.jobs:,g}, each of"
            f" {load.in_a_job:,.0f} reports, {load.keys:,} keys, {load.rows:,} rows of budget. Shards of a job:"
            f" {load.shards:,}. Parts of its summary: {load.parts}. It takes about {self.times.total:,.0f} s.\n"
            f"Reports are ${self.dollars:,.2f} of the total.\n"
        )

    @property
    def document(self) -> dict[str, Any]:
        """The part as JSON."""
        times = self.times
        return {
            "shards": self.load.shards,
            "parts": self.load.parts,
            "secondsAJob": {"map": times.mapping, "reduce": times.reducing, "commit": times.committing},
            "dollarsAMonth": self.dollars,
        }


@dataclass(frozen=True)
class Estimate:
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
        from kanon.cost.scale import MONTH

        dollars = self.made.total - (self.part.dollars if self.part else 0.0)
        return dollars / (self.load.joins * MONTH / 1e6) if self.load.joins else None

    @property
    def summary(self) -> str:
        """The estimate in words, without the tables."""
        load, each = self.load, self.a_million
        of_joins = f", ${each:,.2f} a million joins" if each else ""
        limits = "".join(f"Beyond a limit: {limit}.\n" for limit in self.needs.limits)
        return (
            f"{load.joins:,g} joins/s in requests of {load.batch}, {load.queries:,g} queries/s of {load.hashes} hashes,"
            f" {load.sets:,} sets, {load.touched_a_step:,.0f} of them touched in a step.\n"
            f"Evaluate workers needed: {self.needs.workers}. Slots: {load.slots}.\n"
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


def _show(estimate: Estimate, *, markdown: bool) -> None:
    from rich.console import Console

    typer.echo(estimate.summary)
    console, made = Console(width=120), estimate.made
    for table in (_lines(made, markdown=markdown), _alternatives(made, estimate.others, markdown=markdown)):
        if markdown:
            with console.capture() as captured:
                console.print(table)
            typer.echo("\n".join(line.rstrip() for line in captured.get().strip().splitlines()))
        else:
            console.print(table)
        typer.echo()
    typer.echo(estimate.prices.summary)


def _table(*columns: str, markdown: bool) -> "Table":
    """A table with right-aligned number columns."""
    from rich import box

    numbers = [column for column in columns if column[0] == "$" or column in ("quantity", "share")]
    table = new_table(*columns, numbers=numbers)
    table.box = box.MARKDOWN if markdown else box.HEAVY_HEAD
    return table


def _lines(made: "Bill", *, markdown: bool) -> "Table":
    table = _table("service", "$ a month", "what", "quantity", "$", markdown=markdown)
    totals = dict(made.by_service())
    for line in made.lines:
        total = totals.pop(line.service, None)
        service = ("", "") if total is None else (line.service, f"{total:,.2f}")
        table.add_row(*service, line.what, _quantity(line.quantity), f"{line.dollars:,.2f}")
    return table


def _quantity(number: float) -> str:
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"


def _alternatives(made: "Bill", others: dict[str, float], *, markdown: bool) -> "Table":
    table = _table("the same load with another choice", "$ a month", "share", markdown=markdown)
    for name, total in others.items():
        table.add_row(name, f"{total:,.2f}", f"{total / made.total:.0%}")
    return table


def _scale(rows: "list[Row]", prices: "Prices", *, as_json: bool) -> None:
    """The table of workloads, as Markdown or JSON."""
    if as_json:
        show_json([_row(row) for row in rows])
        return
    typer.echo(f"{prices.summary}\n")
    typer.echo("| joins/s | a request | spread | $ a million joins | slots | workers | limits | with files on S3 |")
    typer.echo("|---|---|---|---|---|---|---|---|")
    for row in rows:
        limits = "; ".join(row.needs.limits) or "none"
        typer.echo(
            f"| {row.workload.joins:,g} | {row.workload.batch} | {row.spread} | {row.a_million:.2f} |"
            f" {row.needs.slots or 'more than 256'} | {row.needs.workers:,} | {limits} | {row.merged_a_million:.2f} |"
        )


def _row(row: "Row") -> dict[str, Any]:
    return {
        "joins": row.workload.joins,
        "batch": row.workload.batch,
        "sets": row.workload.sets,
        "dollarsAMillionJoins": row.a_million,
        "slots": row.needs.slots,
        "workers": row.needs.workers,
        "limits": list(row.needs.limits),
        "mergedOnS3": row.merged_a_million,
    }


def _reports(rows: "list[ReportsRow]", prices: "Prices", *, as_json: bool) -> None:
    """The table of jobs, as Markdown or JSON."""
    if as_json:
        show_json([_reports_row(row) for row in rows])
        return
    typer.echo(f"{prices.summary}\n")
    typer.echo(
        "| reports | keys | concurrency | shards | parts | map | reduce | commit | $ a job | $ its reports | limits |"
    )
    typer.echo("|---|---|---|---|---|---|---|---|---|---|---|")
    for row in rows:
        load, times = row.load, row.times
        typer.echo(
            f"| {load.in_a_job:,.0f} | {load.keys:,} | {load.concurrency:,} | {load.shards:,} | {load.parts} |"
            f" {_time(times.mapping)} | {_time(times.reducing)} | {_time(times.committing)} | {row.job.total:.2f} |"
            f" {row.collected.total:,.2f} | {'; '.join(row.limits) or 'none'} |"
        )


def _time(seconds: float) -> str:
    return f"{seconds:,.1f} s" if seconds < 120 else f"{seconds / 60:,.0f} min"


def _reports_row(row: "ReportsRow") -> dict[str, Any]:
    return {
        "reports": row.load.in_a_job,
        "keys": row.load.keys,
        "concurrency": row.load.concurrency,
        "shards": row.load.shards,
        "parts": row.load.parts,
        "secondsAJob": {"map": row.times.mapping, "reduce": row.times.reducing, "commit": row.times.committing},
        "dollarsAJob": row.job.total,
        "dollarsToCollect": row.collected.total,
        "limits": list(row.limits),
    }
