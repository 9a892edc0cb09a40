"""docs/guides/risk.md: its commands run and print the stated figures."""

import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kanon.cli.main import app
from tests.paths import REAL_LOG, ROOT

GUIDE = (ROOT / "docs" / "guides" / "risk.md").read_text()
COMMANDS = [
    line.removeprefix("kanon ")
    for block in re.findall(r"```\n(.*?)```", GUIDE, re.DOTALL)
    for line in block.splitlines()
]
WORDS = " ".join(GUIDE.replace("\n> ", " ").replace("\n>", " ").split())


def run(command: str, log: Path) -> str:
    arguments = [str(log) if part == "joins.csv.gz" else part for part in shlex.split(command)]
    result = CliRunner(env={"COLUMNS": "200", "NO_COLOR": "1"}).invoke(app, arguments)
    assert result.exit_code == 0, result.output
    return " ".join(result.stdout.replace("│", "|").split())


def command(start: str) -> str:
    (found,) = (one for one in COMMANDS if one.startswith(start))
    return found


def stated(printed: str, *texts: str) -> None:
    for text in texts:
        assert text in printed, text
        assert text in WORDS, text


@pytest.mark.skipif(not REAL_LOG.exists(), reason="the real join log is not beside the checkout")
def test_the_guide_shows_the_output_of_its_report() -> None:
    stated(
        run(command("risk uniqueness joins.csv.gz"), REAL_LOG),
        "(set): 22.7% of 11,454 values have one user, 95.5% have at most 10.",
        "(set, day) is dangerous: 78.0% of 120,590 values have one user, 98.7% have at most 10.",
        "(set, client) holds the user column: it is an identifier, each of its 77,622 values has one user by",
        "(set): k = 5 loses 10.5% of rows (82.3% of values); k = 10 loses 17.1% of rows (95.0% of values); k = 50 loses"
        " 27.1% of rows (98.9% of values).",
        "(set) through the service: k = 50 loses 26.5% of rows (98.8% of values).",
        "265,690",
    )


@pytest.mark.skipif(not REAL_LOG.exists(), reason="the real join log is not beside the checkout")
def test_the_guide_shows_the_output_of_the_attack() -> None:
    printed = run(command("risk sketch-leak"), REAL_LOG)
    stated(printed, "72 of 72 | 8 of 6,602", "0.00146")


def test_the_guide_shows_the_privacy_of_a_threshold_without_noise(tmp_path: Path) -> None:
    printed = run(command("risk no-noise"), tmp_path)
    stated(printed, "1.85e-19", "7.18e-06", "0.0886", "2.56e-07", "0.273")


def test_the_guides_commands_for_two_logs_run_in_their_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.csv").write_text("email_hash,user\nx,1\ny,2\nz,3\n")
    Path("b.csv").write_text("contact,account\nx,7\ny,8\n")
    sketching = [one for one in COMMANDS if ".csv " in one]
    assert len(sketching) == 2
    for one in sketching:
        run(one, REAL_LOG)
    assert "Joinable: rows can be linked" in run(command("risk join a.khll"), REAL_LOG)
    for day in ("monday", "tuesday"):
        Path(f"{day}.khll").write_bytes(Path("a.khll").read_bytes())
    run(command("risk merge"), REAL_LOG)
    assert Path("week.khll").exists()
