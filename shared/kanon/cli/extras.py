"""Extras: what a command needs beside the base installation. A missing one is named with the command that installs it.

``pip install kanon-dp`` alone brings the HTTP client and the light commands. (``kanon`` on PyPI is another project.)
"""

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from kanon.cli.errors import CommandError

DISTRIBUTION = "kanon-dp"

P = ParamSpec("P")
T = TypeVar("T")

_OF_OPTIONS = {
    ("desk", "pyspark"): "spark",
    ("desk", "pandas"): "spark",
    ("desk", "boto3"): "aws",
    ("desk", "botocore"): "aws",
}
"""Libraries that only an option of a command needs, by the extra of the command, and their extras."""


def needs(extra: str) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Let a command end with status 1 and one line if a library of its extra is missing."""

    def decorate(command: Callable[P, T]) -> Callable[P, T]:
        @wraps(command)
        def run(*args: P.args, **kwargs: P.kwargs) -> T:
            try:
                return command(*args, **kwargs)
            except ModuleNotFoundError as error:
                library = str(error.name).split(".")[0]
                if library == "kanon":
                    raise
                wanted = f"{DISTRIBUTION}[{_OF_OPTIONS.get((extra, library), extra)}]"
                raise CommandError(
                    f"{library} is missing: pip install '{wanted}', or run `make install` in a checkout of kanon", 1
                ) from error

        return run

    return decorate
