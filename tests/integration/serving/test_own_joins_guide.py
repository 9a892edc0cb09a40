"""docs/guides/own-joins.md: its blocks run as written in an empty directory, from a Parquet file to hourly statuses."""

import csv
import os
import re
import subprocess
import sys
from pathlib import Path

from tests.paths import ROOT

GUIDE = (ROOT / "docs" / "guides" / "own-joins.md").read_text()
BLOCKS = re.findall(r"^```sh\n(.*?)^```", GUIDE, re.MULTILINE | re.DOTALL)
MOST_WORDS, SECONDS = 700, 300


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
    ran = subprocess.run(
        ["bash", "-e"],
        input="".join(BLOCKS),
        env=environment,
        cwd=work,
        capture_output=True,
        text=True,
        check=False,
        timeout=SECONDS,
    )
    assert ran.returncode == 0, ran.stderr
    assert re.search(r"turned true \d\d+ times", ran.stdout)
    with (work / "statuses.csv").open() as table:
        rows = list(csv.DictReader(table))
    assert len(rows) > 10
    assert {(row["type"], row["status"]) for row in rows} == {("searches", "true")}
    assert "search 1" in {row["value"] for row in rows}
    assert (work / "backup" / "control.db").is_file()
    assert re.search(r"Tokens that were found and replaced: [0-2]\.", ran.stdout)


def test_the_guide_is_short_and_begins_with_the_reader() -> None:
    assert len(BLOCKS) == 4
    assert len(GUIDE.split()) <= MOST_WORDS
