"""Errors of commands whose extra is not installed: they name the extra."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

import typer

_TARGETS = {"log": "simulate", "moto": "install", "release": "install"}
"""The targets of make that install an extra in a checkout; all other extras but ``spark`` are in every environment."""

_EXTRAS = {"duckdb": "release", "pyarrow": "release", "matplotlib": "plot", "pyspark": "spark"}
"""The extras of the libraries that ``kanon release`` and ``kanon risk`` import."""


@contextmanager
def extra(name: str) -> Iterator[None]:
    """End the command with one line if a module of the extra is missing."""
    try:
        yield
    except ModuleNotFoundError as error:
        _missing(error, name)


def missing_library(error: ModuleNotFoundError) -> NoReturn:
    """End a command of release or risk with one line if the library is of an extra; else raise the error."""
    name = _EXTRAS.get(str(error.name).split(".")[0])
    if name is None:
        raise error
    _missing(error, name)


def _missing(error: ModuleNotFoundError, name: str) -> NoReturn:
    """End the command with status 1 and one line that names the extra."""
    in_a_checkout = f", or run `make {_TARGETS[name]}` in a checkout of kanon" if name in _TARGETS else ""
    typer.echo(f"{error.name} is missing: pip install 'kanon[{name}]'{in_a_checkout}", err=True)
    raise typer.Exit(1) from error
