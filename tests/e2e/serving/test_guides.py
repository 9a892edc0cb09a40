"""The guides of one machine: their blocks run as written in an empty directory, and they stay short."""

import csv
import re
from pathlib import Path

import pytest

from tests.integration.serving.guides import free_port, run_blocks
from tests.paths import ROOT

SECONDS = 300
MOST_WORDS = {"one-machine": 500, "listed": 880, "own-joins": 700}


def text_of(guide: str) -> str:
    return (ROOT / "docs" / "guides" / f"{guide}.md").read_text()


def blocks(guide: str, number: int) -> str:
    found = re.findall(r"^```sh\n(.*?)^```", text_of(guide), re.MULTILINE | re.DOTALL)
    assert len(found) == number
    return "".join(found)


def test_the_service_of_one_machine_runs(tmp_path: Path) -> None:
    port = str(free_port())
    script = blocks("one-machine", 1).replace("8000", port).replace("kanon serve", f"kanon serve --port {port}")
    ran = run_blocks(f"{script}wait\necho status $?\n", tmp_path, SECONDS)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.startswith("healthy\n{}")
    assert '"kAnonymous":false' in ran.stdout
    assert "FAIL" not in ran.stdout
    assert ran.stdout.endswith("status 0\n")
    assert "No API key exists yet" in ran.stderr
    log = (tmp_path / "work" / "service.log").read_text().splitlines()
    assert ['"message":"started"' in log[0], '"message":"stopped"' in log[-1]] == [True, True]


def test_joins_become_a_csv_file_of_listed_values(tmp_path: Path) -> None:
    port, script = str(free_port()), blocks("listed", 3)
    script = script.replace("127.0.0.1:8000", f"127.0.0.1:{port}").replace("serve --", f"serve --port {port} --")
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


def test_a_parquet_file_becomes_hourly_statuses(tmp_path: Path) -> None:
    ran, work = run_blocks(blocks("own-joins", 4), tmp_path, SECONDS), tmp_path / "work"
    assert ran.returncode == 0, ran.stderr
    assert re.search(r"turned true \d\d+ times", ran.stdout)
    with (work / "statuses.csv").open() as table:
        rows = list(csv.DictReader(table))
    assert len(rows) > 10
    assert {(row["type"], row["status"]) for row in rows} == {("searches", "true")}
    assert "search 1" in {row["value"] for row in rows}
    assert (work / "backup" / "control.db").is_file()
    assert re.search(r"Tokens that were found and replaced: [0-2]\.", ran.stdout)


@pytest.mark.parametrize("guide", MOST_WORDS)
def test_a_guide_is_short(guide: str) -> None:
    assert len(text_of(guide).split()) <= MOST_WORDS[guide]
