"""``--type`` and ``--types``: the operator's own types, for all commands that take types."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from kanon.gate.types import Type

OneType = Annotated[
    list[str] | None,
    typer.Option("--type", metavar="JSON", help='Use this type: \'{"k": 20, "window": 168, "profile": "sharp-2"}\'.'),
]
TypesFile = Annotated[
    Path | None,
    typer.Option("--types", metavar="FILE", help="Use the types of this file (JSON of parameter Types)."),
]


@dataclass(frozen=True)
class OwnTypes:
    """The types given to a command.

    ``document`` is the text for the template's parameter ``Types``; ``types`` are the same types by name, in the order
    in which they were given.
    """

    document: str
    types: "dict[str, Type]"


def own_types(given: Sequence[str] | None, file: Path | None, period: int, name: str = "fledge") -> OwnTypes | None:
    """Read the types of ``--type`` (which may be repeated) or of ``--types``.

    Args:
        given: the texts of ``--type``, one type each.
        file: the file of ``--types``: an object of types by name.
        period: the length of a step, in s.
        name: the name of the one type of ``--type``. Several are called ``name-1``, ``name-2`` and so on.

    Returns:
        ``None`` if neither option was given.

    Raises:
        typer.BadParameter: both were given, or a type is invalid; the message says what to change.
    """
    if given and file is not None:
        raise typer.BadParameter("give --type or --types, not both")
    if given:
        names = [name] if len(given) == 1 else [f"{name}-{n}" for n in range(1, len(given) + 1)]
        entries = {one: _parsed(text, "--type") for one, text in zip(names, given, strict=True)}
        return _checked(json.dumps(entries, separators=(",", ":")), period, "--type")
    if file is not None:
        return _checked(json.dumps(json_of_file(file, "--types"), separators=(",", ":")), period, "--types")
    return None


def json_of_file(file: Path, option: str) -> Any:
    """The value in the JSON file of an option.

    Raises:
        typer.BadParameter: the file cannot be read, or it is not JSON.
    """
    try:
        text = file.read_text(encoding="utf-8-sig")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise typer.BadParameter(f"{file} cannot be read: {reason}", param_hint=option) from error
    return _parsed(text, option)


def _parsed(text: str, option: str) -> Any:
    from kanon import strict_json

    try:
        return strict_json.parse(text)
    except (ValueError, RecursionError) as error:
        raise typer.BadParameter(f"not valid JSON: {error}", param_hint=option) from error


def _checked(document: str, period: int, option: str) -> OwnTypes:
    from kanon.errors import ConfigurationError
    from kanon.gate.types import read_types

    try:
        return OwnTypes(document, read_types(document, period))
    except ConfigurationError as error:
        raise typer.BadParameter(str(error), param_hint=option) from error
