"""docs/guides/one-machine.md: its commands run as written."""

import re
from pathlib import Path

from tests.integration.serving.guides import free_port, run_blocks
from tests.paths import ROOT

GUIDE = (ROOT / "docs" / "guides" / "one-machine.md").read_text()
MOST_WORDS = 500


def test_the_blocks_run_as_written(tmp_path: Path) -> None:
    (block,) = re.findall(r"```sh\n(.*?)```", GUIDE, re.DOTALL)
    port = str(free_port())
    script = block.replace("8000", port).replace("kanon serve", f"kanon serve --port {port}") + "wait\necho status $?\n"
    ran = run_blocks(script, tmp_path, 120)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.startswith("healthy\n{}")
    assert '"kAnonymous":false' in ran.stdout
    assert "FAIL" not in ran.stdout
    assert ran.stdout.endswith("status 0\n")
    assert "No API key exists yet" in ran.stderr
    log = (tmp_path / "work" / "service.log").read_text().splitlines()
    assert ['"message":"started"' in log[0], '"message":"stopped"' in log[-1]] == [True, True]


def test_the_guide_is_short() -> None:
    assert len(GUIDE.split()) <= MOST_WORDS
