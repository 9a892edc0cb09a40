"""``kanon serve``: the whole service on a loopback port, in real time with short steps."""

import contextlib
import io
import signal
import sys
import threading
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from kanon.cli.extras import extra

GRACE, EVALUATED, VISIBLE = 2, 3, 5
"""Seconds after the end of a step at which it is closed, evaluated and visible."""
LOG_STEPS = 60
"""The outage allowance in steps; the first evaluation reads all of them."""


class _Discard(io.StringIO):
    """Drops the functions' log lines, because a served stack runs for hours."""

    def write(self, text: str) -> int:
        return len(text)


def serve(
    port: Annotated[int, typer.Option(help="Port on 127.0.0.1; 0 for any free one.")] = 8000,
    period: Annotated[int, typer.Option(min=10, help="Length of a step in seconds.")] = 10,
    engine: Annotated[str, typer.Option(help="AWS emulator: ministack or moto.")] = "ministack",
    verbose: Annotated[bool, typer.Option(help="Show what the functions log.")] = False,
) -> None:
    """Serve the HTTP API on this machine until Ctrl-C."""
    with extra("local"):
        from kanon.local import EngineError, Stack
        from kanon.local.clock import Every

    console = Console()
    parameters = {
        "Period": str(period),
        "Grace": str(GRACE),
        "PublishDelay": str(VISIBLE),
        "PublishMargin": "1",
        "OutageAllowance": str(LOG_STEPS * period),
    }
    stop = threading.Event()
    logs = sys.stdout if verbose else _Discard()
    with contextlib.ExitStack() as running:
        try:
            stack = running.enter_context(
                Stack(parameters, engine=engine, schedule=Every(period, EVALUATED), logs=logs)
            )
            server = stack.serve(port)
        except (EngineError, OSError) as error:
            console.print(f"[red]{escape(str(error))}[/red]")
            raise typer.Exit(1) from error
        running.callback(server.close)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: stop.set())
        _explain(console, server.url, period)
        stack.run(stop)
        console.print("Stopping.")


def _explain(console: Console, url: str, period: int) -> None:
    id_ = "aGVsbG8"  # base64url of "hello"
    console.print(f"\n[bold]kanon[/bold] serves on [bold]{url}[/bold] (a page to try it: {url}/docs).\n")
    console.print(
        f"A step takes {period} s; it is evaluated {EVALUATED} s after its end and visible {VISIBLE} s after it:\n"
        f"a join shows after {VISIBLE} to {period + VISIBLE} s. Ctrl-C stops the stack and deletes its data. Requests\n"
        "need no signature here; on AWS batchJoin always needs one, and join by default.\n"
    )
    examples = (
        f"# 100 clients join a set; with 99 or more distinct tokens it is certain to become k-anonymous\n"
        f"for n in $(seq 100); do curl -s {url}/v1/types/fledge/sets/{id_}:join \\\n"
        f"  --json '{{\"client\": \"client-'$n'\"}}'; done\n\n"
        f"# its status, {period + VISIBLE} s later\n"
        f"curl -s {url}/v1/types/fledge/sets/{id_}\n\n"
        f"# many sets at once\n"
        f"curl -s {url}/v1:query \\\n"
        f'  --json \'{{"setsForType": [{{"type": "fledge", "hashes": ["aGVsbG8", "d29ybGQ"]}}]}}\'\n\n'
        f"# check the health of the stack\n"
        f"kanon doctor --url {url}\n\n"
        f"# the parameters and their guarantee\n"
        f"curl -s {url}/v1/types/fledge\n"
    )
    console.print(examples, markup=False, highlight=False, soft_wrap=True)
