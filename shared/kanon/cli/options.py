"""Options that several commands have."""

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from kanon.joinlog import Columns

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
User = Annotated[str, typer.Option(help="Column of the user who owns a row.")]
StepLength = Annotated[int, typer.Option(min=1, max=86_400, help="Seconds per step.")]
ColumnNames = Annotated[str, typer.Option(help="Names of the log's columns of time, set and client, with commas.")]
COLUMNS = "time,set,client"


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
