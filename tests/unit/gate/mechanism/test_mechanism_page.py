"""docs/explanation/mechanism.md: its program runs and prints what the page shows."""

import re

import pytest

from tests.paths import ROOT

PAGE = (ROOT / "docs" / "explanation" / "mechanism.md").read_text()


def test_the_program_of_the_page_prints_what_it_shows(capsys: pytest.CaptureFixture[str]) -> None:
    program, shown = re.findall(r"```(?:python)?\n(.*?)```", PAGE, re.DOTALL)
    exec(compile(program, "docs/explanation/mechanism.md", "exec"), {})
    assert capsys.readouterr().out == shown
