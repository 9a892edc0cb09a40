"""Errors of commands whose extra is not installed: they name the extra."""

from collections.abc import Iterator
from contextlib import contextmanager

from kanon.cli.errors import CommandError

_TARGETS = {"log": "simulate", "moto": "install", "release": "install"}
"""The targets of make that install an extra in a checkout; all other extras but ``spark`` are in every environment."""

_EXTRAS = {"duckdb": "release", "pyarrow": "release", "matplotlib": "plot", "pandas": "spark", "pyspark": "spark"}
"""The extras of the libraries that ``kanon release`` and ``kanon risk`` import."""


@contextmanager
def extra(name: str | None = None) -> Iterator[None]:
    """End the command with status 1 and one line if a module of the extra is missing.

    Without a ``name``, the extra is that of the missing library, for a command of release or risk. The error of a
    library of no extra is raised.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        found = name or _EXTRAS.get(str(error.name).split(".")[0])
        if found is None:
            raise
        in_a_checkout = f", or run `make {_TARGETS[found]}` in a checkout of kanon" if found in _TARGETS else ""
        raise CommandError(f"{error.name} is missing: pip install 'kanon[{found}]'{in_a_checkout}", 1) from error
