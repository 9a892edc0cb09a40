"""Options that several commands have."""

from collections.abc import Collection
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from kanon.joinlog import Columns, Reading

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


def refuse_unused(context: typer.Context, names: Collection[str], reason: str) -> None:
    """Refuse an option that was given and has no effect, so that nobody believes that it had one.

    Args:
        context: the command with what was given.
        names: of the command's parameters, as in its function.
        reason: why they have no effect, and what to change.

    Raises:
        typer.BadParameter: one of them was given.
    """
    for parameter in context.command.params:
        source = context.get_parameter_source(parameter.name or "")
        if parameter.name in names and source is not None and source.name != "DEFAULT":
            raise typer.BadParameter(f"{parameter.opts[0]} has no effect {reason}")


def log_reading(dates: str | None, skip: bool) -> "Reading":
    """How ``--dates`` and ``--skip-bad-rows`` say to read a log.

    Raises:
        typer.BadParameter: there is no such order of dates.
    """
    from kanon.joinlog import Reading

    if dates not in (None, "mdy", "dmy"):
        raise typer.BadParameter("must be mdy or dmy", param_hint="--dates")
    return Reading(dates, skip)  # type: ignore[arg-type]  # checked


def say_left_out(reading: "Reading") -> None:
    """Say on standard error how many rows were left out."""
    if number := reading.left_out.total():
        typer.echo(f"{number:,} of {reading.rows:,} rows cannot be read and are left out.", err=True)


def log_columns(names: str) -> "Columns":
    """The columns that ``--columns`` names.

    Raises:
        typer.BadParameter: it does not give three different names.
    """
    from kanon.joinlog import Columns

    given = names.split(",")
    if len(set(given) - {""}) != 3 or len(given) != 3:
        raise typer.BadParameter(f"give three names such as {COLUMNS}, not {names}", param_hint="--columns")
    return Columns(*given)
