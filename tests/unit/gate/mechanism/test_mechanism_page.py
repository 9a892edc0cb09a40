"""examples/mechanism: the program of docs/explanation/how-it-works.md prints what it says."""

import ast

import pytest

from tests.paths import ROOT

PROGRAM = ROOT / "examples" / "mechanism" / "mechanism.py"


def test_the_program_prints_what_it_says(capsys: pytest.CaptureFixture[str]) -> None:
    text = PROGRAM.read_text()
    said = (ast.get_docstring(ast.parse(text)) or "").partition("It prints: ")[2]
    exec(compile(text, str(PROGRAM), "exec"), {})
    assert capsys.readouterr().out == f"{said}\n"
