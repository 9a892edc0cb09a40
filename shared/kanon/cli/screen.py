"""Output of all commands: tables, JSON, and progress on a terminal and elsewhere."""

import json
import os
import re
import shlex
import shutil
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

QUIET, EVERY = 2.0, 5.0
"""Seconds until the first line of progress without a terminal, and between two lines."""
FORETOLD = 20
"""The remaining time is shown after this fraction of the work, because the first steps take longer."""
_UNLIMITED = 10_000
DOCS = Path(__file__).parents[3] / "docs"
"""The documentation in a checkout."""


def screen() -> "Console":
    """The console of a command's result. A pipe or a file gets tables in their full width."""
    from rich.console import Console

    limited = sys.stdout.isatty() or "COLUMNS" in os.environ
    return Console(width=None if limited else _UNLIMITED, highlight=False)


def plain(text: str) -> str:
    """A text in one line that a terminal only shows: control characters are written as their escapes."""
    return "".join(sign if sign.isprintable() else sign.encode("unicode_escape").decode() for sign in text)


def cell(text: str) -> str:
    """A text from data or a file name, for a cell of a table: only shown, without any effect on the terminal."""
    from rich.markup import escape

    return escape(plain(text))


def pages(text: str) -> str:
    """A text that names pages of the documentation. A wheel has no such files: there they are named by their titles."""
    return re.sub(r"docs/([\w/.-]+)\.md(?:#([\w-]+))?", _page, text)


def _page(found: re.Match[str]) -> str:
    path, section = found.groups()
    if (DOCS / f"{path}.md").is_file():
        return found[0]
    name = f"the page '{path.rpartition('/')[2]}' of kanon's documentation"
    return f"{name}, section '{section.replace('-', ' ')}'" if section else name


def new_table(*columns: str, numbers: Collection[str] = (), title: str | None = None) -> "Table":
    """An empty table. The columns that ``numbers`` names are aligned to the right."""
    from rich.table import Table

    made = Table(title=title, title_justify="left")
    for column in columns:
        made.add_column(column, justify="right" if column in numbers else "left")
    return made


def program() -> str:
    """The name of the program as the user types it."""
    found = shutil.which("kanon")
    called = Path(sys.argv[0])
    if found is None and called.name == "kanon" and called.is_absolute() and called.is_relative_to(Path.cwd()):
        return shlex.quote(str(called.relative_to(Path.cwd())))
    return shlex.quote(str(called)) if found is None and called.name == "kanon" else "kanon"


def show_json(value: Any) -> None:
    """Print a command's result as JSON. Names of fields are camelCase, like those of the HTTP interface.

    A field ``types`` is a document to paste, as the parameter ``Types`` takes it, and stays as it is.
    """
    typer.echo(json.dumps(_camel_case(value), indent=2))


def _camel_case(value: Any) -> Any:
    if isinstance(value, dict):
        return {_camel_case_of(key): part if key == "types" else _camel_case(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_camel_case(part) for part in value]
    return value


def _camel_case_of(name: Any) -> Any:
    if not isinstance(name, str) or not re.fullmatch(r"[a-z][a-z0-9]*(_[a-z0-9.]+)+", name):
        return name
    return re.sub(r"_(.)", lambda found: found[1].upper(), name)


def warn(*texts: str) -> None:
    """Print warnings on standard error, each in one line."""
    for text in texts:
        typer.echo(f"Warning: {plain(text)}.", err=True)


@contextmanager
def progress(what: str, total: int, clock: Callable[[], float] = time.monotonic) -> Iterator[Callable[[int], None]]:
    """Show the progress of work on standard error: a bar on a terminal, else a line every few seconds.

    ``what`` is as in ``joins sent``. Call the function that it yields with the number of units done since its last
    call.
    """
    if sys.stderr.isatty():
        with _bar(what, total) as advance:
            yield advance
        return
    yield _Lines(what, total, clock).advance


@contextmanager
def _bar(what: str, total: int) -> Iterator[Callable[[int], None]]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Progress(*columns, console=Console(stderr=True)) as shown:
        task = shown.add_task(what, total=total)
        yield lambda count: shown.advance(task, count)


class _Lines:
    """Progress as lines of text."""

    def __init__(self, what: str, total: int, clock: Callable[[], float]) -> None:
        self._what, self._total, self._clock = what, total, clock
        self._done, self._began = 0, clock()
        self._next = self._began + QUIET

    def advance(self, count: int) -> None:
        self._done += count
        now = self._clock()
        if now < self._next or not self._done:
            return
        self._next = now + EVERY
        left = (now - self._began) / self._done * max(0, self._total - self._done)
        estimate = f", about {left:.0f} s left" if FORETOLD * self._done >= self._total else ""
        typer.echo(f"{self._what}: {self._done:,} of {self._total:,}{estimate}", err=True)


@contextmanager
def working(what: str) -> Iterator[None]:
    """Show on standard error that work of unknown length goes on, if it takes more than two seconds.

    On a terminal it is a spinner, else a line after 2, 4, 8 seconds and so on. It must not be nested.
    """
    if sys.stderr.isatty():
        from rich.console import Console

        with Console(stderr=True).status(f"{what} ..."):
            yield
        return
    done = threading.Event()
    threading.Thread(target=_said, args=(what, done.wait), daemon=True).start()
    try:
        yield
    finally:
        done.set()


def _said(what: str, wait: Callable[[float], bool]) -> None:
    """Print lines after 2, 4, 8, ... seconds until ``wait`` returns true."""
    before, after = 0.0, QUIET
    while not wait(after - before):
        typer.echo(f"{what} ... {after:.0f} s", err=True)
        before, after = after, 2 * after
