"""Entry point ``kanon``. A command is a function with a Typer signature; list it in ``COMMANDS``."""

import sys
from collections.abc import Callable
from typing import Annotated, Any

import typer

from kanon import __version__
from kanon.cli.audit import audit
from kanon.cli.cost import cost
from kanon.cli.demo import demo
from kanon.cli.doctor import doctor
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
"""Help and errors that are piped are plain text in long lines; on a terminal they have its width, and colours."""

app = typer.Typer(
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
