"""The mathematics of reports is pure: it imports no AWS, no clock and no other capability, and its modules import few
of each other."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import kanon.reports

REPORTS = Path(kanon.reports.__file__).parent
EDGE = {"collecting", "settings"}
"""What a function meets first: bodies and its environment, checked with pydantic."""
MODULES = sorted(path.stem for path in REPORTS.glob("*.py") if path.stem not in {"__init__", *EDGE})

# What a module may import of the project, besides itself.
ARROWS = {
    "errors": set(),
    "threshold": set(),
    "noise": {"parameters"},
    "payload": set(),
    "hpke": set(),
    "keys": set(),
    "shared_info": {"errors"},
    "avro": {"errors"},
    "account": {"shared_info"},
    "histogram": {"errors"},
    "parameters": {"threshold"},
    "acceptance": {"account", "errors", "parameters", "shared_info"},
    "object_names": {"account"},
    "opening": {"acceptance", "avro", "errors", "hpke", "payload"},
    "mapping": {"acceptance", "account", "avro", "errors", "histogram", "opening", "payload"},
    "matching": set(),
    "reducing": {"histogram", "noise", "parameters"},
    "partitions": {"errors", "histogram"},
    "aggregate": {
        *("acceptance", "account", "avro", "errors", "histogram"),
        *("mapping", "matching", "noise", "parameters", "partitions", "reducing"),
    },
    "summary": {"aggregate", "avro", "created", "errors", "histogram", "reducing"},
    "created": set(),
    "guarantee": {"parameters"},
    "decoding": {"acceptance", "avro", "errors", "opening", "payload", "shared_info"},
}  # fmt: skip
OTHERS = {"noise", "errors", "strict_json"}
"""Rooms of the project that reports may use."""


def imported(module):
    """Modules of reports, and rooms of the project, that a module imports."""
    tree = ast.parse((REPORTS / f"{module}.py").read_text())
    names = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    names |= {
        f"{node.module}.{alias.name}"
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    parts = [name.split(".") for name in names if name.startswith("kanon.")]
    inside = {part[2] for part in parts if part[1] == "reports" and len(part) > 2}
    return inside & set(MODULES), {part[1] for part in parts} - {"reports"}


def test_every_module_has_its_arrows():
    assert sorted(ARROWS) == MODULES


@pytest.mark.parametrize("module", MODULES)
def test_a_module_imports_along_the_arrows(module):
    inside, rooms = imported(module)
    assert inside <= ARROWS[module]
    assert rooms <= OTHERS


def test_nothing_of_reports_loads_aws_or_reads_a_clock():
    program = "; ".join(
        [
            "import sys",
            *(f"import kanon.reports.{module}" for module in MODULES),
            "assert not {'boto3', 'botocore', 'aws_lambda_powertools', 'pydantic', 'matplotlib'} & set(sys.modules)",
        ]
    )
    subprocess.run([sys.executable, "-c", program], check=True)
    for module in MODULES:
        tree = ast.parse((REPORTS / f"{module}.py").read_text())
        names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
        assert not names & {"time", "random", "secrets"}, module
