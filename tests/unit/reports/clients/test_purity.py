"""The clients are pure: no AWS, no clock and no network."""

import ast
from pathlib import Path

import pytest

from kanon.reports import clients

MODULES = sorted(Path(clients.__file__).parent.glob("*.py"))


def imported(path):
    """The modules that a file imports, by their first name, and the names of ours in full."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        if isinstance(node, ast.ImportFrom):
            found.add(node.module)
    return found


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_a_client_needs_neither_aws_nor_a_clock_nor_a_network(path):
    names = imported(path)
    roots = {name.split(".")[0] for name in names}

    assert not roots & {"boto3", "botocore", "aws_lambda_powertools", "time", "random", "os"}
    assert not roots & {"urllib", "http", "socket", "requests"}
    ours = {name for name in names if name.startswith("kanon.")}
    assert all(name.startswith(("kanon.reports", "kanon.noise", "kanon.strict_json", "kanon.errors")) for name in ours)
