"""A new user's first minutes: the two commands of the README, run in a fresh clone.

The clone is of the last commit. It installs `.venv-demo` from the package registry that pip is configured with, without
pip's cache, and compiles what it imports, as on a new machine. The short form installs nothing.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.harness import Count, Form, Once, Row, spent
from kanon.local.source import ROOT

INSTALL = (".venv-demo/.project",)
DEMO, SERVE = ("demo",), ("serve", "PORT=0")
STARTS, FIRST, SERVES = "This takes about", "is the first set that reads true", "kanon serves on"
"""Parts of the lines printed when the replay starts, when a status is true, and when the service answers."""
MOST_INSTALL, MOST_MB, MOST_FIRST, MOST_DEMO = 40, 300, 30, 90
OTHERS = "other work on the machine counts"
OWN = ("KANON_", "MAKE", "MFLAGS", "PYTHON", "VIRTUAL_ENV", "GIT_")
"""Variables of this environment that a new user does not have."""


class FirstRunError(Exception):
    """A command of the README did not work."""


@dataclass(frozen=True)
class Ran:
    """A command that ended. ``at`` has the second at which each awaited part of a line was printed."""

    processor: float
    elapsed: float
    at: Mapping[str, float]


def rows(form: Form) -> Iterator[Row]:
    """Installation, `make demo` and `make serve`, as a new user runs them."""
    if not form.short:
        yield from measured(ROOT)


def measured(repository: Path) -> Iterator[Row]:
    """The rows for a clone of this repository.

    Raises:
        FirstRunError: a command failed; the message has its last line.
    """
    with TemporaryDirectory() as folder:
        clone = Path(folder) / "kanon"
        subprocess.run(["git", "clone", "--quiet", repository, clone], check=True, stdin=subprocess.DEVNULL)
        installed = _install(clone)
        yield Once(
            "first run: processor time to install",
            "`make demo` in a fresh clone: `.venv-demo` from the package registry",
            installed.processor, f"{installed.elapsed:.0f} s elapsed", MOST_INSTALL,
        )  # fmt: skip
        demo = _ran(clone, DEMO, (STARTS, FIRST))
        yield Count("first run: MB of the installation", "`.venv-demo` after the demo", _megabytes(clone), MOST_MB)
        yield Once(
            "first run: until a status is true", "elapsed, from the start of the replay to the line on the screen",
            demo.at[FIRST] - demo.at[STARTS], OTHERS, MOST_FIRST,
        )  # fmt: skip
        yield Once(
            "first run: processor time of the demo", "`make demo`, installed: emulator, replay, comparison, picture",
            demo.processor, f"{demo.elapsed:.0f} s elapsed", MOST_DEMO,
        )  # fmt: skip
        serve = _ran(clone, SERVE, (SERVES,), stop=True)
        answers = "elapsed, installed, to the line on the screen"
        yield Once("first run: until `make serve` answers", answers, serve.at[SERVES], OTHERS, None)


def _install(clone: Path) -> Ran:
    try:
        return _ran(clone, INSTALL)
    except FirstRunError as error:
        raise FirstRunError(f"no package registry, or it lacks a pinned package: {error}") from error


def _ran(clone: Path, targets: Sequence[str], awaited: Sequence[str] = (), *, stop: bool = False) -> Ran:
    """Run make. With ``stop`` it is interrupted, as by Ctrl-C, when the service answers requests."""
    began, before = time.monotonic(), spent()
    at: dict[str, float] = {}
    last = ""
    with subprocess.Popen(
        ["make", "--no-print-directory", *targets], cwd=clone, env=_environment(clone), text=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        try:
            for line in process.stdout:
                last = line.strip() or last
                at |= {part: time.monotonic() - began for part in awaited if part in line and part not in at}
                if stop and SERVES in line:
                    os.killpg(process.pid, signal.SIGINT)
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            raise
    if len(at) < len(awaited) or (process.returncode and not stop):
        raise FirstRunError(f"make {' '.join(targets)} ended with status {process.returncode}: {last}")
    return Ran(spent() - before, time.monotonic() - began, at)


def _environment(clone: Path) -> dict[str, str]:
    own = {name: value for name, value in os.environ.items() if not name.startswith(OWN)}
    return own | {"XDG_CACHE_HOME": str(clone.parent / "cache")}


def _megabytes(clone: Path) -> float:
    files = (path.lstat() for path in (clone / ".venv-demo").rglob("*"))
    return sum(512 * file.st_blocks for file in files) / 1e6
