"""Every command of the program, found in the program itself."""

from collections.abc import Iterator
from typing import Any

from typer import Typer
from typer.main import get_command
from typer.testing import CliRunner

from kanon.cli.main import app


def commands(program: Typer = app) -> dict[str, Any]:
    """The commands by their whole name, as in ``kanon risk join``."""
    return dict(_below("kanon", get_command(program)))


def _below(path: str, command: Any) -> Iterator[tuple[str, Any]]:
    inner = getattr(command, "commands", None)
    if inner is None:
        yield path, command
    for name, one in (inner or {}).items():
        yield from _below(f"{path} {name}", one)


def run(*arguments: str) -> tuple[int, str]:
    """The status and the output of a command; an exception that it does not turn into a message is raised."""
    result = CliRunner().invoke(app, arguments, prog_name="kanon", env={"COLUMNS": "200"})
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.output
