"""docs/guides/own-joins.md: its blocks run as written in an empty directory, from a Parquet file to hourly statuses."""

import csv
import re
from pathlib import Path

from tests.integration.serving.guides import run_blocks
from tests.paths import ROOT

GUIDE = (ROOT / "docs" / "guides" / "own-joins.md").read_text()
BLOCKS = re.findall(r"^```sh\n(.*?)^```", GUIDE, re.MULTILINE | re.DOTALL)
MOST_WORDS, SECONDS = 700, 300


def test_the_blocks_run_as_written_in_an_empty_directory(tmp_path: Path) -> None:
    ran, work = run_blocks("".join(BLOCKS), tmp_path, SECONDS), tmp_path / "work"
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
