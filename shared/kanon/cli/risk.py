"""``kanon risk``: the privacy risks of a log before it is collected or published."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kanon.cli.errors import CommandError
from kanon.cli.files import Force, OutputFiles
from kanon.cli.options import DateOrder, Json, SkipBadRows, User, log_reading, refuse_unused, say_left_out
from kanon.cli.screen import cell, new_table, screen, show_json, working
from kanon.created import PRIVATE

if TYPE_CHECKING:
    from kanon.joinlog import LogReading
    from kanon.risk.hashing import HashKey
    from kanon.risk.joinability import Joinability
    from kanon.risk.sketch_leak import Leak
    from kanon.risk.uniqueness import ColumnUniqueness

risk = typer.Typer(help="Show the privacy risks of a log before it is collected or published.", no_args_is_help=True)

Log = Annotated[Path, typer.Argument(help="CSV, JSON or Parquet, plain or gzipped; - for stdin.", show_default=False)]
Value = Annotated[str, typer.Option(help="Value column.")]
NEAREST = 10
"""So many groups of a log are shown: those nearest below k."""


@contextmanager
def _reading(dates: str | None, skip: bool) -> "Iterator[LogReading]":
    """How a log is read in this context; afterwards it is said what was left out."""
    with working("reading the log"):
        reading = log_reading(dates, skip)
        yield reading
    say_left_out(reading)


@risk.command()
def uniqueness(
    context: typer.Context,
    log: Log,
    value: Value = "set",
    columns: Annotated[
        str | None,
        typer.Option(
            "--combinations",
            help="Several columns, + combines two: set,set+day. day, hour and month come from time (UTC).",
        ),
    ] = None,
    user: User = "client",
    dates: DateOrder = None,
    skip_bad_rows: SkipBadRows = False,
    k: Annotated[list[int] | None, typer.Option(min=2, max=200, help="Thresholds to show; may be repeated.")] = None,
    key: Annotated[Path | None, typer.Option(help="Key file; created if missing. Default: a key for this run.")] = None,
    size: Annotated[int, typer.Option(min=16, max=1 << 20, help="Number of values kept in a sketch.")] = 2_048,
    profile: Annotated[str, typer.Option(help="Noise profile of the service, as kanon plan knows it.")] = "crossing",
    window: Annotated[int, typer.Option(min=2, max=65_535, help="Window of the service, in steps.")] = 720,
    out: Annotated[Path | None, typer.Option(help="Write the sketch (.khll), to merge or join it later.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Write the curve as a PNG.")] = None,
    html: Annotated[Path | None, typer.Option(help="Write the report as one HTML page.")] = None,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Estimate how identifying the values of a column are, and the loss at a threshold k.

    Example: kanon risk uniqueness joins.csv --value set --user client --k 20 --k 50
    """
    from kanon.risk.page import page, picture
    from kanon.risk.sketching import sketches
    from kanon.risk.uniqueness import report

    if columns:
        refuse_unused(context, {"value"}, "with --combinations: name it there")
    if as_json and html is None:
        refuse_unused(context, {"k"}, "with --json, which has the whole curve: leave it out")
    asked = _columns(columns) if columns else [(value,)]
    if out is not None and len(asked) > 1:
        raise CommandError("--out writes one sketch: name one value or combination with --value or --combinations")
    outputs = OutputFiles(context, force=force)
    outputs.check(out, "--out")
    outputs.picture(plot, "--plot")
    outputs.check(html, "--html")
    with _key(key) as hash_key:
        with _reading(dates, skip_bad_rows) as reading:
            made = sketches(log, asked, user, key=hash_key, size=size, reading=reading)
        with working("computing the report"):
            reports = [report(one, user, profile, window) for one in made]
    if out is not None:
        _save(made[0].sketch, out, outputs)
    thresholds = k or [5, 10, 50]
    if plot is not None:
        outputs.write({plot: picture(reports, "png")})
    if html is not None:
        outputs.write({html: page(reports, thresholds).encode()})
    if as_json:
        show_json(_as_json(reports))
    else:
        _show_uniqueness(reports, thresholds)


@contextmanager
def _key(path: Path | None) -> "Iterator[HashKey]":
    """The key in a file, or one for this run. A file that was missing is created, and goes again after an error."""
    from kanon.risk.hashing import HashKey

    missing = path is not None and not path.exists()
    key = HashKey.kept_in(path) if path else HashKey.fresh()
    try:
        yield key
    except BaseException:
        if path and missing:
            path.unlink(missing_ok=True)
        raise


def _columns(text: str) -> list[tuple[str, ...]]:
    asked = [tuple(part.strip() for part in one.split("+")) for one in text.split(",")]
    for one in asked:
        if not all(one) or len(set(one)) < len(one):
            raise CommandError(f"--combinations must look like set,set+day, not {text!r}")
    return asked


def _as_json(reports: "list[ColumnUniqueness]") -> dict[str, Any]:
    if len(reports) == 1:
        return reports[0].as_json()
    return {
        "dangerous": [one.name for one in reports if one.verdict == "dangerous"],
        "columns": [one.as_json() for one in reports],
    }


def _save(sketch: Any, path: Path, outputs: OutputFiles) -> None:
    from kanon.risk.khll import WARNING, to_bytes

    outputs.write({path: to_bytes(sketch)}, PRIVATE)
    typer.echo(f"warning: {path} {WARNING}", err=True)


def _show_uniqueness(reports: "list[ColumnUniqueness]", thresholds: list[int]) -> None:
    from kanon.risk.uniqueness import CAVEATS, REACHED, costs, finding, reached, rows_lost, service_note

    console = screen()

    def say(text: str, style: str | None = None) -> None:
        console.print(text, style=style, markup=False, soft_wrap=True)

    first = reports[0]
    say(f"{first.rows:,} rows, {first.left_out:,} left out because they lack a value or cannot be read.")
    for one in reports:
        say(finding(one), "bold red" if one.verdict == "dangerous" else None)
    for one in reports:
        if one.verdict != "identifier":
            say(costs(one, thresholds))
    table = new_table("least k that loses", *REACHED)
    for one in reports:
        table.add_row(cell(one.name), *reached(one))
    console.print(table)
    say(service_note(first))
    for one in reports:
        for point in one.service.curve:
            if point.k in thresholds and one.verdict != "identifier":
                say(f"{one.name} through the service: k = {point.k} loses {rows_lost(point)}.")
    for caveat in CAVEATS:
        say(caveat)


@risk.command()
def merge(
    context: typer.Context,
    sketches: Annotated[list[Path], typer.Argument(help="Sketch files of the parts of a log, made with one key.")],
    out: Annotated[Path, typer.Option(help="File for the merged sketch.")],
    force: Force = False,
) -> None:
    """Merge sketches of parts of a log, in any order. The result equals the sketch of the whole log.

    Example: kanon risk merge january.khll february.khll --out both.khll
    """
    from kanon.risk.khll import load, merge_parts

    if len({path.resolve() for path in sketches}) < len(sketches):
        raise CommandError("a sketch is given twice, so its rows would count twice: leave one out")
    outputs = OutputFiles(context, force=force)
    outputs.check(out, "--out")
    with working("merging"):
        parts = list(map(load, sketches))
        merged = merge_parts(parts)
    _save(merged, out, outputs)
    sizes = sorted({one.size for one in parts})
    if len(sizes) > 1:
        told = " and ".join(f"{size:,}" for size in sizes)
        typer.echo(f"The sketches keep {told} values: {out} keeps {sizes[0]:,}.")


@risk.command()
def join(
    first: Annotated[Path, typer.Argument(help="Sketch file of one column.", show_default=False)],
    second: Annotated[
        Path, typer.Argument(help="Sketch file of another column, made with the same key.", show_default=False)
    ],
    as_json: Json = False,
) -> None:
    """Estimate whether rows of two logs can be linked by a column: how many values of each occur in the other.

    Example: kanon risk join ours.khll theirs.khll
    """
    from kanon.risk.joinability import joinability
    from kanon.risk.khll import load

    result = joinability(load(first), load(second))
    if as_json:
        show_json(result.as_json())
    else:
        _show_join(result, first.name, second.name)


def _show_join(result: "Joinability", first: str, second: str) -> None:
    from kanon.risk.uniqueness import percent, with_error

    table = new_table("values of", "that occur in", "matched hashes", "thesis's estimator", "values with one user")
    for a, b, containment, unique in (
        (first, second, result.first_in_second, result.first_unique),
        (second, first, result.second_in_first, result.second_unique),
    ):
        matched, error = containment.matched, containment.standard_error or 0
        share = "too few" if matched is None else with_error(matched, error)
        table.add_row(cell(a), cell(b), share, percent(containment.thesis), percent(unique))
    screen().print(table)
    if result.joinable:
        typer.echo("Joinable: rows can be linked through this column, and most of its values point to one user.")
    else:
        typer.echo("Not joinable by this column: too few values are shared, or too few point to one user.")


@risk.command("sketch-leak")
def sketch_leak(
    log: Log,
    group: Annotated[str, typer.Option(help="The values whose users are in the sketch; * and ? are wildcards.")],
    value: Value = "set",
    user: User = "client",
    skip_bad_rows: SkipBadRows = False,
    as_json: Json = False,
) -> None:
    """Attack a stored HyperLogLog: how well it reveals its members.

    Example: kanon risk sketch-leak joins.csv --group 'set-*'
    """
    from kanon.risk.hashing import HashKey
    from kanon.risk.sketch_leak import PRECISION, leak, users_of

    with _reading(None, skip_bad_rows) as reading:
        members, candidates = users_of(log, group, value, user, reading)
    with working("attacking the sketch"):
        result = leak(members, candidates, PRECISION, HashKey.fresh())
    if as_json:
        show_json(result.as_json())
    else:
        _show_leak(result, len(candidates))


def _show_leak(result: "Leak", candidates: int) -> None:
    public, keyed = result.public, result.keyed
    typer.echo(
        f"A HyperLogLog of 2^{result.precision_bits} registers counts {public.members:,} users"
        f" (its estimate: {result.estimate:,.1f}). The attacker tries {candidates:,} users."
    )
    table = new_table("hash", "people found", "strangers found", "precision", "false rate", "predicted")
    for name, attack in (("public", public), ("secret key", keyed)):
        table.add_row(
            name, f"{attack.found:,} of {attack.members:,}", f"{attack.false:,} of {attack.strangers:,}",
            f"{attack.precision:.3f}", f"{attack.false_rate:.5f}", f"{result.predicted_false_rate:.5f}",
        )  # fmt: skip
    screen().print(table)
    typer.echo(
        f"With a secret key {keyed.hit_rate:.2%} of members and {keyed.false_rate:.2%} of strangers are hits;"
        f" guessing does as well with probability {keyed.chance:.2g}. With the key, the attack works as without one."
    )


@risk.command("no-noise")
def no_noise(
    context: typer.Context,
    log: Annotated[
        Path | None, typer.Argument(help="Log from which the rates are computed.", show_default=False)
    ] = None,
    k: Annotated[int, typer.Option(min=1, help="A count of at least k clients is published (T = k - 1).")] = 50,
    fakes: Annotated[list[int] | None, typer.Option(min=0, help="The attacker's fakes; may be repeated.")] = None,
    clients: Annotated[int | None, typer.Option(min=2, help="Without a log: number of real clients.")] = None,
    expected: Annotated[
        list[float] | None, typer.Option(help="Without a log: expected clients in the group; may be repeated.")
    ] = None,
    value: Value = "set",
    user: User = "client",
    dates: DateOrder = None,
    skip_bad_rows: SkipBadRows = False,
    window_days: Annotated[
        int | None, typer.Option(min=1, help="With a log: length of a window in days (UTC).")
    ] = None,
    hourly: Annotated[
        bool,
        typer.Option("--hourly", help="With a log: count the sets that turn true in an hour with one new client."),
    ] = False,
    as_json: Json = False,
) -> None:
    """Estimate the privacy of a threshold without noise against an attacker who only watches.

    With --hourly, show whom the same query would announce if it ran every hour.

    Example: kanon risk no-noise --clients 10000 --expected 30 --k 50
    """
    from kanon.risk.no_noise import CAVEAT, PlainThreshold, rates

    if hourly:
        refuse_unused(context, ("fakes", "clients", "expected"), "with --hourly: leave it out")
        if log is None:
            raise CommandError("--hourly needs a log")
        _hourly(log, k, (value, user), window_days or 30, (dates, skip_bad_rows), as_json=as_json)
        return
    busy = 0
    if log is not None:
        if clients is not None or expected:
            raise CommandError("give either a log, or --clients and --expected")
        with _reading(dates, skip_bad_rows) as reading:
            told = rates(log, value, user, window_days, reading)
        clients = told.clients
        busy = sum(m >= k for _, m in told.groups)
        cases = [(name, m) for name, m in told.groups if m < k][:NEAREST]
    elif clients is None or not expected:
        raise CommandError("give a log, or --clients and at least one --expected")
    else:
        of_log = ("value", "user", "dates", "skip_bad_rows", "window_days")
        refuse_unused(context, of_log, "without a log: leave it out")
        cases = [("", m) for m in expected]
    with working("computing epsilon and delta"):
        results = [
            {"group": name, **PlainThreshold(clients, m / clients, k - 1, b).as_json()}
            for name, m in cases
            for b in fakes or [0, (k - 1) // 2]
        ]
    if as_json:
        facts = {"k": k, "more_than": k - 1, "clients": clients, "groups_from_k_on": busy}
        show_json({**facts, "results": results, "caveat": CAVEAT})
    else:
        _show_no_noise(results, k, clients, busy)
        typer.echo(CAVEAT)


def _hourly(
    log: Path, k: int, columns: tuple[str, str], days: int, how: tuple[str | None, bool], *, as_json: bool
) -> None:
    """Show the flips of a log."""
    from dataclasses import asdict

    from kanon.risk.flips import flips

    value, user = columns
    with _reading(*how) as reading:
        found = flips(log, value, user, k, days * 24, reading)
    if as_json:
        show_json({"k": k, "window_days": days, **asdict(found)})
        return
    share = f" ({found.alone / found.turned:.0%})" if found.turned else ""
    typer.echo(
        f"HAVING COUNT(DISTINCT {user}) >= {k} over {days} days, every hour: {found.sets:,} values turned true"
        f" {found.turned:,} times. {found.alone:,} times{share} exactly one {user} was new in that hour."
    )


def _show_no_noise(results: list[dict[str, Any]], k: int, clients: int, busy: int) -> None:
    from rich import box
    from rich.table import Table

    from kanon.risk.no_noise import EPSILONS

    typer.echo(f"A count is published from k = {k} clients on, without noise. {clients:,} clients.")
    if busy:
        typer.echo(f"{busy:,} groups have an expected count of k or more: the theorem gives no bound for them.")
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("group", overflow="fold")
    for column in ("expected", "fakes", "bound: eps", "bound: delta", *(f"delta at eps {e:g}" for e in EPSILONS)):
        table.add_column(column, justify="right", min_width=len("expected"))
    for result in results:
        exact = (result[f"exact_delta_at_{e:g}"] for e in EPSILONS)
        cells = map(_number, (result["eps_bound"], result["delta_bound"], *exact))
        table.add_row(cell(result["group"]), f"{result['expected']:.3g}", str(result["fakes"]), *cells)
    screen().print(table)


def _number(cell: float | None) -> str:
    if cell is None:
        return "none"
    return f"{cell:.3g}" if cell == 0 or cell > 1e-99 else "<1e-99"
