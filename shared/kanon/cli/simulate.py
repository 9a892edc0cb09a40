"""``kanon simulate``: computes the answers of types on the operator's log."""

import json
import re
from collections.abc import Sequence
from contextlib import ExitStack
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kanon.cli.files import Force, OutputFiles
from kanon.cli.options import (
    COLUMNS,
    ColumnNames,
    DateOrder,
    Json,
    OneType,
    SkipBadRows,
    StepLength,
    TypesFile,
    checked_types,
    columns_hinted,
    log_columns,
    log_reading,
    own_types,
    refuse_unused,
    say_left_out,
)
from kanon.cli.screen import new_table, pages, progress, screen, show_json, working

if TYPE_CHECKING:
    from rich.table import Table

    from kanon.gate.types import Type
    from kanon.simulate.part import PartKeys
    from kanon.simulate.run import GatheredLog, Simulation
    from kanon.simulate.table import Judged

MOST_TYPES = 24
TYPES_A_TABLE = 4
NAME = "fledge"


def simulate(
    context: typer.Context,
    log: Annotated[
        Path,
        typer.Argument(help="Join log: CSV, JSON or Parquet, plain or gzipped; - for stdin.", show_default=False),
    ],
    columns: ColumnNames = COLUMNS,
    dates: DateOrder = None,
    skip_bad_rows: SkipBadRows = False,
    k: Annotated[str, typer.Option("--k", help="Thresholds, separated by commas.")] = "50",
    window: Annotated[str, typer.Option(help="Windows in steps, separated by commas.")] = "720",
    profile: Annotated[
        str, typer.Option(help="Noise profiles, separated by commas. Those too wide for a k are left out.")
    ] = "crossing,published,sharp-2",
    type_: OneType = None,
    types_file: TypesFile = None,
    period: StepLength = 3600,
    seed: Annotated[int, typer.Option(help="Seed of the keys. The keys of a deployment cannot be used.")] = 1,
    batch: Annotated[int, typer.Option(min=1, max=500, help="Joins per request, for the price.")] = 1,
    prices: Annotated[Path | None, typer.Option(help="Price file in the form of kanon cost.")] = None,
    html: Annotated[Path | None, typer.Option(help="Write a report with pictures as one HTML page.")] = None,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Simulate types on a log: which sets become k-anonymous and when, the errors of answers, the privacy loss.

    Each combination of k, window and profile is one column of the table. --type and --types replace them. The log never
    leaves this machine, and the result is not private.

    Example: kanon simulate joins.csv --k 50,100 --window 168,720 --html build/report.html
    """
    from kanon.cost.billing import read_measured, read_prices
    from kanon.joinlog.numbered import read_batches
    from kanon.simulate.part import PartKeys
    from kanon.simulate.run import gather
    from kanon.simulate.table import Pricing, judge
    from kanon.simulate.table import as_json as document

    outputs = OutputFiles(context, force=force)
    outputs.check(html, "--html")
    if html is not None:
        import matplotlib as mpl  # noqa: F401, fail now and not after the simulation
    named, reading = log_columns(columns), log_reading(dates, skip_bad_rows)
    own = own_types(type_, types_file, period)
    if own:
        refuse_unused(context, ("k", "window", "profile"), "with --type or --types: change the type")
    types = list(own.types.values()) if own else _combined(k, window, profile, period)
    pricing = Pricing(read_prices(prices), read_measured(), batch)
    with ExitStack() as open_:
        with columns_hinted(), working("reading the log"):
            gathered_log = open_.enter_context(gather(read_batches(log, named, reading), period))
        say_left_out(reading)
        result = _decide(gathered_log, types, PartKeys.from_seed(seed))
    found = judge(result, pricing)
    if html is not None:
        from kanon.simulate.page import page

        outputs.write({html: page(result, found).encode()})
    if as_json:
        show_json(document(result, found))
        return
    _show(result, found)
    if html is not None:
        typer.echo(f"Report: {html}")


def _decide(log: "GatheredLog", types: "Sequence[Type]", keys: "PartKeys") -> "Simulation":
    from kanon.simulate.run import decide

    if len(log.parts) == 1:
        with working("deciding every set"):
            return decide(log, types, keys)
    with progress("parts of the log decided", len(log.parts)) as advance:
        return decide(log, types, keys, advance=advance)


def _combined(k: str, window: str, profile: str, period: int) -> "list[Type]":
    """A type for each combination; a line for each one whose noise is too wide for its k."""
    from kanon.gate.mechanism.parameters import InvalidParametersError, profile_named

    thresholds, windows = _numbers(k, "--k"), _numbers(window, "--window", least=2)
    profiles = [name.strip() for name in profile.split(",")]
    try:
        for name in profiles:
            profile_named(name)
    except InvalidParametersError as error:
        raise typer.BadParameter(str(error), param_hint="--profile") from error
    types: list[Type] = []
    for threshold, steps, name in product(thresholds, windows, profiles):
        if threshold >= (least := _least_k(steps, name, period)):
            entry = {NAME: {"k": threshold, "window": steps, "profile": name}}
            types += checked_types(json.dumps(entry), period, "--k or --window").types.values()
        else:
            typer.echo(f"left out: k={threshold} w={steps} {name}: its noise needs a k of at least {least}", err=True)
    if not types:
        raise typer.BadParameter("no combination of --k, --window and --profile can be used")
    if len(types) > MOST_TYPES:
        raise typer.BadParameter(f"{len(types)} combinations are more than {MOST_TYPES}: give fewer values")
    return types


def _least_k(window: int, profile: str, period: int) -> int:
    """The least k with which a type may have the noise of a profile."""
    from kanon.gate.mechanism import parameters

    threshold_law, query_law = parameters.profile(profile, window, period)
    return 1 - threshold_law.min + query_law.max


def _numbers(text: str, option: str, least: int = 1) -> list[int]:
    """Whole numbers of at most nine digits."""
    parts = [part.strip() for part in text.split(",")]
    if not all(re.fullmatch("0*[1-9][0-9]{0,8}", part) for part in parts):
        raise typer.BadParameter(
            f"give positive whole numbers separated by commas such as 50,100, not {text!r}", param_hint=option
        )
    numbers = list(map(int, parts))
    if min(numbers) < least:
        raise typer.BadParameter(f"must be at least {least}, not {min(numbers)}", param_hint=option)
    return numbers


def _show(result: "Simulation", types: "Sequence[Judged]") -> None:
    from kanon.simulate.table import NOT_PRIVATE, title

    console = screen()
    console.print(title(result), soft_wrap=True)
    for start in range(0, len(types), TYPES_A_TABLE):
        console.print(_table(types[start : start + TYPES_A_TABLE]))
    console.print(f"{types[0].prices.summary}\n{NOT_PRIVATE}", soft_wrap=True)
    console.print(pages("docs/guides/choose.md explains the rows and which choice changes them."), soft_wrap=True)
    for one in types:
        typer.echo(f"\nTypes for {one.label}:\n{json.dumps(one.as_json()['types'])}")


def _table(types: "Sequence[Judged]") -> "Table":
    from kanon.simulate.table import SECTIONS

    labels = [one.label for one in types]
    table = new_table("", *labels, numbers=labels)
    for name, rows in SECTIONS:
        table.add_section()
        table.add_row(f"[bold]{name}[/bold]")
        for row in rows:
            table.add_row(row.name, *(row.value(one) for one in types))
    return table
