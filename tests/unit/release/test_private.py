"""Only the noisy half reads exact numbers."""

import ast
from pathlib import Path

import pytest

import kanon

RELEASE = Path(kanon.__file__).parent / "release"
INSIDE = {"_pieces", "_bins", "_bounding", "_groups"}


def opened(source: str) -> set[str]:
    """The parts of a private table, or the function that reads it, that a module names."""
    tree = ast.parse(source)
    names = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    names |= {alias.name for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for alias in node.names}
    return names & INSIDE


@pytest.mark.slow
def test_only_publishing_opens_a_private_table() -> None:
    sources = [*RELEASE.rglob("*.py"), *(RELEASE.parent / "cli").glob("*.py")]
    assert [path.name for path in sources if opened(path.read_text())] == ["noising.py"]


def test_the_test_finds_a_module_that_opens_a_private_table() -> None:
    assert opened("print(table._pieces())") == {"_pieces"}
    assert opened("from kanon.release.noising import _groups") == {"_groups"}
