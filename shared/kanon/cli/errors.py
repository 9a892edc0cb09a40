"""Errors of all commands: one line that names the command and says what to change."""

from collections.abc import Iterator
from contextlib import contextmanager

import typer


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
