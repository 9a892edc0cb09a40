"""Options that several commands have, and what they say."""

import json
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from kanon.gate.types import Type
    from kanon.joinlog import Columns, LogReading

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
User = Annotated[str, typer.Option(help="Column of the user who owns a row.")]
StepLength = Annotated[int, typer.Option(min=1, max=86_400, help="Seconds per step.")]
ColumnNames = Annotated[str, typer.Option(help="Names of the log's columns of time, set and client, with commas.")]
COLUMNS = "time,set,client"
SkipBadRows = Annotated[
    bool, typer.Option("--skip-bad-rows", help="Leave out rows that cannot be read. By default they are an error.")
]
DateOrder = Annotated[
    str | None, typer.Option("--dates", help="Order of dates such as 01/31/2026: mdy or dmy. ISO 8601 is always read.")
]
OneType = Annotated[
    list[str] | None,
    typer.Option("--type", metavar="JSON", help='Use this type: \'{"k": 20, "window": 168, "profile": "sharp-2"}\'.'),
]
TypesFile = Annotated[
    Path | None,
    typer.Option("--types", metavar="FILE", help="Use the types of this file (JSON of parameter Types)."),
]


def refuse_unused(context: typer.Context, names: Collection[str], reason: str) -> None:
    """Refuse an option that was given and has no effect, so that nobody believes that it had one.

    ``names`` are those of the command's parameters in its function; ``reason`` also says what to change.
    """
    for parameter in context.command.params:
        source = context.get_parameter_source(parameter.name or "")
        if parameter.name in names and source is not None and source.name == "COMMANDLINE":
            raise typer.BadParameter(f"{parameter.opts[0]} has no effect {reason}")


def log_reading(dates: str | None, skip: bool) -> "LogReading":
    """How ``--dates`` and ``--skip-bad-rows`` say to read a log."""
    from kanon.joinlog import LogReading

    if dates not in (None, "mdy", "dmy"):
        raise typer.BadParameter("must be mdy or dmy", param_hint="--dates")
    return LogReading(dates, skip)  # type: ignore[arg-type]  # checked


def say_left_out(reading: "LogReading") -> None:
    """Say on standard error how many rows were left out."""
    if number := reading.left_out.total():
        typer.echo(f"{number:,} of {reading.rows:,} rows cannot be read and are left out.", err=True)


def log_columns(names: str) -> "Columns":
    """The columns that ``--columns`` names."""
    from kanon.joinlog import Columns

    given = names.split(",")
    if len(set(given) - {""}) != 3 or len(given) != 3:
        raise typer.BadParameter(f"give three names such as {COLUMNS}, not {names}", param_hint="--columns")
    return Columns(*given)


@contextmanager
def columns_hinted() -> Iterator[None]:
    """Name the option if a log has no column of this name."""
    from kanon.joinlog import LogError

    try:
        yield
    except LogError as error:
        hint = " (--columns TIME,SET,CLIENT)" if " has no column " in str(error) else ""
        raise LogError(f"{error}{hint}") from error


@dataclass(frozen=True)
class OwnTypes:
    """The types given to a command.

    ``document`` is the text for the template's parameter ``Types``; ``types`` are the same types by name, in the order
    in which they were given.
    """

    document: str
    types: "dict[str, Type]"


def own_types(given: Sequence[str] | None, file: Path | None, period: int, name: str = "fledge") -> OwnTypes | None:
    """The types of ``--type`` (which may be repeated) or of ``--types``, an object by name; None without both.

    ``period`` is the length of a step, in s. A single ``--type`` has the ``name``, several are called ``name-1``,
    ``name-2`` and so on.
    """
    document = types_document(given, file, name)
    return None if document is None else checked_types(document, period, "--type" if given else "--types")


def types_document(given: Sequence[str] | None, file: Path | None, name: str = "fledge") -> str | None:
    """The types of :func:`own_types` as a text for the parameter ``Types``. Only their JSON is checked."""
    if given and file is not None:
        raise typer.BadParameter("give --type or --types, not both")
    if given:
        names = [name] if len(given) == 1 else [f"{name}-{n}" for n in range(1, len(given) + 1)]
        entries = {one: _parsed(text, "--type") for one, text in zip(names, given, strict=True)}
        return json.dumps(entries, separators=(",", ":"))
    return None if file is None else json.dumps(json_of_file(file, "--types"), separators=(",", ":"))


def json_of_file(file: Path, option: str) -> Any:
    """The value in the JSON file of an option."""
    return _parsed(text_of_file(file, option), option)


def text_of_file(file: Path, option: str) -> str:
    """The text in the file of an option."""
    try:
        return file.read_text(encoding="utf-8-sig")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise typer.BadParameter(f"{file} cannot be read: {reason}", param_hint=option) from error


def _parsed(text: str, option: str) -> Any:
    from kanon import strict_json

    try:
        return strict_json.parse(text)
    except (ValueError, RecursionError) as error:
        raise typer.BadParameter(f"not valid JSON: {error}", param_hint=option) from error


def checked_types(document: str, period: int, option: str = "") -> OwnTypes:
    """The types of a document, which an option gave."""
    from kanon.errors import ConfigurationError
    from kanon.gate.types import read_types

    try:
        return OwnTypes(document, read_types(document, period))
    except ConfigurationError as error:
        raise typer.BadParameter(str(error), param_hint=option) from error
