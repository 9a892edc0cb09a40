"""The commands of docs/start.md, run unchanged: every block of `sh`, and the output shown below it."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.test_cli import serving
from tests.paths import ROOT

PAGE = (ROOT / "docs" / "start.md").read_text()
BLOCKS = re.findall(r"^```sh\n(.*?)^```\n(?:```text\n(.*?)^```\n)?", PAGE, re.MULTILINE | re.DOTALL)
SERVE, DEMO = "make serve", "make demo LOG=joins.csv"
MARK = "---next---"
KANON = f"{shlex.quote(sys.executable)} -m kanon.cli.start"


def script(address: str) -> str:
    """The blocks of the page as one script, which prints a mark after each."""
    commands = "".join(f"{command.replace(DEMO, demo())}\necho\necho {MARK}\n" for command, _ in BLOCKS[1:])
    assert commands.count("http://127.0.0.1:8000") == 1
    return commands.replace("http://127.0.0.1:8000", address)


def outside() -> dict[str, str]:
    """The shell's variables without those of the `make` that runs the tests."""
    return {name: value for name, value in os.environ.items() if name not in ("ARGS", "MAKEFLAGS", "MFLAGS")}


def demo() -> str:
    """The command of `make` for the demo of the page."""
    asked = ["make", "--dry-run", *DEMO.split()[1:]]
    made = subprocess.run(asked, capture_output=True, text=True, check=True, cwd=ROOT, env=outside()).stdout
    (command,) = [line for line in made.splitlines() if "/kanon demo" in line]
    return re.sub(r"^\S*/kanon", lambda _: KANON, command)


def shows(output: str, promised: str) -> bool:
    """Whether every line of the page is a line of the output, in this order. ``...`` stands for any text."""
    lines = iter(output.splitlines())
    patterns = [re.compile(".*".join(map(re.escape, line.split("...")))) for line in promised.splitlines()]
    return all(any(pattern.fullmatch(line) for line in lines) for pattern in patterns)


@pytest.mark.skipif(not all(map(shutil.which, ("bash", "curl", "make"))), reason="needs bash, curl and make")
def test_every_command_of_the_start_page_prints_what_the_page_shows(tmp_path: Path) -> None:
    assert BLOCKS[0][0].strip() == SERVE
    with serving() as address:
        environment = {**outside(), "no_proxy": "127.0.0.1", "COLUMNS": "120"}
        ran = subprocess.run(
            ["bash", "-euc", script(address)],
            capture_output=True, text=True, timeout=600, check=False, env=environment, cwd=tmp_path,
        )  # fmt: skip
    assert ran.returncode == 0, ran.stdout + ran.stderr
    outputs = ran.stdout.split(MARK)[:-1]
    assert len(outputs) == len(BLOCKS) - 1
    for (command, promised), output in zip(BLOCKS[1:], outputs, strict=True):
        assert shows(output, promised), f"{command}{output}"
    assert sum(bool(promised) for _, promised in BLOCKS) == PAGE.count("```text") == 5


def test_the_test_finds_an_output_that_differs_from_the_page() -> None:
    assert shows('{"a":false,"step":7}\nmore\n', '{"a":false,"step":...}\n')
    assert not shows('{"a":true,"step":7}\n', '{"a":false,"step":...}\n')
    assert not shows("one\ntwo\n", "two\none\n")
