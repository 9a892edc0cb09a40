"""docs/guides/listed.md: its blocks run as written in an empty directory, from joins to a CSV file."""

import csv
import re
from pathlib import Path

from tests.integration.serving.guides import free_port, run_blocks
from tests.paths import ROOT

GUIDE = (ROOT / "docs" / "guides" / "listed.md").read_text()
BLOCKS = re.findall(r"^```sh\n(.*?)^```", GUIDE, re.MULTILINE | re.DOTALL)
MOST_WORDS, SECONDS = 880, 120


def test_the_blocks_run_as_written_in_an_empty_directory(tmp_path: Path) -> None:
    port = str(free_port())
    script = (
        "".join(BLOCKS).replace("127.0.0.1:8000", f"127.0.0.1:{port}").replace("serve --", f"serve --port {port} --")
    )
    script = script.replace("kanon listed terms --format", f"kanon listed terms --url http://127.0.0.1:{port} --format")
    script += "kanon listed terms --data data --since 2026-01-01 --format csv > after.csv\n"
    ran, work = run_blocks(script, tmp_path, SECONDS), tmp_path / "work"
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
