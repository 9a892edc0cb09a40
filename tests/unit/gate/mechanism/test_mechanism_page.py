"""docs/explanation/how-it-works.md: its program runs and prints what the page shows."""

import re

import pytest

from tests.paths import ROOT

TEXT = (ROOT / "docs" / "explanation" / "how-it-works.md").read_text()
PAGE = TEXT.partition("## The mechanism in your own program")[2]


def test_the_program_of_the_page_prints_what_it_shows(capsys: pytest.CaptureFixture[str]) -> None:
    program, shown = re.findall(r"```(?:python)?\n(.*?)```", PAGE, re.DOTALL)
    exec(compile(program, "docs/explanation/how-it-works.md", "exec"), {})
    assert capsys.readouterr().out == shown
