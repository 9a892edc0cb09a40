"""Entry point ``kanon``. A command is a function with a Typer signature; list it in ``COMMANDS``.

An invalid command line ends with status 2 and one line, ``kanon plan: ...``, which says what to change.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import groupby
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from kanon import __version__
from kanon.cli.audit import audit
from kanon.cli.cost import cost
from kanon.cli.demo import demo
from kanon.cli.doctor import doctor
from kanon.cli.errors import CommandError, needs
from kanon.cli.explain import explain
from kanon.cli.gate import gate
from kanon.cli.ledger import ledger
from kanon.cli.listed import listed
from kanon.cli.operate import operate
from kanon.cli.plan import plan
from kanon.cli.release import release
from kanon.cli.reports import app as reports
from kanon.cli.risk import risk
from kanon.cli.screen import pages, plain
from kanon.cli.serve import serve
from kanon.cli.set_id import set_id
from kanon.cli.signals import interrupted
from kanon.cli.simulate import simulate

GATE, PARAMETERS, ONCE, SERVICE = "Use the gate", "Decide parameters", "Publish once", "Run a service"
PANELS = (GATE, PARAMETERS, ONCE, SERVICE)
"""The readers of ``kanon --help``."""

COMMANDS: dict[Callable[..., Any], tuple[str, str]] = {
    demo: ("serve", GATE), serve: ("local", GATE), gate: ("desk", GATE),
    listed: ("listed", GATE), set_id: ("", GATE),
    simulate: ("desk", PARAMETERS), plan: ("desk", PARAMETERS), cost: ("desk", PARAMETERS),
    audit: ("local", PARAMETERS), release: ("desk", ONCE), doctor: ("aws", SERVICE),
    explain: ("aws", SERVICE),
}  # fmt: skip
"""The commands, the extra that each needs, and its panel of the help."""
GROUPS = (
    (risk, "risk", "desk", ONCE),
    (ledger, "ledger", "aws", ONCE),
    (reports, "reports", "reports", ONCE),
    (operate, "operate", "aws", SERVICE),
)

PIPED = not (sys.stdout.isatty() and sys.stderr.isatty())
"""Piped help is plain text in long lines. On a terminal it has the terminal's width, and colours."""

_UsageError: Any = typer.BadParameter.__base__
"""Typer brings its own copy of ``click``, so this type has no public name."""


class _Program(TyperGroup):
    """Lists its commands by reader, and prints an error of the command line as one line, without usage and hint."""

    def list_commands(self, ctx: Any) -> list[str]:
        return sorted(super().list_commands(ctx), key=lambda name: PANELS.index(self._panel(name)))

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """The panels as plain text; on a terminal Typer draws them."""
        names = self.list_commands(ctx)
        width = formatter.width - 6 - max(map(len, names))
        for panel, some in groupby(names, self._panel):
            with formatter.section(panel):
                formatter.write_dl([(name, self.commands[name].get_short_help_str(width)) for name in some])

    def _panel(self, name: str) -> str:
        return str(self.commands[name].rich_help_panel)  # type: ignore[attr-defined]  # of each of Typer's commands

    def make_context(self, *arguments: Any, **more: Any) -> Any:
        with _one_line():
            return super().make_context(*arguments, **more)

    def invoke(self, ctx: Any) -> Any:
        with _one_line():
            return super().invoke(ctx)


class _NamedInErrors(TyperCommand):
    """Says to which command an error belongs. The parser of options does not."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except _UsageError as error:
            error.ctx = error.ctx or ctx
            raise


@contextmanager
def _one_line() -> Iterator[None]:
    try:
        yield
    except (typer.Exit, BrokenPipeError):
        raise
    except BaseException as error:
        if interrupted():  # the error is a consequence
            raise typer.Exit(1) from None
        if isinstance(error, _UsageError) and type(error).__name__ != "NoArgsIsHelpError":  # which shows the help
            _say(*_told(error))
            raise typer.Exit(error.exit_code) from error
        if isinstance(error, OSError):  # of a file that could be opened, and then not read or written: a full disk
            _say("kanon", f"{f'{error.filename} cannot be used: ' if error.filename else ''}{error.strerror or error}")
            raise typer.Exit(2) from error
        raise


def _told(error: Any) -> tuple[str, str]:
    """The command of an error, and its message."""
    where = "kanon" if error.ctx is None else error.ctx.command_path
    text = error.format_message().replace("Value error, ", "")
    if type(error) not in (typer.BadParameter, CommandError):  # a command or an option is unknown or missing
        text = f"{text.rstrip('.')}: see {where} --help"
    return where, text


def _say(where: str, text: str) -> None:
    """Print an error as one line. A name from outside may hold line ends or control characters."""
    typer.echo(f"{where}: {plain(pages(text))}", err=True)


app = typer.Typer(
    name="kanon",
    cls=_Program,
    help="Run, plan, audit and operate kanon, a differentially private k-anonymity service.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None if PIPED else "rich",
    context_settings={"terminal_width": 200} if PIPED else {},
)
for command, (extra, panel) in COMMANDS.items():
    app.command(cls=_NamedInErrors, rich_help_panel=panel)(needs(extra)(command))
for group, name, extra, panel in GROUPS:
    for registered in group.registered_commands:
        registered.callback = needs(extra)(registered.callback) if registered.callback else None
        registered.cls = _NamedInErrors
    app.add_typer(group, name=name, rich_help_panel=panel)


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
