"""``kanon reports demo``: turns a join log into encrypted reports, and checks and draws two summaries."""

import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kanon.cli.errors import CommandError
from kanon.cli.files import Force, OutputFiles
from kanon.cli.options import DateOrder, SkipBadRows, log_reading, say_left_out
from kanon.cli.screen import progress, working
from kanon.reports.job import PrivacyParameters, decimal, written

if TYPE_CHECKING:
    from kanon.demo.logs import DemoLog
    from kanon.demo.released_log import ReleasedLog
    from kanon.demo.reported_log import ReportedLog
    from kanon.joinlog import LogReading
    from kanon.reports.avro import Report
    from kanon.reports.payload import EncryptionKey

Log = Annotated[Path | None, typer.Option(exists=True, help="Join log with the columns time,set,client.")]

SEED = 1
"""The seed of the generated log."""
DELTA = "1e-8"
"""Delta of key discovery."""


def demo(
    context: typer.Context,
    log: Log = None,
    dates: DateOrder = None,
    skip_bad_rows: SkipBadRows = False,
    epsilon: Annotated[
        str, typer.Option(help="Epsilon of each summary; with --mode, of that with released keys.")
    ] = "1",
    mode: Annotated[
        str | None, typer.Option(metavar="kanon", help="A third summary, whose keys the gate has released.")
    ] = None,
    picture: Annotated[Path, typer.Option("--plot", help="File for the picture (PNG).")] = Path(
        "build/demo-reports.png"
    ),
    force: Force = False,
) -> None:
    """Turn a join log into encrypted reports, aggregate them twice, check every number and draw a picture.

    With --mode kanon a third summary has the keys that a gate releases of the log (k 50, 30 days). All three then have
    the same guarantee for a unit, the gate included.

    Example: kanon reports demo --log joins.csv --epsilon 2
    """
    outputs = OutputFiles(context, force=force)
    outputs.picture(picture, "--plot")
    import matplotlib as mpl  # noqa: F401, fail now and not after the work
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

    from kanon.demo.released_log import ReleasedLog
    from kanon.demo.reported_log import JOINS, ORIGIN, UNUSED, VALUE, WINDOW, Files, ReportedLog, draw

    began = time.monotonic()
    if mode not in (None, "kanon"):
        raise typer.BadParameter("must be kanon: declared and discovered keys are always shown", param_hint="--mode")
    chosen = both_parameters(epsilon)
    read = log_of(log, log_reading(dates, skip_bad_rows))
    reported = ReportedLog(read)
    typer.echo(f"{read.title}: {len(read.joins):,} joins of {len(reported.exact):,} sets.")
    typer.echo(f"Unit of privacy: one client in one window of {WINDOW} h. Its first {JOINS} joins count in a window.")
    gate: ReleasedLog | None = None
    if mode is not None:
        with working("deciding which sets are shared"):
            gate = ReleasedLog(reported, SEED)
            if not len(gate.released):
                raise CommandError("the gate releases no set of this log: give one in which 50 clients share a set")
            reported, chosen = replace(reported, released=gate.released), gate.parameters(chosen[0].epsilon)
        typer.echo(f"{len(reported.released):,} keys are released by the gate. It costs {gate.join} a join.")
    summaries = []
    with tempfile.TemporaryDirectory() as folder:
        files = Files(reported, Path(folder), X25519PrivateKey.generate())
        files.write(encrypted(reported, ORIGIN, files.keys))
        for parameters in chosen:
            with working(f"opening and adding up the reports: {parameters.mode}"):
                summaries.append(files.aggregated(parameters))
    typer.echo(f"{summaries[0].accepted:,} reports encrypted, opened and counted, {VALUE:,} for each join.")
    typer.echo(
        f"The declared keys of this demo are the log's own sets and {UNUSED} more. A real list must be fixed before and"
        " independent of the log: a key taken from the log reveals that somebody contributed to it."
    )
    for summary in summaries:
        summary.check(reported)
        typer.echo(reported.in_words(summary.metrics, summary.parameters))
    with working("drawing"):
        spent = chosen[1]
        title = f"{read.title}: windows of {WINDOW} h, epsilon {written(spent.epsilon)}, delta {float(spent.delta):g}"
        outputs.write({picture: draw(summaries, reported, title)})
    for line in () if gate is None else gate.compared(summaries):
        typer.echo(line)
    _promise(chosen, gate)
    typer.echo(f"Picture: {picture} ({time.monotonic() - began:.0f} s in all)")


def both_parameters(epsilon: str) -> tuple[PrivacyParameters, ...]:
    """Those of a job with declared keys, and of one that discovers them."""
    each = decimal(epsilon, "--epsilon")
    return PrivacyParameters("declared", each), PrivacyParameters("discover", each, decimal(DELTA, "--delta"))


def log_of(path: Path | None, reading: "LogReading") -> "DemoLog":
    """The log of a file, or a generated one. If the log cannot be read, the command ends with one line."""
    from kanon.demo.logs import generated_log, read_log

    with working("reading the log"):
        read = read_log(path, None, None, reading=reading) if path else generated_log(SEED)
    say_left_out(reading)
    return read


def encrypted(reported: "ReportedLog", origin: str, keys: "list[EncryptionKey]") -> "list[Report]":
    """The reports of a log. The progress is shown."""
    sealed = []
    with progress("reports encrypted", len(reported.log.joins)) as advance:
        for report in reported.encrypted(origin, keys):
            sealed.append(report)
            advance(1)
    return sealed


def _promise(chosen: Sequence[PrivacyParameters], gate: "ReleasedLog | None") -> None:
    from kanon.demo.reported_log import JOINS
    from kanon.noise.bound import Bound
    from kanon.reports.job import of_all, of_both, of_job

    parts: dict[str, list[str]] = {parameters.mode: of_job(parameters) for parameters in chosen}
    spent = Bound(sum((p.epsilon for p in chosen), Fraction(0)), sum((p.delta for p in chosen), Fraction(0)))
    parts["All summaries together"] = of_all(spent.epsilon, spent.delta)
    if gate is not None:
        parts["All summaries together"] += of_both("all summaries", spent, gate.join, JOINS)
    for name, lines in parts.items():
        typer.echo("\n  ".join([f"\n{name}:", *lines]))
