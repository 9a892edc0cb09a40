"""``kanon simulate``: what types of one's own would answer on a log of one's own."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kanon.cli.extras import extra
from kanon.cli.own_types import OneType, TypesFile, own_types

if TYPE_CHECKING:
    from rich.console import Console

    from kanon.gate.types import Type
    from kanon.simulate.figures import Judged
    from kanon.simulate.run import Simulation

MOST_TYPES = 24
TYPES_A_TABLE = 4
NAME = "fledge"


def simulate(
    log: Annotated[
        Path,
        typer.Argument(help="Join log: CSV, JSON lines or Parquet, plain or gzipped; - for stdin.", show_default=False),
    ],
    columns: Annotated[
        str, typer.Option(help="What the log calls time, set and client, separated by commas.")
    ] = "time,set,client",
    k: Annotated[str, typer.Option("--k", help="Thresholds, separated by commas.")] = "50",
    window: Annotated[str, typer.Option(help="Windows in steps, separated by commas.")] = "720",
    profile: Annotated[
        str, typer.Option(help="Noise: profiles, separated by commas. Those too wide for a k are left out.")
    ] = "published,balanced-2,sharp-2",
    type_: OneType = None,
    types_file: TypesFile = None,
    period: Annotated[int, typer.Option(min=1, max=86_400, help="Seconds per step.")] = 3600,
    seed: Annotated[int, typer.Option(help="Seed of the keys. No deployment's keys can be used.")] = 1,
    html: Annotated[Path | None, typer.Option(help="Write a report with pictures as one HTML page.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Simulate types on a log: what becomes k-anonymous and when, how far answers are off, what clients lose.

    Every k, window and profile is combined with every other, and each combination is one column of the table. --type
    and --types take their place. The log never leaves this machine, and the result is not private.
    """
    with extra("log"):
        from kanon.joinlog.batches import read_batches
    from kanon.joinlog import Columns, LogError
    from kanon.simulate.figures import as_json as told
    from kanon.simulate.keys import Keys
    from kanon.simulate.run import simulate as run

    if html is not None:
        with extra("plot"):
            import matplotlib as mpl  # noqa: F401, missed now and not after the simulation
    names = columns.split(",")
    if len(set(names) - {""}) != 3 or len(names) != 3:
        raise typer.BadParameter(f"--columns takes three names, as time,set,client, not {columns}")
    own = own_types(type_, types_file, period)
    types = list(own.types.values()) if own else _combined(k, window, profile, period)
    try:
        result = run(read_batches(log, Columns(*names)), types, Keys.from_seed(seed), period)
    except LogError as error:
        typer.echo(f"kanon simulate: {error}", err=True)
        raise typer.Exit(1) from error
    if html is not None:
        _write(html, result)
    if as_json:
        typer.echo(json.dumps(told(result), indent=2))
    else:
        _show(result)
        if html is not None:
            typer.echo(f"Report: {html}")


def _combined(k: str, window: str, profile: str, period: int) -> "list[Type]":
    """A type for each combination that the service would accept; a line for each that it would not."""
    from kanon.errors import ConfigurationError
    from kanon.gate.types import read_types

    types: list[Type] = []
    for threshold in _numbers(k, "--k"):
        for steps in _numbers(window, "--window"):
            for name in profile.split(","):
                entry = {"k": threshold, "window": steps, "profile": name.strip()}
                try:
                    types += read_types(json.dumps({NAME: entry}), period).values()
                except ConfigurationError as error:
                    reason = str(error).removeprefix(f"type '{NAME}': ")
                    typer.echo(f"left out: k={threshold} window={steps} {name}: {reason}", err=True)
    if not types:
        raise typer.BadParameter("no combination of --k, --window and --profile can be used")
    if len(types) > MOST_TYPES:
        raise typer.BadParameter(f"{len(types)} combinations are more than {MOST_TYPES}: give fewer values")
    return types


def _numbers(text: str, option: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError as error:
        raise typer.BadParameter(
            f"whole numbers separated by commas, as 50,100, not {text!r}", param_hint=option
        ) from error


def _write(path: Path, result: "Simulation") -> None:
    from kanon.simulate.page import page

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(page(result), encoding="utf-8")
    except OSError as error:
        typer.echo(f"kanon simulate: {path} cannot be written: {error.strerror}", err=True)
        raise typer.Exit(1) from error


def _show(result: "Simulation") -> None:
    from rich.console import Console

    from kanon.simulate.figures import NOT_PRIVATE, judged, title

    console = Console(highlight=False)
    types = judged(result)
    console.print(title(result), soft_wrap=True)
    for start in range(0, len(types), TYPES_A_TABLE):
        _table(console, types[start : start + TYPES_A_TABLE])
    console.print(NOT_PRIVATE, soft_wrap=True)
    for one in types:
        console.print(f"\nTypes for {one.label}:", soft_wrap=True)
        typer.echo(json.dumps(one.as_json()["types"]))


def _table(console: "Console", types: "Sequence[Judged]") -> None:
    from rich.table import Table

    from kanon.simulate.figures import SECTIONS

    table = Table()
    table.add_column("")
    for one in types:
        table.add_column(one.label, justify="right")
    for name, rows in SECTIONS:
        table.add_section()
        table.add_row(f"[bold]{name}[/bold]")
        for row in rows:
            table.add_row(row.name, *(row.value(one) for one in types))
    console.print(table)
