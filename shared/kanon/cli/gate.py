"""``kanon gate``: counts the new rows of a log, and says which sets turned true or false."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kanon.cli.directories import Data, InputRows, StepPeriod, directory_errors, given_of, say_counted
from kanon.cli.errors import CommandError
from kanon.cli.files import make_folder
from kanon.cli.options import (
    COLUMNS,
    ColumnNames,
    DateOrder,
    OneType,
    SkipBadRows,
    TypesFile,
    log_columns,
    log_reading,
    say_left_out,
)
from kanon.cli.screen import working

if TYPE_CHECKING:
    from kanon.serving.directory import Directory, Given
    from kanon.serving.gating import Ran
    from kanon.serving.output import TableDescription


def gate(
    joins: InputRows,
    data: Data,
    table: Annotated[
        Path | None,
        typer.Option(
            "--out",
            help="Append changes to this table (.csv, .parquet), or to the table statuses of a database (.db, .sqlite,"
            " .duckdb). By default the true sets are printed.",
        ),
    ] = None,
    columns: ColumnNames = COLUMNS,
    dates: DateOrder = None,
    skip_bad_rows: SkipBadRows = False,
    type_: OneType = None,
    types_file: TypesFile = None,
    period: StepPeriod = None,
) -> None:
    """Count the new rows of a log, evaluate the step of now, and say which sets turned true or false.

    A row counts once, for every type of DIR, so the log may overlap with that of the last run. Run it once a step, from
    cron for example. DIR must be kept between runs: an empty one each time gives new noise to the same rows.

    Example: kanon gate searches.parquet --data gate --out statuses.parquet --types types.json
    """
    from kanon import clock

    now = clock.now()
    with directory_errors(data):
        from kanon.joinlog.numbered import read_batches
        from kanon.serving import gating

        reading, named = log_reading(dates, skip_bad_rows), log_columns(columns)
        given = given_of(type_, types_file, period)
        before = None if table is None else _written(table, data)
        with _opened(data, given, before, now) as directory, directory.or_taken_back():
            through = -1 if before is None else before.step
            with working("counting the rows"):
                ran = gating.run(directory, read_batches(joins, named, reading), now, through)
            say_left_out(reading)
            say_counted(ran.counted, directory.names.window)
            length = directory.settings.period
            changes = 0
            if table is not None and ran.statuses is not None:
                changes = _storage_of(table).append(table, ran.statuses, length)
        _show(ran, table, changes, length)


def _storage_of(out: Path) -> Any:
    """The module that writes an output."""
    from kanon.serving import output, output_database

    return output_database if output_database.is_database(out) else output


def _written(out: Path, data: Path) -> "TableDescription | None":
    """What the output says. A new directory cannot continue an output that exists."""
    from kanon.gate.storage.disk.control import NAME

    _check_writable(out, data)
    before: TableDescription | None = _storage_of(out).written(out)
    if before is not None and not (data / NAME).exists():
        raise CommandError(
            f"{data} is new, and {out} has answers of another deployment. Keep {data} between runs: an empty one each"
            f" time costs every client more privacy. If it is lost, choose another name for --out"
        )
    return before


def _check_writable(out: Path, data: Path) -> None:
    """Refuse an output that cannot be written, before a row is counted. Its folder is made."""
    folder = out.resolve().parent
    if data.resolve() in (folder, *folder.parents):
        raise CommandError(f"--out {out} lies in {data}, whose files are the deployment's: choose another folder")
    try:
        make_folder(folder)
    except OSError as error:
        raise CommandError(f"--out {out} cannot be written ({error.strerror}): choose another name") from error


@contextmanager
def _opened(data: Path, given: "Given", before: "TableDescription | None", now: float) -> "Iterator[Directory]":
    """The deployment. If it is behind its output, it is a copy, and begins a log generation first."""
    from kanon.gate.mechanism.steps import step_at
    from kanon.serving.arrivals import Arrivals
    from kanon.serving.directory import new_generation, open_directory

    with open_directory(data, given, now) as directory, closing(Arrivals(data)) as arrivals:
        if before is not None and before.deployment != directory.settings.deployment:
            raise CommandError(f"--out has answers of another deployment than {data}: choose another name")
        if before is not None and before.step > step_at(now, directory.settings.period):
            raise CommandError("--out has answers of a step after now: correct the clock, or choose another name")
        behind = before is not None and arrivals.released(before.step) != before.digest
        if not behind:
            yield directory
    if behind:
        first = new_generation(data)
        typer.echo(
            f"{data} is an older copy: it does not know the last answers of --out. The same noise on other rows would"
            f" reveal them, so a log generation with new noise begins at step {first}. It costs each row of the last"
            f" window more privacy. The copy does not know what was suppressed or unlisted later: do that again.",
            err=True,
        )
        with open_directory(data, given, now) as directory:
            yield directory


def _show(ran: "Ran", out: Path | None, changes: int, period: int) -> None:
    """Say what was written, or print the sets that are true."""
    from datetime import UTC, datetime

    from kanon.serving.output import as_csv, changed

    if ran.waits_for is not None:
        time = datetime.fromtimestamp(ran.waits_for * period, UTC)
        typer.echo(
            f"The step of now is evaluated already: the new rows count in the run after {time:%Y-%m-%d %H:%M:%S} UTC.",
            err=True,
        )
    if ran.statuses is None:
        typer.echo(f"Nothing was evaluated: {out} has the answers of this step already.", err=True)
    elif out is None:
        typer.echo(as_csv(changed([], ran.statuses, period)), nl=False)
    else:
        typer.echo(f"Changes in {out}: {changes:,}. Sets that are true: {len(ran.statuses.true):,}.", err=True)
