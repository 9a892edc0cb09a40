"""Entry point ``kanon``. A command is a function with a Typer signature; list it in ``COMMANDS``."""

from collections.abc import Callable
from typing import Any

import typer

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

app = typer.Typer(
    help="Run, plan, audit and operate kanon, a differentially private k-anonymity service.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
for command in COMMANDS:
    app.command()(command)
app.add_typer(operate, name="operate")
app.add_typer(reports, name="reports")
app.add_typer(risk, name="risk")
app.add_typer(ledger, name="ledger")


@app.callback()
def kanon() -> None:
    """Require ``kanon COMMAND`` even if there is only one command."""


if __name__ == "__main__":
    app()
