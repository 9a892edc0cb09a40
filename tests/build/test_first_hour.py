"""The commands of README and docs/start.md, run in order in a directory that holds the files of the project alone.

`make` installs what they need, so this test needs a package registry. Only the deployment is left out: it needs an
account.
"""

import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.paths import ROOT

pytestmark = pytest.mark.build
SECONDS = 600
SERVE, MARK = "make serve", "---next---"
START = (ROOT / "docs" / "start.md").read_text()
BLOCKS = re.findall(r"^```sh\n(.*?)^```\n(?:```text\n(.*?)^```\n)?", START, re.MULTILINE | re.DOTALL)
"""The blocks of the start page, each with the output that it promises."""
README = re.findall(r"^```sh\n(.*?)^```\n", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)


def outside() -> dict[str, str]:
    """The shell's variables without those of the `make` that runs the tests."""
    return {name: value for name, value in os.environ.items() if name not in ("ARGS", "MAKEFLAGS", "MFLAGS")}


def shows(output: str, promised: str) -> bool:
    """Whether every line of the page is a line of the output, in this order. ``...`` stands for any text."""
    lines = iter(output.splitlines())
    patterns = [re.compile(".*".join(map(re.escape, line.split("...")))) for line in promised.splitlines()]
    return all(any(pattern.fullmatch(line) for line in lines) for pattern in patterns)


def copied(folder: Path) -> Path:
    """A new directory with the files of the project, without what was installed or built."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, listed.split("\0")):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, folder / name)
    return folder


@contextmanager
def serving(folder: Path) -> Iterator[str]:
    """The address of `make serve`, on a free port, until the block ends as by Ctrl-C."""
    command = [*SERVE.split(), "ARGS=--port 0"]
    made = subprocess.Popen(
        command, cwd=folder, env=outside(), stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        assert made.stdout is not None
        printed = ""
        while not (found := re.search(r"http://127\.0\.0\.1:\d+", printed)):
            line = made.stdout.readline()
            assert line, printed
            printed += line
        yield found[0]
    finally:
        subprocess.run(["pkill", "-INT", "--session", str(made.pid)], check=False)
        try:
            made.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            made.send_signal(signal.SIGKILL)


def run(script: str, folder: Path) -> str:
    made = subprocess.run(
        ["bash", "-euc", script], cwd=folder, env={**outside(), "COLUMNS": "120"}, capture_output=True, text=True,
        timeout=SECONDS, check=False,
    )  # fmt: skip
    assert made.returncode == 0, made.stdout + made.stderr
    return made.stdout


def test_the_commands_of_the_first_two_pages_run_in_order_in_an_empty_directory(tmp_path: Path) -> None:
    folder = copied(tmp_path)
    demo, serve = README[0].splitlines()
    assert (serve.partition("#")[0].strip(), BLOCKS[0][0].strip()) == (SERVE, SERVE)
    run(demo, folder)
    assert (folder / "build" / "demo.svg").stat().st_size > 10_000
    with serving(folder) as address:
        commands = "".join(f"{command}\necho\necho {MARK}\n" for command, _ in BLOCKS[1:])
        outputs = run(commands.replace("http://127.0.0.1:8000", address), folder).split(MARK)[:-1]
    for (command, promised), output in zip(BLOCKS[1:], outputs, strict=True):
        assert shows(output, promised), f"{command}{output}"
    assert sum(bool(promised) for _, promised in BLOCKS) == START.count("```text") > 4
    assert "sam deploy" in README[1], "the only block of README that is not run here"
    assert len(README) == 2


def test_an_output_that_differs_from_the_page_is_found() -> None:
    assert shows('{"a":false,"step":7}\nmore\n', '{"a":false,"step":...}\n')
    assert not shows('{"a":true,"step":7}\n', '{"a":false,"step":...}\n')
    assert not shows("one\ntwo\n", "two\none\n")
