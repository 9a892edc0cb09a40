"""``kanon operate`` on the directory of a deployment on one machine."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kanon.cli.directories import Data, Joins, Period, directory_errors, given_of, say_counted
from kanon.cli.errors import CommandError
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
    from kanon.serving.directory import Directory

Yes = Annotated[bool, typer.Option("--yes", help="Do not ask.")]


def ask(question: str, yes: bool) -> None:
    """Ask, unless ``yes`` was given in advance."""
    if not yes:
        typer.confirm(question, abort=True)


def import_(
    log: Joins,
    data: Data,
    columns: ColumnNames = COLUMNS,
    dates: DateOrder = None,
    skip_bad_rows: SkipBadRows = False,
    type_: OneType = None,
    types_file: TypesFile = None,
    period: Period = None,
) -> None:
    """Begin a new directory with a past log: each row counts in the step of its time. Nothing is decided for the past.

    Example: kanon operate import last-month.parquet --data gate --types types.json
    """
    from kanon import clock

    now = clock.now()
    with directory_errors():
        from kanon.joinlog.numbered import read_batches
        from kanon.serving.directory import open_directory
        from kanon.serving.importing import import_log

        reading, named = log_reading(dates, skip_bad_rows), log_columns(columns)
        with open_directory(data, given_of(type_, types_file, period), now, to_import=True) as directory:
            with working("counting the rows"):
                counted = import_log(directory, read_batches(log, named, reading), now)
            say_left_out(reading)
            say_counted(counted, directory.names.window)


def forget_there(data: Path, client: str, sets: Path, *, base64: bool, yes: bool) -> None:
    """Forget a client in the sets of a file, in a directory."""
    with _open_there(data) as directory:
        from kanon.serving.forgetting import forget

        ids = ask_to_forget(sets, base64=base64, yes=yes)
        say_forgotten(forget(directory, client, ids))


def ask_to_forget(sets: Path, *, base64: bool, yes: bool) -> list[bytes]:
    """The set ids in a file, after the user was told what will happen."""
    ids = _set_ids(sets, base64=base64)
    typer.echo(
        f"Sets: {len(ids):,}. In each the client's token becomes a random one, which stays until its joins would"
        " have left the window. A token is short: another client may have the same one in a set, and is forgotten"
        " there too. Recovery can no longer start from earlier states. Backups keep the token. This cannot be"
        " undone."
    )
    ask("Forget the client?", yes)
    return ids


def say_forgotten(found: int) -> None:
    """Tell how many tokens were replaced."""
    typer.echo(f"Tokens that were found and replaced: {found:,}.")


def ask_to_unlist(*, yes: bool) -> None:
    """Say what unlisting does, and ask."""
    typer.echo(
        "The value is in no list any more, and leaves the history. Who has read a list keeps it, and a cache until"
        " its time ends. Queries still answer for it: `kanon operate suppress` ends that. This cannot be undone."
    )
    ask("Unlist the value?", yes)


def unlist_there(data: Path, type_name: str, value: str, *, yes: bool) -> int:
    """Unlist a value of a directory. Returns the number of lists of the history that had it."""
    from kanon.serving.unlisting import unlist

    with directory_errors(), _open_there(data) as directory:
        ask_to_unlist(yes=yes)
        return unlist(directory, type_name, value)


def backup(
    data: Data,
    to: Annotated[Path, typer.Argument(help="New directory for the copy.", show_default=False)],
) -> None:
    """Copy a directory, also beside a running service. The copy holds the secrets.

    Example: kanon operate backup --data gate /mnt/backups/monday
    """
    with directory_errors():
        from kanon.serving.backup import backup as copy

        with working("copying"):
            step = copy(data, to).step
    typer.echo(
        f"{to} holds the states after step {step} and the joins after it. To use it, move it to its place and run"
        f" `kanon operate new-generation --data` there: it must not give the noise of {data} to other joins."
    )


def begin_there(data: Path, *, new_key: bool, yes: bool) -> None:
    """Give a directory new noise, in the place where it is."""
    from kanon.reports.storage.disk import NAME as REPORTS
    from kanon.serving.directory import existing, new_generation

    existing(data)
    typer.echo(
        "The directory may be used in this place from now on. From its next step on it uses new noise, which costs"
        " every join within a window of it more privacy (with restart after the crossing at most some delta). No"
        " join is lost. This cannot be undone."
    )
    if (data / REPORTS).exists():
        typer.echo("Keys and unfinished jobs of reports end: no report that has arrived can be opened any more.")
    ask("Begin a new log generation?", yes)
    typer.echo(f"It begins at step {new_generation(data, new_key=new_key)}.")


def retire_there(data: Path, type_name: str, *, yes: bool) -> None:
    """Take a type out of a directory."""
    from kanon.serving.directory import existing, retire

    existing(data)
    typer.echo(f"Type {type_name}: its states are dropped. Its name can never be used again.")
    ask("Retire it?", yes)
    retire(data, type_name)
    typer.echo(f"Type {type_name} is retired.")


def replay_there(data: Path, base: int | None) -> None:
    """Evaluate steps of a directory again, and compare."""
    from kanon import clock
    from kanon.serving.replaying import replay

    with _open_there(data) as directory, working("evaluating again"):
        found = replay(directory, base, clock.now())
    if found.base == found.through:
        raise CommandError(f"only the states after step {found.base} are kept: replay when later steps are evaluated")
    for difference in found.differences:
        typer.echo(difference)
    place = f"Steps {found.base + 1} to {found.through}, parts: {found.parts:,}, crossings: {found.crossings:,}"
    if found.differences:
        raise CommandError(f"{place}, differences: {len(found.differences):,}: restore a backup", 1)
    typer.echo(f"{place}: all are equal to those that are stored.")


@contextmanager
def _open_there(data: Path) -> "Iterator[Directory]":
    """The deployment of a directory, which no other process has open."""
    from kanon import clock
    from kanon.serving.directory import existing, open_directory

    with open_directory(existing(data), None, clock.now()) as directory:
        yield directory


def _set_ids(file: Path, *, base64: bool) -> list[bytes]:
    """The set ids in the lines of a file."""
    from kanon.http.encoding import decode_base64url

    try:
        lines = [line for line in file.read_text(encoding="utf-8-sig").splitlines() if line]
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise typer.BadParameter(f"{file} cannot be read: {reason}", param_hint="--sets") from error
    try:
        return [decode_base64url(line) if base64 else line.encode() for line in lines]
    except ValueError as error:
        raise typer.BadParameter(f"{file}: a set id {error}", param_hint="--sets") from error
