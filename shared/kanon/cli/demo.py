"""``kanon demo``: sends a join log through the HTTP API on a simulated clock and compares the answers."""

import time
from datetime import datetime
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from kanon.cli.extras import extra

if TYPE_CHECKING:
    from kanon.gate.mechanism.parameters import Parameters
    from kanon.keys import Secret
    from kanon.local import Stack
    from kanon.local.replay import Result


def demo(
    log: Annotated[
        Path | None,
        typer.Option(
            exists=True, allow_dash=True, help="Join log: CSV, JSON lines or Parquet, plain or gzipped; - for stdin."
        ),
    ] = None,
    columns: Annotated[
        str, typer.Option(help="What the log calls time, set and client, separated by commas.")
    ] = "time,set,client",
    first: Annotated[
        datetime | None, typer.Option("--from", formats=["%Y-%m-%d"], help="First day of the log.")
    ] = None,
    last: Annotated[datetime | None, typer.Option("--to", formats=["%Y-%m-%d"], help="Last day of the log.")] = None,
    picture: Annotated[Path, typer.Option(help="File for the picture.")] = Path("build/demo.png"),
    seed: Annotated[int, typer.Option(help="Seed of the generated log and of the keys.")] = 1,
    engine: Annotated[str, typer.Option(help="AWS emulator: ministack or moto.")] = "ministack",
) -> None:
    """Replay a join log hour by hour, and compare every answer with the exact counts."""
    from kanon.client import ApiError
    from kanon.gate.types import read_types
    from kanon.joinlog import Columns, LogError
    from kanon.keys import Secret

    with extra("local"):
        import matplotlib as mpl  # noqa: F401, missed now and not after the replay

        from kanon.local import EngineError, Stack
        from kanon.local.logs import generated_log, read_log
        from kanon.local.picture import draw
        from kanon.local.replay import TYPE, ReplayError, replay

    names = columns.split(",")
    if len(set(names) - {""}) != 3 or len(names) != 3:
        raise typer.BadParameter(f"--columns takes three names, as time,set,client, not {columns}")
    console, began = Console(), time.monotonic()
    try:
        joins = read_log(log, first, last, Columns(*names)) if log else generated_log(seed)
        console.print(f"{joins.title}: {len(joins.joins):,} joins. Building the stack on {engine}.")
        bar = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        with Stack(engine=engine, start=joins.start, seed=seed, name="kanon-demo") as stack:
            with Progress(*bar, console=console) as progress:
                task = progress.add_task("joins sent", total=len(joins.joins))
                result = replay(stack, joins, lambda count: progress.advance(task, count))
            variables = stack.functions["join"].environment
            pepper = Secret.derived("set-pepper", stack.storage.secrets["SetPepper"])
            console.print(summary(result, stack, time.monotonic() - began))
    except (ApiError, EngineError, LogError, ReplayError) as error:
        console.print(f"[red]{escape(str(error))}[/red]")
        raise typer.Exit(1) from error
    parameters = read_types(variables["KANON_TYPES"], result.period)[TYPE].parameters
    title = f"Sets near the threshold ({joins.title}; k={result.k}, window {result.window} steps)"
    phases = {name: _phase(pepper, name, parameters) for name in result.histories}
    draw(result, parameters, phases, title, picture)
    console.print(f"Picture: {picture}")


def _phase(pepper: "Secret", name: str, parameters: "Parameters") -> int:
    """The phase of a set, which says where its instances begin. It needs the set pepper of the demo's stack."""
    from kanon.gate.mechanism.steps import phase_of
    from kanon.gate.names import set_key
    from kanon.local.replay import TYPE

    key = set_key(pepper, TYPE, sha256(name.encode()).digest())
    return phase_of(key, parameters.window, parameters.phase)


def summary(result: "Result", stack: "Stack", elapsed: float) -> Table:
    """The results of the replay as a table. ``elapsed`` in s."""
    confusion, meter = result.confusion(), stack.meter
    pairs = sum(confusion.values()) or 1
    joins = result.joins or 1
    false_true, false_false = confusion[True, False], confusion[False, True]
    logged, evaluated = meter.written["join"] / joins, meter.written["evaluate"] / joins
    read = meter.read.get("evaluate", 0.0) / joins
    table = Table(show_header=False, title="Replay", title_justify="left")
    for name, value, remark in (
        ("joins", f"{result.joins:,}", "over HTTP, up to 500 a call"),
        ("sets", f"{len(result.histories):,}", ""),
        ("evaluations", f"{meter.calls['evaluate', 'PutItem']:,}", f"of a set, in {result.steps:,} steps"),
        ("flips", f"{result.flips:,}", "changes of a status"),
        ("answers", f"{pairs:,}", "one per set and step, compared with the exact count"),
        ("false positives", f"{false_true:,}", f"{false_true / pairs:.2%}: true, count below k = {result.k}"),
        ("false negatives", f"{false_false:,}", f"{false_false / pairs:.2%}: false, count at least k"),
        ("write units a join", f"{logged + evaluated:.2f}", f"log {logged:.2f}, evaluation {evaluated:.2f}"),
        ("read units a join", f"{read:.2f}", "evaluation; a join reads nothing"),
        ("elapsed", f"{elapsed:.0f} s", f"for {result.steps * result.period / 86400:.1f} days"),
    ):
        table.add_row(name, value, remark)
    table.columns[1].justify = "right"
    return table
