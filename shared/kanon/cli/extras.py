"""Errors of commands whose extra is not installed: they name the extra."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

import typer


@contextmanager
def extra(name: str) -> Iterator[None]:
    """End the command with one line if a module of the extra is missing."""
    try:
        yield
    except ModuleNotFoundError as error:
        missing(error, name)


def missing(error: ModuleNotFoundError, name: str) -> NoReturn:
    """End the command with status 1 and one line that names the extra."""
    typer.echo(f"{error.name} is missing: pip install 'kanon[{name}]'", err=True)
    raise typer.Exit(1) from error
