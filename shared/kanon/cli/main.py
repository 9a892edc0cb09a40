"""Entry point ``kanon``. A command is a function with a Typer signature; list it in ``COMMANDS``."""

from collections.abc import Callable
from typing import Any

import typer

from kanon.cli.audit import audit
from kanon.cli.demo import demo
from kanon.cli.doctor import doctor
from kanon.cli.plan import plan
from kanon.cli.risk import risk
from kanon.cli.serve import serve

COMMANDS: tuple[Callable[..., Any], ...] = (serve, demo, plan, audit, doctor)

app = typer.Typer(
    help="A differentially private k-anonymity service, on this machine.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
for command in COMMANDS:
    app.command()(command)
app.add_typer(risk, name="risk")


@app.callback()
def kanon() -> None:
    """Keep ``kanon COMMAND`` the form, however many commands there are."""


if __name__ == "__main__":
    app()
