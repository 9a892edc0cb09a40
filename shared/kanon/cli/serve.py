"""``kanon serve``: with ``--data`` the service of one machine, else a rehearsal of the stack with short steps."""

import contextlib
import io
import json
import signal
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kanon.cli.errors import one_line
from kanon.cli.options import OneType, TypesFile, json_of_file, own_types, refuse_unused, types_document
from kanon.cli.screen import program, working
from kanon.cli.serve_data import ONLY_DATA, Credentials, OfLists, ServeOptions, serve_directory, usable
from kanon.cors import Cors
from kanon.serving.access import AuthMode

if TYPE_CHECKING:
    from collections.abc import Callable

    from kanon.local import Stack

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
    context: typer.Context,
    data: Annotated[Path | None, typer.Option(metavar="DIR", help="Keep everything in this directory.")] = None,
    host: Annotated[str, typer.Option(help="With --data: address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65_535, help="Port; 0 for any free one.")] = 8000,
    period: Annotated[
        int | None,
        typer.Option(min=1, max=86_400, help="Seconds per step; by default 3600 with --data, else 10."),
    ] = None,
    type_: OneType = None,
    types_file: TypesFile = None,
    join_auth: Annotated[
        AuthMode, typer.Option(help="With --data: who may join: with an API key, with a token, or anybody.")
    ] = AuthMode.KEY,
    batch_auth: Annotated[
        AuthMode, typer.Option(help="With --data: who may call batchJoin, batchQuery and /metrics: KEY or JWT.")
    ] = AuthMode.KEY,
    jwks: Annotated[
        Path | None, typer.Option(metavar="FILE", help="With --data: public keys (JWKS) of the issuer of tokens.")
    ] = None,
    issuer: Annotated[str | None, typer.Option(help="With --data: the claim iss of tokens.")] = None,
    audience: Annotated[str | None, typer.Option(help="With --data: the claim aud of tokens.")] = None,
    cors_origin: Annotated[
        list[str] | None,
        typer.Option(metavar="ORIGIN", help="Pages that may call, as https://example.org; * for any. Repeatable."),
    ] = None,
    report_origins: Annotated[
        str | None,
        typer.Option(metavar="LIST", help="With --data: turn reports on, for these origins; * for all."),
    ] = None,
    epsilon_cap: Annotated[
        str | None, typer.Option(help="With --data: the most epsilon of all jobs over one unit; never changes; 64.")
    ] = None,
    delta_cap: Annotated[
        str | None, typer.Option(help="With --data: the most delta of all jobs over one unit; never changes; 1e-7.")
    ] = None,
    gateway: Annotated[
        bool, typer.Option("--gateway", help="With --data: answer relays, which hide who joins (Oblivious HTTP).")
    ] = False,
    list_auth: Annotated[
        AuthMode | None, typer.Option(help="With --data: who may read the lists of listed types, by default KEY.")
    ] = None,
    review_steps: Annotated[
        int | None,
        typer.Option(min=0, help="With --data: a value is listed so many steps after it turned true."),
    ] = None,
    list_days: Annotated[
        int | None, typer.Option(min=1, help="With --data: how many days the history of lists is kept; 90.")
    ] = None,
    enrol_auth: Annotated[
        AuthMode | None, typer.Option(help="With --data: who may enrol for credentials, by default KEY; or JWT.")
    ] = None,
    enrol_verifier: Annotated[
        str | None,
        typer.Option(metavar="URL", help="With --data: accounts are devices; what verifies their attestations."),
    ] = None,
    parameters: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help='Without --data: JSON such as {"NoiseKeys": [...]}, "LogGenerations".'),
    ] = None,
) -> None:
    """Serve the HTTP API on this machine until Ctrl-C.

    With --data it is a service for real use: it keeps joins, answers and secrets in a directory.

    Without --data it rehearses the stack on AWS, and forgets everything when it ends. If a file of --types or
    --parameters changes, it deploys it. Use this to rehearse a new type or a rotation of the noise key.

    Example: kanon serve --data data --types types.json
    """
    cors = _pages(cors_origin or [])
    if data is None:
        refuse_unused(context, ONLY_DATA, "without --data DIR: the rehearsal of the stack has its own")
        _rehearse(port, _of_rehearsal(period), type_, types_file, parameters, cors)
    else:
        refuse_unused(context, ("parameters",), "with --data: it is for the rehearsal, without --data")
        who = (list_auth or AuthMode.KEY, enrol_auth, enrol_verifier)
        credentials = Credentials(join_auth, batch_auth, jwks, issuer, audience, *who)
        lists = OfLists(list_auth, review_steps, list_days)
        reports = report_origins, epsilon_cap, delta_cap
        document = types_document(type_, types_file)
        serve_directory(ServeOptions(data, host, port, cors, gateway), period, document, credentials, reports, lists)


def _pages(origins: "list[str]") -> Cors:
    try:
        return Cors.of(origins)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--cors-origin") from None


def _of_rehearsal(period: int | None) -> int:
    """The length of a step without ``--data``, in seconds."""
    if period == 1:
        raise typer.BadParameter("must be at least 2 without --data", param_hint="--period")
    return period or 10


def _rehearse(
    port: int, period: int, type_: "list[str] | None", types_file: Path | None, parameters: Path | None, cors: Cors
) -> None:
    """Run the whole stack on an emulator, in real time with short steps."""

    def wanted() -> "dict[str, str]":
        own = own_types(type_, types_file, period)
        pages = {"CorsOrigins": ",".join(sorted(cors.origins))}
        fixed = {**_timing(period), "Reports": "ON", **pages, **_parameters(parameters)}
        return fixed | ({"Types": own.document} if own else {})

    first = wanted()
    from kanon.local import EngineError, Stack
    from kanon.local.clock import Every

    with one_line(EngineError, status=1):
        stop = threading.Event()
        schedule = Every(period, _evaluated(period))
        with contextlib.ExitStack() as running:
            with working("starting the service"):
                stack = running.enter_context(Stack(first, schedule=schedule, logs=_Discard()))
                with usable(port):
                    server = stack.serve(port)
            running.callback(server.close)
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, lambda *_: stop.set())
            typer.echo(f"\nConsole: {stack.console.address(server.url)}")
            _explain(server.url, period, next(iter(json.loads(stack.template.parameters["Types"]))))
            typer.echo("# encrypted reports, three jobs over them, and every number checked")
            typer.echo(f"{program()} reports demo-service --url {server.url}\n")
            if types_file or parameters:
                threading.Thread(target=_redeploy, args=(stack, wanted, first, stop), daemon=True).start()
            stack.run(stop)
            typer.echo("Stopping.")


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
