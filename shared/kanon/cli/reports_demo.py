"""``kanon reports demo``: turns a join log into encrypted reports, and checks and draws two summaries."""

import tempfile
import time
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kanon.cli.errors import one_line
from kanon.cli.files import Force, OutputFiles
from kanon.cli.options import DateOrder, SkipBadRows, log_reading, say_left_out
from kanon.cli.screen import progress, working
from kanon.joinlog import LogError, LogReading
from kanon.reports.job import PrivacyParameters, decimal

if TYPE_CHECKING:
    from kanon.demo.logs import JoinLog
    from kanon.demo.reported_log import ReportedLog
    from kanon.reports.avro import Report
    from kanon.reports.payload import PublicKey

Log = Annotated[Path | None, typer.Option(exists=True, help="Join log with the columns time,set,client.")]
Window = Annotated[
    int, typer.Option("--window-hours", min=1, help="Hours per window: the unit is one client in one window.")
]

SEED = 1
"""The seed of the generated log."""
DELTA = "1e-8"
"""Delta of key discovery."""


def demo(
    context: typer.Context,
    log: Log = None,
    dates: DateOrder = None,
    skip_bad_rows: SkipBadRows = False,
    window: Window = 24,
    epsilon: Annotated[str, typer.Option(help="Epsilon of each of the two summaries.")] = "1",
    picture: Annotated[Path, typer.Option("--plot", help="File for the picture (PNG).")] = Path(
        "build/demo-reports.png"
    ),
    force: Force = False,
) -> None:
    """Turn a join log into encrypted reports, aggregate them twice, check every number and draw a picture.

    Example: kanon reports demo --log joins.csv --window-hours 6 --epsilon 2
    """
    outputs = OutputFiles(context, force=force)
    outputs.picture(picture, "--plot")
    import matplotlib as mpl  # noqa: F401, fail now and not after the work
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

    from kanon.demo.reported_log import JOINS, ORIGIN, UNUSED, VALUE, Files, ReportedLog, draw

    began = time.monotonic()
    both = both_parameters(epsilon)
    read = log_of(log, log_reading(dates, skip_bad_rows))
    reported = ReportedLog(read, window)
    typer.echo(f"{read.title}: {len(read.joins):,} joins of {len(reported.exact):,} sets.")
    typer.echo(f"Unit of privacy: one client in one window of {window} h. Its first {JOINS} joins count in a window.")
    summaries = []
    with tempfile.TemporaryDirectory() as folder:
        files = Files(reported, Path(folder), X25519PrivateKey.generate())
        files.write(encrypted(reported, ORIGIN, files.keys))
        for parameters in both:
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
        title = f"{read.title}: windows of {window} h, epsilon {epsilon}, delta {DELTA}"
        outputs.write({picture: draw(summaries, reported, title)})
    _promise(both)
    typer.echo(f"Picture: {picture} ({time.monotonic() - began:.0f} s in all)")


def both_parameters(epsilon: str) -> tuple[PrivacyParameters, PrivacyParameters]:
    """Those of a job with declared keys, and of one that discovers them."""
    each = decimal(epsilon, "--epsilon")
    return PrivacyParameters("declared", each), PrivacyParameters("discover", each, decimal(DELTA, "--delta"))


def log_of(path: Path | None, reading: "LogReading") -> "JoinLog":
    """The log of a file, or a generated one. If the log cannot be read, the command ends with one line."""
    from kanon.demo.logs import generated_log, read_log

    with one_line(LogError), working("reading the log"):
        read = read_log(path, None, None, reading=reading) if path else generated_log(SEED)
    say_left_out(reading)
    return read


def encrypted(reported: "ReportedLog", origin: str, keys: "list[PublicKey]") -> "list[Report]":
    """The reports of a log. The progress is shown."""
    sealed = []
    with progress("reports encrypted", len(reported.log.joins)) as advance:
        for report in reported.encrypted(origin, keys):
            sealed.append(report)
            advance(1)
    return sealed


def _promise(both: tuple[PrivacyParameters, PrivacyParameters]) -> None:
    from kanon.reports.job import of_all, of_job

    parts: dict[str, list[str]] = {parameters.mode: of_job(parameters) for parameters in both}
    parts["Both summaries together"] = of_all(
        sum((p.epsilon for p in both), Fraction(0)), sum((p.delta for p in both), Fraction(0))
    )
    for name, lines in parts.items():
        typer.echo("\n  ".join([f"\n{name}:", *lines]))
