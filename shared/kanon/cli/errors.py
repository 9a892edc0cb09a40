"""Errors of all commands: one line that names the command and says what to change.

``pip install kanon-dp`` alone brings the HTTP client and the light commands. (``kanon`` on PyPI is another project.)
What a command needs beside this is an extra; a missing one is named with the command that installs it.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import ParamSpec, TypeVar

import typer

from kanon.errors import Error

DISTRIBUTION = "kanon-dp"

P = ParamSpec("P")
T = TypeVar("T")

_OF_OPTIONS = {
    ("desk", "pyspark"): "spark",
    ("desk", "pandas"): "spark",
    ("desk", "boto3"): "aws",
    ("desk", "botocore"): "aws",
    ("aws", "cryptography"): "aws,listed",
    ("aws", "pyarrow"): "aws,listed",
    ("serve", "jwt"): "jwt",
    ("serve", "cryptography"): "serve,reports",
    ("serve", "pyarrow"): "listed",
    ("serve", "fastavro"): "serve,reports",
    ("serve", "publicsuffixlist"): "serve,reports",
}
"""Libraries that only an option of a command needs, by the extra of the command, and their extras."""


class CommandError(typer.BadParameter):
    """Ends a command with a status and one line. ``kanon.cli.main`` puts the name of the command before the message."""

    def __init__(self, message: str, status: int = 2) -> None:
        super().__init__(message)
        self.exit_code = status

    def format_message(self) -> str:
        """The message as it is, because it need not be about an option."""
        return self.message


@contextmanager
def one_line(*kinds: type[Exception], status: int = 2) -> Iterator[None]:
    """End the command with the message of an error, if it is of one of these kinds."""
    try:
        yield
    except kinds as error:
        raise CommandError(str(error), status) from error


def needs(extra: str) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Let a command end with one line on an error of kanon (status 2), and if a library of its extra is missing (1)."""

    def decorate(command: Callable[P, T]) -> Callable[P, T]:
        @wraps(command)
        def run(*args: P.args, **kwargs: P.kwargs) -> T:
            try:
                return command(*args, **kwargs)
            except Error as error:
                raise CommandError(str(error)) from error
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
