"""Imports follow the arrows of docs/architecture.md: functions -> a capability -> noise, dynamo, http, aws."""

import ast
import os
import subprocess
import sys
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import kanon

KANON = Path(kanon.__file__).parent
ROOT = KANON.parents[1]

ARROWS: dict[str, set[str]] = {
    # What a room, or a module of its own, may import of ours besides itself.
    "clock": set(),
    "errors": set(),
    "strict_json": set(),
    "aws": set(),
    "noise": set(),
    "settings": {"errors"},
    "snapshots": set(),
    "starting": {"clock", "errors"},
    "queues": {"dynamo", "errors"},
    "keys": {"noise", "errors"},
    "dynamo": {"clock", "errors"},
    "http": {"aws", "clock", "dynamo", "errors", "keys", "starting", "strict_json"},
    "gate": {"noise", "dynamo", "http", "keys", "settings", "errors", "strict_json"},
    "joinlog": set(),
    "risk": {"gate", "noise"},
    "release": {"noise", "dynamo", "aws"},
    "reports": {"noise", "dynamo", "http", "settings", "errors", "strict_json"},
    "client": set(),
    "plan": {"gate", "noise", "dynamo"},
    "cost": {"gate", "reports", "dynamo"},
    "simulate": {"gate", "noise", "dynamo", "keys", "joinlog", "plan", "cost"},
    "operate": {"gate", "reports", "noise", "dynamo", "keys", "clock", "errors"},
    "local": {"aws", "gate", "noise", "dynamo", "keys", "clock", "errors", "plan", "operate", "client", "joinlog"},
    "audit": {"gate", "noise", "keys", "client", "local", "plan"},
    "cli": {
        "__version__",
        *("gate", "noise", "dynamo", "http", "keys", "clock", "errors", "joinlog", "strict_json"),
        *("client", "plan", "simulate", "cost", "operate", "local", "audit", "risk", "release", "reports"),
    },
}
LAYER = {
    *("__init__", "aws", "clock", "dynamo", "errors", "gate", "http", "keys", "noise", "queues", "settings"),
    *("snapshots", "starting", "strict_json"),
}
"""The part of the package that the functions need: shared/Makefile lists the same names."""

GATE: dict[str, set[str]] = {
    # What a module of the gate, or a folder in it, may import of the gate besides itself.
    "mechanism": set(),
    "storage": {"mechanism", "slots"},
    "types": {"mechanism"},
    "settings": {"slots", "types"},
    "names": set(),
    "slots": {"mechanism"},
    "publishing": {"mechanism"},
    "schedule": {"mechanism", "publishing", "settings"},
    "generations": {"mechanism", "settings"},
    "fingerprints": {"storage", "mechanism", "generations", "settings", "slots", "types"},
    "joining": {"storage", "mechanism", "names", "types"},
    "stamps": {"storage"},
    "reading": {"storage", "mechanism", "slots", "types"},
    "evaluation": {"storage", "mechanism", "fingerprints", "reading", "schedule", "stamps", "types"},
    "querying": {"storage", "mechanism", "names", "publishing", "slots", "types"},
    "models": {"mechanism", "types"},
}


@cache
def _imports(path: Path) -> frozenset[str]:
    """The modules a file imports, wherever in it, but for type checkers only."""
    found: set[str] = set()

    def visit(node: ast.AST) -> None:
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            return
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name} imports relatively"
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
        for child in ast.iter_child_nodes(node):
            visit(child)

    visit(ast.parse(path.read_text()))
    return frozenset(found)


def _part(path: Path, below: Path = KANON) -> str:
    return path.relative_to(below).parts[0].removesuffix(".py")


SOURCES = sorted(path for path in KANON.rglob("*.py") if path != KANON / "__init__.py")
LAYER_SOURCES = [path for path in SOURCES if _part(path) in LAYER]
GATE_SOURCES = [path for path in LAYER_SOURCES if _part(path) == "gate" and path.name != "__init__.py"]


def _imported_parts(path: Path, package: str) -> set[str]:
    """The modules and folders of ``package`` that a file imports."""
    return {name.removeprefix(f"{package}.").split(".")[0] for name in _imports(path) if name.startswith(f"{package}.")}


def test_every_package_has_its_list_of_allowed_imports() -> None:
    assert {_part(path) for path in SOURCES} == set(ARROWS)
    assert {_part(path, KANON / "gate") for path in GATE_SOURCES} == set(GATE)


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(KANON)))
def test_a_module_imports_only_what_its_package_may_import(path: Path) -> None:
    assert _imported_parts(path, "kanon") <= ARROWS[_part(path)] | {_part(path)}
    assert not {name.split(".")[0] for name in _imports(path)} & {"functions", "infra", "tests", "join", "query"}


@pytest.mark.parametrize("path", GATE_SOURCES, ids=lambda path: str(path.relative_to(KANON)))
def test_a_module_of_the_gate_imports_only_what_it_may_import(path: Path) -> None:
    part = _part(path, KANON / "gate")
    assert _imported_parts(path, "kanon.gate") <= GATE[part] | {part}


@pytest.mark.parametrize("arrows", [ARROWS, GATE])
def test_the_allowed_imports_form_no_cycle(arrows: dict[str, set[str]]) -> None:
    assert set(TopologicalSorter(arrows).static_order()) >= set(arrows)  # raises a CycleError


def test_modules_of_one_package_import_each_other_without_a_cycle() -> None:
    graph = {}
    for path in SOURCES:
        module = ".".join(path.relative_to(KANON.parent).with_suffix("").parts)
        imported = {name if name in MODULES else name.rpartition(".")[0] for name in _imports(path)}
        graph[module] = (imported & MODULES) - {module}
    assert set(TopologicalSorter(graph).static_order()) >= MODULES - PACKAGES


MODULES = {".".join(path.relative_to(KANON.parent).with_suffix("").parts) for path in SOURCES}
PACKAGES = {module for module in MODULES if module.endswith("__init__")}


@pytest.mark.parametrize("path", [p for p in SOURCES if _part(p) == "noise" or "gate/mechanism" in str(p)], ids=str)
def test_noise_and_mechanism_are_pure(path: Path) -> None:
    outside = {name.split(".")[0] for name in _imports(path)}
    assert not outside & {"boto3", "botocore", "aws_lambda_powertools", "pydantic", "time", "os", "random", "secrets"}
    if path.stem not in ("columns", "vectorised", "exact_law"):
        assert "numpy" not in outside


def test_the_layer_contains_exactly_the_listed_packages() -> None:
    makefile = (ROOT / "shared" / "Makefile").read_text()
    listed = next(line for line in makefile.splitlines() if line.startswith("LAYER := ")).split()[2:]
    assert {name.removesuffix(".py") for name in listed} == LAYER | {"py.typed"}


def test_only_storage_knows_the_names_of_attributes() -> None:
    for path in LAYER_SOURCES:
        if "storage" not in path.parts and path.stem != "names":
            names = {n.value for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.Constant)}
            assert not names & {"set_token", "step_slot", "set_key", "crossings", "visible_from", "lease_until"}, path


def _environment(function: str) -> dict[str, str]:
    from tests.unit.gate.test_settings import EVALUATE, JOIN, QUERY

    settings = {"join": JOIN, "query": QUERY, "evaluate": EVALUATE}[function]
    paths = [ROOT / "shared", ROOT / "functions" / function]
    return {**settings, "PYTHONPATH": os.pathsep.join(map(str, paths)), "PATH": os.environ["PATH"]}


@cache
def _modules_of(function: str) -> frozenset[str]:
    """Everything that is imported when a function starts, in a process of its own."""
    text = "import app, sys; print('\\n'.join(sys.modules))"
    ran = subprocess.run(
        [sys.executable, "-c", text], env=_environment(function), capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    return frozenset(ran.stdout.split())


@pytest.mark.parametrize("function", ["join", "query"])
def test_join_and_query_start_without_numpy_and_without_the_mechanism_of_evaluation(function: str) -> None:
    modules = _modules_of(function)
    assert "kanon.http.edge" in modules
    assert not {"numpy", "kanon.gate.evaluation", "kanon.gate.mechanism.vectorised"} & modules


@pytest.mark.parametrize("function", ["join", "query", "evaluate"])
def test_no_function_imports_command_line_tools(function: str) -> None:
    modules = _modules_of(function)
    assert {name.split(".")[1] for name in modules if name.startswith("kanon.")} <= LAYER
    assert "kanon.gate.mechanism.exact_law" not in modules  # shared/Makefile leaves it out
    assert not {"typer", "rich", "matplotlib", "moto", "yaml", "infra"} & {name.split(".")[0] for name in modules}


@pytest.mark.parametrize("function", ["join", "query", "evaluate"])
def test_no_function_imports_the_transfer_manager_of_s3(function: str) -> None:
    modules = _modules_of(function)
    assert "botocore.session" in modules
    assert not {"boto3", "s3transfer"} & {name.split(".")[0] for name in modules}


def test_join_never_reads_statuses_and_query_never_reads_the_log_or_members() -> None:
    assert not {"kanon.gate.storage.statuses", "kanon.gate.storage.members", "kanon.gate.querying"} & _modules_of(
        "join"
    )
    assert not {"kanon.gate.storage.step_log", "kanon.gate.storage.members", "kanon.gate.joining"} & _modules_of(
        "query"
    )
