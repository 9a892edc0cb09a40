"""docs/guides/release.md: its commands run in their order and print the shown output."""

import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kanon.cli.main import app
from tests.paths import REAL_LOG, ROOT

GUIDE = (ROOT / "docs" / "guides" / "release.md").read_text()
COMMANDS = [
    line.removeprefix("kanon ")
    for block in re.findall(r"```\n(.*?)```", GUIDE, re.DOTALL)
    for line in block.splitlines()
]
STATED = [" ".join(text.split()) for text in re.findall(r"^> (.+)$", GUIDE, re.MULTILINE)]


@pytest.mark.skipif(not REAL_LOG.exists(), reason="the real join log is not beside the checkout")
def test_the_commands_of_the_guide_print_what_it_states(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    printed = []
    for command in COMMANDS:
        arguments = [str(REAL_LOG) if part == "joins.csv.gz" else part for part in shlex.split(command)]
        result = CliRunner(env={"COLUMNS": "200"}).invoke(app, arguments)
        assert result.exit_code == 0, result.output
        printed += result.stdout.splitlines()
    assert len(COMMANDS) == 5
    assert len(STATED) == 4
    for text in STATED:
        assert text in printed, text
    assert {path.name for path in tmp_path.iterdir()} == {
        "kanon-ledger",
        "released.csv",
        "released.json",
        "released.png",
    }
