"""The build of reports: small functions that find their imports, and two layers without conflicts."""

import ast
import shutil
from pathlib import Path

import pytest

from tests.build.test_build import MEGABYTE, REPORTS, answered, size
from tests.unit.reports.test_settings import AGGREGATE, COLLECT, DECRYPT, JOBS, ROTATE

pytestmark = pytest.mark.build

MOST = 250 * MEGABYTE
"""What Lambda unpacks for one function and its layers."""
HEAVY = {"numpy", "fastavro", "cryptography"}
LOADED: dict[str, set[str]] = {
    "Collect": set(),
    "Store": {"fastavro"},
    "Jobs": set(),
    "Decrypt": HEAVY,
    "Aggregate": HEAVY,
    "Rotate": set(),
}
"""The heavy libraries that a function loads when it starts: none, if it answers requests."""


def layers(build: Path) -> tuple[Path, Path]:
    return build / "Shared" / "python", build / "ReportsStack" / "ReportsLayer" / "python"


def unpacked(build: Path, directory: Path) -> Path:
    """One directory with both layers, as Lambda unpacks them."""
    for layer in layers(build):
        shutil.copytree(layer, directory, dirs_exist_ok=True)
    return directory


def test_functions_of_reports_fit_into_lambda(build: Path) -> None:
    both = sum(map(size, layers(build)))
    sizes = {name: both + size(build / "ReportsStack" / name) for name in REPORTS}
    print({name: f"{bytes_ / MEGABYTE:.1f} MB" for name, bytes_ in sizes.items()})
    assert max(sizes.values()) < MOST
    assert sizes["Collect"] < 15 * MEGABYTE
    assert size(layers(build)[1]) < MEGABYTE


def test_the_layer_of_reports_holds_only_their_modules(build: Path) -> None:
    shared, reports = layers(build)
    assert [path.name for path in reports.iterdir()] == ["kanon"]
    assert {path.name for path in (reports / "kanon").iterdir()} == {"gate", "reports"}
    read_lists = {str(path.relative_to(reports / "kanon")) for path in (reports / "kanon" / "gate").rglob("*.py")}
    assert read_lists == {"gate/lists.py", "gate/ranges.py", "gate/storage/aws/lists.py"}
    names = {path.name for path in (reports / "kanon" / "reports").rglob("*")}
    of_machines = {"aggregate.py", "processes.py", "disk.py", "one_machine.py"}
    assert not names & {"clients", *of_machines}
    assert not (shared / "kanon" / "reports").exists()


def test_both_layers_hold_every_module_that_they_import(build: Path, tmp_path: Path) -> None:
    root = unpacked(build, tmp_path / "opt")
    missing = {
        f"{path.relative_to(root)}: {module}"
        for folder in ("gate", "reports")
        for path in (root / "kanon" / folder).rglob("*.py")
        for module in imported(path)
        if not (root / module.replace(".", "/")).with_suffix(".py").exists()
        and not (root / module.replace(".", "/") / "__init__.py").exists()
    }
    assert missing == set()


def imported(path: Path) -> set[str]:
    """The modules of kanon that a file imports, also late."""
    return {
        node.module
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("kanon.")
    }


@pytest.mark.parametrize("function", REPORTS)
def test_a_function_of_reports_starts_without_the_checkout(
    function: str, host_build: Path, runtime_boto3: Path, tmp_path: Path
) -> None:
    environment = {
        "PATH": "/usr/bin:/bin",
        "AWS_LAMBDA_FUNCTION_NAME": function,
        "AWS_LAMBDA_FUNCTION_MEMORY_SIZE": "512",
        "AWS_REGION": "us-east-1",
        "AWS_DEFAULT_REGION": "us-east-1",
        "POWERTOOLS_SERVICE_NAME": function.lower(),
        "POWERTOOLS_METRICS_NAMESPACE": "kanon",
        **COLLECT,
        **JOBS,
        **DECRYPT,
        **AGGREGATE,
        **ROTATE,  # each reads its own
    }
    opt = unpacked(host_build, tmp_path / "opt")
    started = answered([host_build / "ReportsStack" / function, opt, runtime_boto3], environment, [])
    loaded = {module.partition(".")[0] for module in started["files"]}
    assert {"kanon", "aws_lambda_powertools"} <= loaded
    assert loaded & HEAVY == LOADED[function]
