"""Answers the page of the console and its calls. It is for the person who started the service, on their own machine.

It answers under names of loopback only: a name of somebody else may resolve to loopback (DNS rebinding), and behind a
proxy there is no console. Calls need the token that ``kanon serve`` prints, and JSON: no page of another site can send
them. Each call runs a command of ``kanon`` in a process of its own, so that the page shows what the commands print.
"""

import hmac
import json
import secrets
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from kanon import clock

OWN_NAMES = frozenset({"127.0.0.1", "localhost", "::1"})
FILES = {
    "/": ("page.html", "text/html; charset=utf-8"),
    "/console/page.css": ("page.css", "text/css; charset=utf-8"),
    "/console/page.js": ("page.js", "text/javascript; charset=utf-8"),
}
CALLS = "/console/run/"
CLOCK, MOVE = "/console/clock", "/console/run/clock"
TOKEN = "x-console-token"  # noqa: S105, the name of a header
COMMANDS: Mapping[str, frozenset[str]] = {
    "plan": frozenset({"k", "window", "epsilon", "delta", "restart", "period"}),
    "cost": frozenset({"joins", "batch", "queries", "hashes", "sets", "type", "period"}),
    "simulate": frozenset({"k", "window", "profile", "period", "columns"}),
}
"""The commands that the page can run, and the options that it can set."""
MOST_SECONDS = 120
LOG = "log.csv"
HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self';"
    " img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


class ConsoleResponse(NamedTuple):
    """An HTTP response."""

    status: int
    headers: dict[str, str]
    body: str


class Console:
    """The page and its calls, from the start of a service on.

    Args:
        token: that calls must have; a new one if left out.
        move: moves the clock of a rehearsal to a moment (Unix s); a ``ValueError`` says what to change. A service for
            real use has none.
    """

    def __init__(self, token: str | None = None, move: Callable[[float], None] | None = None) -> None:
        self.token = token or secrets.token_urlsafe(16)
        self._move = move
        self._one = threading.Lock()

    def address(self, url: str) -> str:
        """What to open in a browser: the part after # is never sent."""
        return f"{url}/#{self.token}"

    def answer(self, method: str, path: str, headers: Mapping[str, str], body: str) -> ConsoleResponse | None:
        """The reply to a request; None if it is not for the console. Header names are in lower case."""
        if path not in FILES and path != CLOCK and not path.startswith(CALLS):
            return None
        if name_of(f"//{headers.get('host', '')}") not in OWN_NAMES:
            return None
        if path in FILES:
            return _file(path) if method in ("GET", "HEAD") else None
        if path == CLOCK:
            return self._clock() if method == "GET" else None
        refused = self._refused(method, headers)
        return refused or (self._moved(body) if path == MOVE else self._run(path.removeprefix(CALLS), body))

    def _refused(self, method: str, headers: Mapping[str, str]) -> ConsoleResponse | None:
        origin = headers.get("origin")
        if method != "POST":
            return _problem(405, "use POST")
        if origin is not None and urlsplit(origin).netloc != headers.get("host"):
            return _problem(403, "only the console's own page may call")
        if not hmac.compare_digest(headers.get(TOKEN, "").encode(), self.token.encode()):
            return _problem(403, "the token is wrong: open the address that kanon serve printed last")
        if headers.get("content-type", "").partition(";")[0].strip() != "application/json":
            return _problem(415, "send application/json")
        return None

    def _clock(self) -> ConsoleResponse:
        return _json(200, {"now": clock.now(), "moves": self._move is not None})

    def _moved(self, body: str) -> ConsoleResponse:
        if self._move is None:
            return _problem(400, "only the clock of a rehearsal moves: start kanon serve without --data")
        try:
            self._move(moment_of(body))
        except ValueError as error:
            return _problem(400, str(error))
        return self._clock()

    def _run(self, command: str, body: str) -> ConsoleResponse:
        try:
            given = json.loads(body)
            options = arguments(command, given)
        except (ValueError, RecursionError) as error:
            return _problem(400, str(error))
        if not self._one.acquire(timeout=MOST_SECONDS):
            return _problem(503, "another command still runs; try again")
        try:
            with tempfile.TemporaryDirectory() as folder:
                if command == "simulate":
                    (Path(folder) / LOG).write_text(given["log"])
                    options.insert(0, LOG)
                return _ran([command, "--json", *options], folder)
        finally:
            self._one.release()


def arguments(command: str, given: Any) -> list[str]:
    """The options of a command.

    Raises:
        ValueError: the page cannot run this command, or not with these options.
    """
    if command not in COMMANDS:
        raise ValueError(f"the console cannot run {command!r}: it runs {', '.join(COMMANDS)}")
    allowed = COMMANDS[command]
    if not isinstance(given, dict) or not all(isinstance(value, str) for value in given.values()):
        raise ValueError("the body must be a JSON object of texts")
    if any("\0" in value or not value.isascii() for name, value in given.items() if name != "log"):
        raise ValueError("options are ASCII texts")
    given.get("log", "").encode()  # a lone surrogate is no text
    if command == "simulate" and "log" not in given:
        raise ValueError("log is missing: the text of a CSV file")
    named = given.keys() - ({"log"} if command == "simulate" else set())
    if unknown := sorted(named - allowed):
        raise ValueError(f"unknown option {unknown[0]!r}: kanon {command} takes {', '.join(sorted(allowed))} here")
    return [f"--{name}={given[name]}" for name in sorted(named)]


def moment_of(body: str) -> float:
    """The moment (Unix s) of a call that moves the clock.

    Raises:
        ValueError: the body has another form.
    """
    try:
        given = json.loads(body)
    except RecursionError:
        given = None
    if not isinstance(given, dict) or given.keys() != {"to"} or type(given["to"]) not in (int, float):
        raise ValueError('send {"to": ...}, a moment in Unix seconds')
    return float(max(-1e18, min(given["to"], 1e18)))


def _ran(words: list[str], folder: str) -> ConsoleResponse:
    """What a command printed; the last line of its errors with status 400 if it failed."""
    program = [sys.executable, "-c", "from kanon.cli.start import main; main()"]
    try:
        done = subprocess.run(  # noqa: S603, the words are checked
            [*program, *words], capture_output=True, text=True, timeout=MOST_SECONDS, check=False, cwd=folder
        )
    except subprocess.TimeoutExpired:
        return _problem(400, f"this takes more than {MOST_SECONDS} s: run `kanon {words[0]}` yourself")
    if done.returncode:
        return _problem(400, _last_line(done.stderr) or f"kanon {words[0]} failed")
    return _json(200, json.loads(done.stdout) | {"warnings": _warnings(done.stderr)})


def _last_line(text: str) -> str:
    lines = [line.strip(" │╭╮╰╯─") for line in text.splitlines()]
    return " ".join(line for line in lines if line and not line.startswith(("Usage:", "Try ", "Error"))).strip()


def _warnings(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if line.startswith(("Warning", "left out"))]


def _json(status: int, content: Any) -> ConsoleResponse:
    return ConsoleResponse(status, {**HEADERS, "Content-Type": "application/json"}, json.dumps(content))


def _problem(status: int, text: str) -> ConsoleResponse:
    return _json(status, {"problem": text})


def _file(path: str) -> ConsoleResponse:
    name, kind = FILES[path]
    return ConsoleResponse(200, {**HEADERS, "Content-Type": kind}, _text(name))


@cache
def _text(name: str) -> str:
    return files(__package__).joinpath(name).read_text()


def name_of(address: str) -> str | None:
    """The host of an address, in lower case; None if there is none."""
    try:
        return urlsplit(address).hostname
    except ValueError:
        return None
