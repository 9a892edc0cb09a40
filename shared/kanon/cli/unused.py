"""Options that have no effect beside others: refused, so that nobody believes they had one."""

from collections.abc import Collection

import typer


def refuse_unused(context: typer.Context, names: Collection[str], reason: str) -> None:
    """Refuse an option that was given and has no effect.

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
