"""docs/guides/one-machine.md: its commands run as written."""

import os
import re
import socket
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from tests.paths import ROOT

GUIDE = (ROOT / "docs" / "guides" / "one-machine.md").read_text()
MOST_WORDS = 500


@pytest.fixture
def kanon(tmp_path: Path) -> Path:
    """A folder with the program `kanon` of this checkout."""
    program = tmp_path / "bin" / "kanon"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m kanon.cli.start "$@"\n')
    program.chmod(0o755)
    return program.parent


def free_port() -> int:
    with closing(socket.socket()) as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def test_the_blocks_run_as_written(kanon: Path, tmp_path: Path) -> None:
    (block,) = re.findall(r"```sh\n(.*?)```", GUIDE, re.DOTALL)
    port = str(free_port())
    script = block.replace("8000", port).replace("kanon serve", f"kanon serve --port {port}") + "wait\necho status $?\n"
    python_path = os.pathsep.join([str(ROOT / "shared"), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PATH": f"{kanon}:{os.environ['PATH']}", "PYTHONPATH": python_path}
    ran = subprocess.run(
        ["bash", "-e"],
        input=script,
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.startswith("healthy\n{}")
    assert '"kAnonymous":false' in ran.stdout
    assert "FAIL" not in ran.stdout
    assert ran.stdout.endswith("status 0\n")
    assert "No API key exists yet" in ran.stderr
    log = (tmp_path / "service.log").read_text().splitlines()
    assert ['"message":"started"' in log[0], '"message":"stopped"' in log[-1]] == [True, True]


def test_the_guide_is_short() -> None:
    assert len(GUIDE.split()) <= MOST_WORDS
