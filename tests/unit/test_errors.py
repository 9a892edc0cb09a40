"""Every error of the package is of one tree."""

import ast

import pytest

from tests.paths import ROOT

PACKAGE = ROOT / "shared" / "kanon"
PLAIN = {"Exception", "ValueError", "RuntimeError", "KeyError", "TypeError"}


def apart(text: str) -> set[str]:
    """The classes that are errors of Python, and not of this package too. A private one never leaves its module."""
    classes = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ClassDef)]
    own = {node.name: {ast.unparse(base) for base in node.bases} for node in classes if not node.name.startswith("_")}
    return {name for name, bases in own.items() if bases & PLAIN and not any("Error" in one for one in bases - PLAIN)}


@pytest.mark.slow
def test_every_error_has_the_same_base() -> None:
    texts = {path: path.read_text() for path in PACKAGE.rglob("*.py")}
    assert {name for text in texts.values() for name in apart(text)} == {"Error"}
    assert sum(text.count("(Error, ") for text in texts.values()) > 10


def test_an_error_of_another_base_is_found() -> None:
    assert apart("class OtherError(ValueError): ...") == {"OtherError"}
