"""The mathematics of reports is pure: it imports no AWS and no clock. `make lint` checks what its modules import.

A reader who follows one report opens few modules.
"""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import kanon.reports
from tests.unit.reports import made

REPORTS = Path(kanon.reports.__file__).parent
EDGE = {"collect_routes", "collecting", "settings"}
"""What a function meets first: routes, bodies and its environment, checked with pydantic."""
JOBS = {"aggregate"}
"""Local jobs. They run the stages of the service, whose messages are checked with pydantic."""
MODULES = sorted(path.stem for path in REPORTS.glob("*.py") if path.stem not in {"__init__", *EDGE})


@pytest.mark.slow
def test_nothing_of_reports_loads_aws_or_reads_a_clock():
    program = "; ".join(
        [
            "import sys",
            *(f"import kanon.reports.{module}" for module in MODULES if module not in JOBS),
            "assert 'pydantic' not in sys.modules",
            *(f"import kanon.reports.{module}" for module in JOBS),
            "assert not {'boto3', 'botocore', 'aws_lambda_powertools', 'matplotlib'} & set(sys.modules)",
        ]
    )
    subprocess.run([sys.executable, "-c", program], check=True)
    for module in MODULES:
        tree = ast.parse((REPORTS / f"{module}.py").read_text())
        names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
        assert not names & {"time", "random", "secrets"}, module


@pytest.mark.parametrize("domain", [None, (1, 2)], ids=["discover", "declared"])
def test_one_report_passes_at_most_15_modules(tmp_path, domain):
    passed, before = set(), sys.getprofile()

    def note(frame, event, _):
        if event == "call":
            passed.add(Path(frame.f_code.co_filename))

    sys.setprofile(note)
    try:
        outcome = made.run(tmp_path, [made.report([(1, 5)])], domain=domain)
    finally:
        sys.setprofile(before)
    assert outcome.accepted == 1
    assert 10 < len({path.relative_to(REPORTS) for path in passed if path.is_relative_to(REPORTS)}) <= 15
