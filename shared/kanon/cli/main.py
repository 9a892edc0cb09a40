"""Entry point ``kanon``. A command is a function with a Typer signature; list it in ``COMMANDS``.

An invalid command line ends with status 2 and one line, ``kanon plan: ...``, which says what to change.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from kanon import __version__
from kanon.cli.audit import audit
from kanon.cli.cost import cost
from kanon.cli.demo import demo
from kanon.cli.doctor import doctor
from kanon.cli.errors import CommandError
from kanon.cli.explain import explain
from kanon.cli.ledger import ledger
from kanon.cli.operate import operate
from kanon.cli.plan import plan
from kanon.cli.release import release
from kanon.cli.reports import app as reports
from kanon.cli.risk import risk
from kanon.cli.serve import serve
from kanon.cli.simulate import simulate

COMMANDS: tuple[Callable[..., Any], ...] = (serve, demo, simulate, plan, cost, audit, doctor, explain, release)

PIPED = not (sys.stdout.isatty() and sys.stderr.isatty())
"""Piped help is plain text in long lines. On a terminal it has the terminal's width, and colours."""

_UsageError: Any = typer.BadParameter.__base__
"""Typer brings its own copy of ``click``, so this type has no public name."""


class _OneLineErrors(TyperGroup):
    """Prints an error of the command line as one line, without usage and hint."""

    def make_context(self, *arguments: Any, **extra: Any) -> Any:
        with _one_line():
            return super().make_context(*arguments, **extra)

    def invoke(self, ctx: Any) -> Any:
        with _one_line():
            return super().invoke(ctx)


@contextmanager
def _one_line() -> Iterator[None]:
    try:
        yield
    except _UsageError as error:
        if type(error).__name__ == "NoArgsIsHelpError":  # a group without a command shows its help
            raise
        where = "kanon" if error.ctx is None else error.ctx.command_path
        text = error.format_message().replace("Value error, ", "")
        if type(error) not in (typer.BadParameter, CommandError):  # a command or an option is unknown or missing
            text = f"{text.rstrip('.')}: see {where} --help"
        typer.echo(f"{where}: {text}", err=True)
        raise typer.Exit(error.exit_code) from error
    except BrokenPipeError:
        raise
    except OSError as error:  # of a file that could be opened, and then not read or written: a full disk
        named = f"{error.filename} cannot be used: " if error.filename else ""
        typer.echo(f"kanon: {named}{error.strerror or error}", err=True)
        raise typer.Exit(2) from error


app = typer.Typer(
    name="kanon",
    cls=_OneLineErrors,
    help="Run, plan, audit and operate kanon, a differentially private k-anonymity service.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None if PIPED else "rich",
    context_settings={"terminal_width": 200} if PIPED else {},
)
for command in COMMANDS:
    app.command()(command)
app.add_typer(operate, name="operate")
app.add_typer(reports, name="reports")
app.add_typer(risk, name="risk")
app.add_typer(ledger, name="ledger")


def _show_version(asked: bool) -> None:
    if asked:
        typer.echo(f"kanon {__version__}")
        raise typer.Exit


@app.callback()
def kanon(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Run, plan, audit and operate kanon, a differentially private k-anonymity service.

    Example: kanon demo
    """


if __name__ == "__main__":
    app(prog_name="kanon")
