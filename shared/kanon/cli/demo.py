"""``kanon demo``: sends a join log through the HTTP API on a simulated clock and compares the answers."""

import time
from contextlib import ExitStack
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kanon.cli.errors import one_line
from kanon.cli.files import Force, OutputFiles
from kanon.cli.options import (
    COLUMNS,
    ColumnNames,
    DateOrder,
    OneType,
    SkipBadRows,
    TypesFile,
    checked_types,
    columns_hinted,
    log_columns,
    log_reading,
    own_types,
    refuse_unused,
    say_left_out,
)
from kanon.cli.screen import new_table, pages, plain, program, progress, screen, working

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Callable, Collection, Mapping, Sequence

    from rich.table import Table

    from kanon.demo.logs import DemoLog
    from kanon.demo.machine import Machine
    from kanon.demo.replay import Result
    from kanon.gate.mechanism.parameters import Parameters
    from kanon.gate.types import Type
    from kanon.joinlog import LogReading
    from kanon.keys import Secret

PERIOD = 3600
FALSE_POSITIVES = (
    "False positives: a set that turned true stays true until its restart, also while its count is below k. The noise"
    " causes the others."
)
WEEK = '{"fledge":{"k":50,"window":168,"profile":"crossing"}}'
MONTH = '{"fledge":{"k":50,"window":720,"profile":"crossing"}}'
"""The types of the generated log, in which statuses end as it has two windows of a week, and of other logs."""
STARTING, A_STEP, A_JOIN, AN_EVALUATION = 1.0, 0.01, 0.0001, 0.0001
"""Seconds of a demo on one core, for the estimate: start and end, a step, a join, the evaluation of a set."""


def _day(text: str) -> datetime:
    try:
        return datetime.strptime(text, "%Y-%m-%d")  # noqa: DTZ007, read_log takes it as UTC
    except ValueError as error:
        raise typer.BadParameter(f"{text!r} is not a day: write it as 2026-01-31") from error


def demo(
    context: typer.Context,
    log: Annotated[
        Path | None,
        typer.Option(
            exists=True, allow_dash=True, help="Join log: CSV, JSON or Parquet, plain or gzipped; - for stdin."
        ),
    ] = None,
    columns: ColumnNames = COLUMNS,
    dates: DateOrder = None,
    skip_bad_rows: SkipBadRows = False,
    first: Annotated[
        datetime | None,
        typer.Option("--from", parser=_day, metavar="DATE", help="First day to replay, as 2026-01-31."),
    ] = None,
    last: Annotated[
        datetime | None,
        typer.Option("--to", parser=_day, metavar="DATE", help="Last day to replay, as 2026-01-31."),
    ] = None,
    type_: OneType = None,
    types_file: TypesFile = None,
    picture: Annotated[Path, typer.Option("--plot", help="File for the picture (SVG).")] = Path("build/demo.svg"),
    seed: Annotated[int, typer.Option(min=0, help="Seed of the generated log and of the keys.")] = 1,
    force: Force = False,
) -> None:
    """Replay a join log hour by hour, and compare every answer with the exact counts.

    Without --log it replays a generated log of 16 days, with a window of a week. Of a listed type it also draws which
    values were listed when.

    Example: kanon demo --log joins.csv --type '{"k": 20, "window": 168, "profile": "sharp-2"}'
    """
    if log is None:
        refuse_unused(
            context, ("first", "last", "columns", "dates", "skip_bad_rows"), "without a log: name it with --log"
        )
    own = own_types(type_, types_file, PERIOD)
    outputs = OutputFiles(context, force=force)
    for name, path in _pictures(picture, own.types if own else ["fledge"]).items():
        outputs.picture(path, "--plot", ".svg")
        if own and own.types[name].listed:
            outputs.picture(_of_list(path), "--plot", ".svg")
    reading = log_reading(dates, skip_bad_rows)
    began = time.monotonic()
    from kanon.client import ApiError
    from kanon.demo.machine import machine
    from kanon.demo.replay import ReplayError

    with one_line(ApiError, ReplayError, status=1), ExitStack() as running:
        with working("reading the log and starting the service"):
            joins = _log(log, first, last, columns, seed, reading)
            types = own or checked_types(MONTH if log else WEEK, PERIOD)
            if any(each.listed for each in types.types.values()):
                _check_values(joins)
            service = running.enter_context(machine(types.document, PERIOD, joins.start, seed))
        _demo(service, types.types, joins, picture, outputs, began)


def _log(
    log: Path | None, first: datetime | None, last: datetime | None, columns: str, seed: int, reading: "LogReading"
) -> "DemoLog":
    from kanon.demo.logs import generated_log, read_log
    from kanon.simulate.run import check_span

    if log is None:
        return generated_log(seed, days=16, joins=12_000, sets=120)
    with columns_hinted():
        read = read_log(log, first, last, log_columns(columns), reading)
    say_left_out(reading)
    check_span(_steps(read), PERIOD, "give --from and --to")
    return read


def _steps(log: "DemoLog") -> range:
    """The steps from the first join to the last one."""
    return range(log.start // PERIOD, int(log.joins[-1].time // PERIOD) + 1)


def _check_values(log: "DemoLog") -> None:
    """End the command if a set of the log is no value of a listed type."""
    from kanon.client.answers import value_field

    with one_line(ValueError):
        for value in {join.set for join in log.joins}:
            value_field(value, listed=True)


def _pictures(picture: Path, types: "Collection[str]") -> dict[str, Path]:
    """The file for the picture of each type."""
    return {name: picture if len(types) == 1 else picture.with_stem(f"{picture.stem}-{name}") for name in types}


def _of_list(picture: Path) -> Path:
    """The file for the picture of the lists of a type."""
    return picture.with_stem(f"{picture.stem}-list")


def _demo(
    service: "Machine", types: "Mapping[str, Type]", log: "DemoLog", picture: Path, outputs: OutputFiles, began: float
) -> None:
    """Replay the log. Show the table, the pictures and the next commands."""
    from kanon.demo.listed_picture import ListHistory
    from kanon.demo.listed_picture import draw as draw_lists
    from kanon.demo.picture import draw
    from kanon.demo.replay import replay
    from kanon.serving.lists import history_of

    steps = len(_steps(log))
    told = ", ".join(map(_described, types.values()))
    typer.echo(
        f"{log.title}: {len(log.joins):,} joins in {steps:,} steps of an hour, {told}."
        f" This takes about {_in_words(_estimate(log, steps, len(types)))}."
    )
    with progress("steps replayed", steps) as advance:
        results = replay(service, log, list(types), _Watch(advance))
    screen().print(summary(results, service.evaluations, time.monotonic() - began))
    typer.echo(FALSE_POSITIVES)
    for name, result in results.items():
        parameters = types[name].parameters
        phases = {set_: _phase(service.directory.joining.pepper, name, set_, parameters) for set_ in result.histories}
        title = f"Sets near the threshold ({log.title}; k={result.k}, window {result.window} steps)"
        file = _pictures(picture, results)[name]
        outputs.write({file: draw(result, parameters, phases, title)})
        typer.echo(f"Picture: {file}")
        if types[name].listed:
            lists = ListHistory.read(history_of(service.directory.path, name), PERIOD)
            outputs.write({_of_list(file): draw_lists(lists, f"The released list, hour by hour ({log.title})")})
            typer.echo(f"Picture: {_of_list(file)}")
    typer.echo(f"\n{next_steps(program())}")


def _phase(pepper: "Secret", type_name: str, name: str, parameters: "Parameters") -> int:
    """The phase of a set, where its instances or epochs begin, computed with the set pepper of the demo."""
    from kanon.gate.mechanism.steps import phase_of
    from kanon.gate.names import set_key

    key = set_key(pepper, type_name, sha256(name.encode()).digest())
    return phase_of(key, parameters.cycle, parameters.phase)


def _described(type_: "Type") -> str:
    p = type_.parameters
    return f"{type_.name} with k = {p.k} and a window of {p.window:,} steps"


def _estimate(log: "DemoLog", steps: int, types: int) -> float:
    """Seconds that a demo of this log takes, roughly."""
    evaluations = len({(join.set, join.time // PERIOD) for join in log.joins})
    return STARTING + A_STEP * steps + types * (A_JOIN * len(log.joins) + AN_EVALUATION * evaluations)


def _in_words(seconds: float) -> str:
    """A length of time in tens of seconds, or in minutes."""
    return f"{max(1, round(seconds / 10)) * 10} seconds" if seconds < 95 else f"{round(seconds / 60)} minutes"


class _Watch:
    """Shows the progress of the replay, and the first set that reads true."""

    def __init__(self, advance: "Callable[[int], None]") -> None:
        self._advance, self._steps, self._began = advance, 0, time.monotonic()
        self._told = False

    def __call__(self, results: "Mapping[str, Result]") -> None:
        steps = max(result.steps for result in results.values())
        self._advance(steps - self._steps)
        self._steps = steps
        found = next((result for result in results.values() if result.first_true), None)
        if not self._told and found is not None and found.first_true is not None:
            self._told, (name, count) = True, found.first_true
            end = datetime.fromtimestamp(found.start + found.steps * found.period, UTC)
            typer.echo(
                f"{plain(name)} is the first set that reads true: {count} clients by {end:%Y-%m-%d %H:%M} UTC"
                f" ({time.monotonic() - self._began:.0f} s after the start of the replay)."
            )


def next_steps(kanon: str) -> str:
    """Commands to try after a demo. ``kanon`` is the name of the program as the user types it."""
    in_checkout = kanon.startswith(".venv-demo/")
    simulate = "make simulate LOG=joins.csv" if in_checkout else f"{kanon} simulate joins.csv"
    own = '{"k": 20, "window": 168, "profile": "sharp-2"}'
    steps = {
        f"{kanon} demo --type '{own}'": "the same joins with a type of your own",
        f"{kanon} demo --log joins.csv --from 2026-01-05 --to 2026-01-12": "your own log: columns time, set, client",
        simulate: "what k, window and noise would do on your log, and the price",
        f"{kanon} plan --k 20 --window 168 --compare": "what each noise profile guarantees",
        "make serve" if in_checkout else f"{kanon} serve --data data --type '{own}'": "the service itself",
    }
    width = max(map(len, steps))
    lines = [f"  {command:{width}}   {meaning}" for command, meaning in steps.items()]
    return "\n".join(["What to try next:", *lines, pages("docs/start.md explains every step.")])


def summary(results: "Mapping[str, Result]", evaluations: int, elapsed: float) -> "Table":
    """The results of the replay as a table, one column per type. ``elapsed`` is in seconds."""
    one = next(iter(results.values()))
    confusions = [result.confusion() for result in results.values()]
    table = new_table("", *results, "", numbers=results, title="Replay")
    table.show_header = len(results) > 1

    def row(name: str, values: "Sequence[str]", remark: str = "") -> None:
        table.add_row(name, *values, *[""] * (len(results) - len(values)), remark)

    def share(part: int, whole: int) -> str:
        return f"{part:,}" if part == 0 else f"{part:,} ({part / whole:.2%})"

    def false(confusion: "Counter[tuple[bool, bool]]", status: bool) -> str:
        return share(confusion[status, not status], confusion[status, True] + confusion[status, False])

    row("joins", [f"{one.joins:,}"], "over HTTP, up to 500 a call")
    row("sets", [f"{len(one.histories):,}"])
    row("evaluations", [f"{evaluations:,}"], f"of a set, in {one.steps:,} steps")
    row("flips", [f"{result.flips:,}" for result in results.values()], "changes of a status")
    row("answers", [f"{sum(c.values()):,}" for c in confusions], "one per set and step, compared with the exact count")
    row(
        "false positives",
        [false(c, True) for c in confusions],
        "of the answers true: count below k",
    )
    row("false negatives", [false(c, False) for c in confusions], "of the answers false: count at least k")
    row("elapsed", [f"{elapsed:.0f} s"], f"for {one.steps * one.period / 86400:.1f} days")
    return table
