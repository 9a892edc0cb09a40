"""Shared by the commands on the directory of a deployment: its options, errors of one line, what became of rows."""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kanon.cli.errors import CommandError
from kanon.cli.options import columns_hinted, types_document

if TYPE_CHECKING:
    from kanon.serving.arrivals import RowCounts
    from kanon.serving.directory import Given

InputRows = Annotated[
    Path, typer.Argument(help="Rows: CSV, JSON or Parquet, plain or gzipped; - for stdin.", show_default=False)
]
Data = Annotated[Path, typer.Option("--data", metavar="DIR", help="Directory of the deployment; keep it.")]
StepPeriod = Annotated[
    int | None, typer.Option(min=1, max=86_400, help="Seconds per step of a new DIR, by default 3600; never changes.")
]


@contextmanager
def directory_errors(data: Path) -> Iterator[None]:
    """End the command with one line if a file of the directory cannot be used, or a log has no such column."""
    try:
        with columns_hinted():
            yield
    except sqlite3.Error as error:
        from kanon.serving.doctor import unread_files

        named = "; ".join(f"{file}: {why}: {advice}" for file, (why, advice) in unread_files(data).items())
        raise CommandError(named or f"--data cannot be used: {error}") from error


def given_of(type_: "list[str] | None", types_file: Path | None, period: int | None) -> "Given":
    """What the options say of a deployment."""
    from kanon.gate.types import read_types
    from kanon.serving.directory import HOUR, Given, refuse_listed

    document = types_document(type_, types_file)
    if document is not None:  # before a directory is made
        refuse_listed(read_types(document, period or HOUR).values())
    return Given(period=period, types=document)


def say_counted(counted: "RowCounts", window: int) -> None:
    """Say on standard error what became of the rows."""
    parts = [f"{counted.new:,} new, and counted"]
    if counted.known:
        parts.append(f"{counted.known:,} counted before")
    if counted.old:
        parts.append(f"{counted.old:,} older than the window of {window:,} steps, and left out")
    if counted.future:
        parts.append(f"{counted.future:,} of a time after now, which wait (check clock and time zone)")
    typer.echo(f"Rows: {'; '.join(parts)}.", err=True)
