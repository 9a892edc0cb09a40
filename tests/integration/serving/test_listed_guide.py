"""docs/guides/listed.md: its blocks run as written in an empty directory, from joins to a CSV file."""

import csv
import os
import re
import socket
import subprocess
import sys
from contextlib import closing
from pathlib import Path

from tests.paths import ROOT

GUIDE = (ROOT / "docs" / "guides" / "listed.md").read_text()
BLOCKS = re.findall(r"^```sh\n(.*?)^```", GUIDE, re.MULTILINE | re.DOTALL)
MOST_WORDS, SECONDS = 850, 120


def free_port() -> int:
    with closing(socket.socket()) as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def test_the_blocks_run_as_written_in_an_empty_directory(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    for name, words in (("kanon", "-m kanon.cli.start "), ("python3", "")):
        program = tmp_path / "bin" / name
        program.write_text(f'#!/bin/sh\nexec "{sys.executable}" {words}"$@"\n')
        program.chmod(0o755)
    (work := tmp_path / "work").mkdir()
    environment = {
        **os.environ,
        "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join([str(ROOT / "shared"), os.environ.get("PYTHONPATH", "")]),
    }
    port = str(free_port())
    script = (
        "".join(BLOCKS).replace("127.0.0.1:8000", f"127.0.0.1:{port}").replace("serve --", f"serve --port {port} --")
    )
    script = script.replace("kanon listed terms --format", f"kanon listed terms --url http://127.0.0.1:{port} --format")
    script += "kanon listed terms --data data --since 2026-01-01 --format csv > after.csv\n"
    ran = subprocess.run(
        ["bash", "-e"],
        input=script,
        env=environment,
        cwd=work,
        capture_output=True,
        text=True,
        check=False,
        timeout=SECONDS,
    )
    assert ran.returncode == 0, ran.stderr
    with (work / "terms.csv").open(newline="") as table:
        assert [row["value"] for row in csv.DictReader(table)] == ["'=HYPERLINK(1)", "how to sue my boss", "shoes"]
    with (work / "after.csv").open(newline="") as table:
        assert [row["value"] for row in csv.DictReader(table)] == ["'=HYPERLINK(1)", "shoes"]
    assert "my own name" not in ran.stdout
    assert re.search(r"│ how to sue my boss +│ +\d+ +│ +\d+ +│", ran.stdout)  # of DuckDB
    assert "shoes" not in (work / "service.log").read_text()


def test_the_guide_is_short() -> None:
    assert len(BLOCKS) == 3
    assert len(GUIDE.split()) <= MOST_WORDS
