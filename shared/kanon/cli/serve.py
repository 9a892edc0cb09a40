"""``kanon serve``: the whole service on a loopback port, in real time with short steps."""

import contextlib
import errno
import io
import json
import signal
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kanon.cli.errors import local_errors
from kanon.cli.options import OneType, TypesFile, json_of_file, own_types
from kanon.cli.screen import program, working

if TYPE_CHECKING:
    from collections.abc import Callable

    from kanon.local import Stack
    from kanon.local.server import Server

LOG_SECONDS, LOG_STEPS = 600, 60
"""The outage allowance: this many seconds or steps, whichever is longer. The first evaluation reads all of it."""
CHANGEABLE = ("NoiseKeys", "LogGenerations")
"""The template's parameters, beside Types, that an operator changes in a running stack."""
ID = "aGVsbG8"
"""base64url of "hello"."""
LOOK_SECONDS = 0.5
"""Seconds between two checks of the files of --types and --parameters."""


class _Discard(io.StringIO):
    """Drops the functions' log lines, because a served stack runs for hours."""

    def write(self, text: str) -> int:
        return len(text)


def serve(
    port: Annotated[int, typer.Option(min=0, max=65_535, help="Port on 127.0.0.1; 0 for any free one.")] = 8000,
    period: Annotated[int, typer.Option(min=2, max=86_400, help="Length of a step in seconds.")] = 10,
    type_: OneType = None,
    types_file: TypesFile = None,
    parameters: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help='Parameters of the template (JSON): {"NoiseKeys": [...]}, "LogGenerations".'),
    ] = None,
) -> None:
    """Serve the HTTP API on this machine until Ctrl-C.

    If a file of --types or --parameters changes, the service deploys it. Use this to rehearse a new type or a rotation
    of the noise key, in steps of two seconds.

    Example: kanon serve --types types.json --period 2
    """

    def wanted() -> "dict[str, str]":
        own = own_types(type_, types_file, period)
        fixed = {**_timing(period), "Reports": "ON", **_parameters(parameters)}
        return fixed | ({"Types": own.document} if own else {})

    first = wanted()
    with local_errors():
        from kanon.local import Stack
        from kanon.local.clock import Every

        stop = threading.Event()
        schedule = Every(period, _evaluated(period))
        with contextlib.ExitStack() as running:
            with working("starting the service"):
                stack = running.enter_context(Stack(first, schedule=schedule, logs=_Discard()))
                server = _listening(stack, port)
            running.callback(server.close)
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, lambda *_: stop.set())
            _explain(server.url, period, next(iter(json.loads(stack.template.parameters["Types"]))))
            typer.echo("# encrypted reports, three jobs over them, and every number checked")
            typer.echo(f"{program()} reports demo-service --url {server.url}\n")
            if types_file or parameters:
                threading.Thread(target=_redeploy, args=(stack, wanted, first, stop), daemon=True).start()
            stack.run(stop)
            typer.echo("Stopping.")


def _listening(stack: "Stack", port: int) -> "Server":
    try:
        return stack.serve(port)
    except OSError as error:
        problem = "is in use" if error.errno == errno.EADDRINUSE else f"cannot be used ({error.strerror})"
        raise typer.BadParameter(
            f"port {port} {problem}: choose another, or 0 for any free one", param_hint="--port"
        ) from error


def _redeploy(
    stack: "Stack", wanted: "Callable[[], dict[str, str]]", deployed: "dict[str, str]", stop: threading.Event
) -> None:
    """Deploy the files whenever they change. If a deployment fails, print the error and change nothing.

    A file is read when two checks find the same content, because it may still be being written.
    """
    from kanon.local.template import TemplateError

    seen: Any = deployed
    looked: Any = deployed
    while not stop.wait(LOOK_SECONDS):
        before = looked
        try:
            looked = wanted()
        except typer.BadParameter as error:
            looked = error.format_message()
        if looked == seen or looked != before:
            continue
        seen = looked
        try:
            if isinstance(seen, str):
                raise TemplateError(seen)
            stack.deploy(seen)
            typer.echo("Deployed the changed parameters.")
        except TemplateError as error:
            typer.echo(f"Not deployed: {error}", err=True)


def _timing(period: int) -> "dict[str, str]":
    grace, visible = (2, 5) if period >= 10 else (1, 3)
    return {
        "Period": str(period),
        "Grace": str(grace),
        "PublishDelay": str(visible),
        "PublishMargin": "1",
        "OutageAllowance": str(max(LOG_SECONDS, LOG_STEPS * period)),
    }


def _evaluated(period: int) -> int:
    """Seconds after its end at which a step is closed and evaluated."""
    return int(_timing(period)["Grace"]) + (period >= 10)


def _parameters(file: Path | None) -> "dict[str, str]":
    """The parameters of a file that may change in a running stack, in the template's form."""
    if file is None:
        return {}
    found = json_of_file(file, "--parameters")
    if not isinstance(found, dict) or not set(found) <= set(CHANGEABLE):
        raise typer.BadParameter(
            f"{file} must be a JSON object of {' and '.join(CHANGEABLE)}", param_hint="--parameters"
        )
    return {name: json.dumps(value, separators=(",", ":")) for name, value in found.items()}


def _explain(url: str, period: int, type_name: str) -> None:
    timing = _timing(period)
    visible, place = int(timing["PublishDelay"]), f"{url}/v1/types/{type_name}"
    typer.echo(
        f"""
kanon serves on {url} (a page to try it: {url}/docs).

A step takes {period} s; it is evaluated {_evaluated(period)} s after its end and visible {visible} s after it:
a join shows after {visible} to {period + visible} s. Ctrl-C stops the stack and deletes its data. Requests
need no signature here; on AWS batchJoin always needs one, and join by default.

This is a rehearsal: an epsilon that it shows is one for steps of {period} s, and has no meaning for privacy.

# 100 clients join a set
JSON='Content-Type: application/json'
for n in $(seq 100); do curl -s {place}/sets/{ID}:join \\
  -H "$JSON" -d '{{"client": "client-'$n'"}}'; done

# its status, {period + visible} s later
curl -s {place}/sets/{ID}

# many sets at once
curl -s {url}/v1:query \\
  -H "$JSON" -d '{{"setsForType": [{{"type": "{type_name}", "hashes": ["{ID}", "d29ybGQ"]}}]}}'

# check the health of the stack
{program()} doctor --url {url}

# the parameters and, for steps as short as these, their guarantee
curl -s {place}
"""
    )
