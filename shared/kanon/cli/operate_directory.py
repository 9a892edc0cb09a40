"""``kanon operate`` on the directory of a deployment on one machine."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kanon.cli.directories import Data, InputRows, StepPeriod, directory_errors, given_of, say_counted
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
    text_of_file,
)
from kanon.cli.screen import working
from kanon.cli.serve_data import ServiceDirectory
from kanon.cli.set_id import decoded

if TYPE_CHECKING:
    from kanon.serving.directory import Directory

NO_ORIGINAL = "none"
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask.")]


def ask(question: str, yes: bool) -> None:
    """Ask, unless ``yes`` was given in advance."""
    if not yes:
        typer.confirm(question, abort=True)


def import_(
    log: InputRows,
    data: Data,
    columns: ColumnNames = COLUMNS,
    dates: DateOrder = None,
    skip_bad_rows: SkipBadRows = False,
    type_: OneType = None,
    types_file: TypesFile = None,
    period: StepPeriod = None,
) -> None:
    """Begin a new directory with a past log: each row counts in the step of its time. Nothing is decided for the past.

    Example: kanon operate import last-month.parquet --data gate --types types.json
    """
    from kanon import clock

    now = clock.now()
    with directory_errors(data):
        from kanon.joinlog.numbered import read_batches
        from kanon.serving.directory import open_directory
        from kanon.serving.importing import import_log

        reading, named = log_reading(dates, skip_bad_rows), log_columns(columns)
        given = given_of(type_, types_file, period)
        with open_directory(data, given, now, to_import=True) as directory, directory.or_taken_back():
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


def forget_tags(
    tags: Annotated[Path, typer.Argument(metavar="FILE", help="Lines that clients have made with `tag`.")],
    data: ServiceDirectory,
    yes: Yes = False,
) -> None:
    """Forget joins of a type with credentials, whose persons ask for it without a name. No count changes.

    Example: kanon operate forget-tags lines.txt --data data
    """
    from kanon.gate.forgetting import Tag
    from kanon.http.encoding import decode_base64url

    found = []
    for number, line in enumerate(_lines(tags, "FILE"), 1):
        try:
            type_name, set_id, tag = line.split(" ")
            found.append(Tag(type_name, decode_base64url(set_id), decode_base64url(tag)))
        except ValueError:
            where = f"{tags}: line {number} is not one that a client's `tag` has made"
            raise typer.BadParameter(where, param_hint="FILE") from None
    with directory_errors(data), _open_there(data) as directory:
        from kanon.serving.forgetting import forget_tags as forgetting

        _say_what_forgetting_does(f"Lines: {len(found):,}. In each set the person's token")
        typer.echo("Who joins again counts once more.")
        ask("Forget them?", yes)
        say_forgotten(forgetting(directory, found))


def delete_account(
    name: Annotated[str, typer.Argument(help="Name of the API key, the claim `sub`, or what the verifier answers.")],
    data: ServiceDirectory,
    auth: Annotated[str, typer.Option(help="What the account is: KEY, JWT or DEVICE.")] = "KEY",
    yes: Yes = False,
) -> None:
    """Let an account get no credential, also beside a running service: what its own `delete` does.

    Example: kanon operate delete-account somebody --data data
    """
    if auth not in ("KEY", "JWT", "DEVICE"):
        raise typer.BadParameter("give KEY, JWT or DEVICE", param_hint="--auth")
    with directory_errors(data):
        from kanon.serving.enrolment import check_accounts
        from kanon.serving.enrolment import delete_account as delete

        check_accounts(data)
        typer.echo(
            "The account gets no credential until none of its joins can count. One that it has holds until its week"
            " ends. Joins stay: the service does not know which are its own. This cannot be undone."
        )
        ask("Delete the account?", yes)
        found = delete(data, f"{auth} {name}")
    typer.echo("Deleted." if found else "No such account has enrolled: nothing was deleted.")


def ask_to_forget(sets: Path, *, base64: bool, yes: bool) -> list[bytes]:
    """The set ids in a file, after the user was told what will happen."""
    ids = _set_ids(sets, base64=base64)
    _say_what_forgetting_does(f"Sets: {len(ids):,}. In each the client's token")
    ask("Forget the client?", yes)
    return ids


def _say_what_forgetting_does(whose: str) -> None:
    typer.echo(
        f"{whose} becomes a random one, which stays until its joins would have left the window. A token is short:"
        " another client may have the same one in a set, and is forgotten there too. Recovery can no longer start"
        " from earlier states. Backups keep the token. This cannot be undone."
    )


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
    from kanon.serving.unlisting import check_listed, unlist

    with directory_errors(data), _open_there(data) as directory:
        check_listed(directory, type_name)
        ask_to_unlist(yes=yes)
        return unlist(directory, type_name, value)


def backup(
    data: Data,
    to: Annotated[Path, typer.Argument(help="New directory for the copy.", show_default=False)],
) -> None:
    """Copy a directory, also beside a running service. The copy holds the secrets.

    Example: kanon operate backup --data gate /mnt/backups/monday
    """
    with directory_errors(data):
        from kanon.serving.backup import backup as copy

        with working("copying"):
            step = copy(data, to).step
    typer.echo(
        f"{to} holds the states after step {step} and the joins after it. To use it, move it to its place and run"
        f" `kanon operate new-generation --data DIR --original {data}` there: it must not give the noise of {data} to"
        f" other joins."
    )


def begin_there(data: Path, *, new_key: bool, original: str | None, yes: bool) -> None:
    """Give a directory new noise, in the place where it is."""
    from kanon.gate.storage.disk.control import ControlFile
    from kanon.reports.storage.disk import NAME as REPORTS
    from kanon.serving.directory import ACCOUNTS, existing, is_copy, new_generation
    from kanon.serving.unlisting import refuse_other, take_over

    with closing(ControlFile(existing(data), accept_older=True)) as control:
        copied, overwritten = is_copy(control, data), control.overwritten
    if original is None and (copied or overwritten or not new_key):
        raise typer.BadParameter(
            "name the directory of which this one is a copy or an older state: what was suppressed or unlisted there"
            " since would come back. If it is lost, give none",
            param_hint="--original",
        )
    other = None if original in (None, NO_ORIGINAL) else Path(str(original))
    if other is not None and other.resolve() == data.resolve():
        raise typer.BadParameter("this is --data itself: name the other one, or none", param_hint="--original")
    if overwritten and original != NO_ORIGINAL:
        raise typer.BadParameter(
            f"{data} was overwritten with an older file: give none, and suppress and unlist again",
            param_hint="--original",
        )
    if other is not None:
        refuse_other(data, other)
    typer.echo(
        "The directory may be used in this place from now on. From its next step on it uses new noise, which costs"
        " every join within a window of it more privacy (with restart after the crossing at most some delta). No"
        " join is lost. This cannot be undone."
    )
    if (data / ACCOUNTS).exists():
        typer.echo("Credentials end: everybody enrols again; if accounts may be lost, when no earlier join counts.")
    if (data / REPORTS).exists():
        typer.echo("Keys and unfinished jobs of reports end: no report that has arrived can be opened any more.")
    if original == NO_ORIGINAL:
        typer.echo(
            "What was suppressed or unlisted since the copy was made counts again: do it again before you start."
        )
    ask("Begin a new log generation?", yes)
    if other is not None:
        take_over(data, other)
    typer.echo(f"It begins at step {new_generation(data, new_key=new_key)}.")


def retire_there(data: Path, type_name: str, *, yes: bool) -> None:
    """Take a type out of a directory."""
    from kanon.serving.directory import retire

    def agree() -> None:
        typer.echo(f"Type {type_name}: its states are dropped. Its name can never be used again.")
        ask("Retire it?", yes)

    retire(data, type_name, agree)
    typer.echo(f"Type {type_name} is retired.")


def replay_there(data: Path, base: int | None, *, yes: bool) -> None:
    """Evaluate steps of a directory again, compare, and use the result if nothing differs."""
    from kanon import clock
    from kanon.serving.replaying import replay

    with _open_there(data) as directory:
        typer.echo(
            "Steps will be evaluated again, and every state and crossing compared with those that are stored. If"
            " nothing differs, the new states take their places."
        )
        ask("Evaluate again?", yes)
        with working("evaluating again"):
            found = replay(directory, base, clock.now())
    if found.base == found.through:
        raise CommandError(
            f"no step after {found.base} is evaluated: begin with earlier states (--from), if any are kept, or replay"
            " when later steps are evaluated"
        )
    for difference in found.differences:
        typer.echo(difference)
    place = f"Steps {found.base + 1} to {found.through}, parts: {found.parts:,}, crossings: {found.crossings:,}"
    if found.differences:
        raise CommandError(
            f"{place}, differences: {len(found.differences):,}: nothing was changed; restore a backup", 1
        )
    typer.echo(f"{place}: all are equal to those that were stored, and in use.")


@contextmanager
def _open_there(data: Path) -> "Iterator[Directory]":
    """The deployment of a directory, which no other process has open."""
    from kanon import clock
    from kanon.serving.directory import existing, open_directory

    with open_directory(existing(data), None, clock.now()) as directory:
        yield directory


def _set_ids(file: Path, *, base64: bool) -> list[bytes]:
    """The set ids in the lines of a file."""
    lines = _lines(file, "--sets")
    try:
        return [decoded(line) if base64 else line.encode() for line in lines]
    except ValueError as error:
        raise typer.BadParameter(f"{file}: the set id {error}", param_hint="--sets") from error


def _lines(file: Path, option: str) -> list[str]:
    """The lines of a file that are not empty. Other separators than line feeds may be part of a set id."""
    if lines := [line for line in text_of_file(file, option).split("\n") if line]:
        return lines
    raise typer.BadParameter(f"{file} is empty, and forgetting ends recovery from earlier states", param_hint=option)
