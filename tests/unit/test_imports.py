"""Imports follow the arrows of docs/architecture.md: functions -> a capability -> noise, dynamo, http, aws."""

import ast
import os
import subprocess
import sys
from collections import defaultdict
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import kanon

KANON = Path(kanon.__file__).parent
ROOT = KANON.parents[1]

ARROWS: dict[str, set[str]] = {
    # What a room, or a module of its own, imports of ours besides itself.
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
    "risk": {"gate", "joinlog", "noise"},
    "release": {"__version__", "joinlog", "noise", "dynamo", "aws"},
    "reports": {"noise", "dynamo", "http", "settings", "errors", "strict_json"},
    "client": set(),
    "plan": {"gate", "noise", "dynamo"},
    "cost": {"gate", "reports", "dynamo"},
    "simulate": {"gate", "noise", "dynamo", "keys", "joinlog", "plan", "cost"},
    "operate": {"gate", "reports", "noise", "dynamo", "keys", "errors"},
    "local": {"aws", "gate", "dynamo", "clock", "plan", "operate", "client", "joinlog"},
    "audit": {"gate", "noise", "keys", "client", "local", "plan"},
    "cli": {
        "__version__",
        *("gate", "noise", "http", "keys", "clock", "errors", "joinlog", "strict_json"),
        *("client", "plan", "simulate", "cost", "operate", "local", "audit", "risk", "release", "reports"),
    },
}
LAYER = {
    *("__init__", "aws", "clock", "dynamo", "errors", "gate", "http", "keys", "noise", "queues", "settings"),
    *("snapshots", "starting", "strict_json"),
}
"""The part of the package that the functions need: shared/Makefile lists the same names."""

GATE: dict[str, set[str]] = {
    # What a module of the gate, or a folder in it, imports of the gate besides itself.
    "mechanism": set(),
    "storage": {"mechanism", "slots"},
    "types": {"mechanism"},
    "settings": {"slots", "types"},
    "names": set(),
    "slots": {"mechanism"},
    "publishing": {"mechanism"},
    "schedule": {"mechanism", "publishing", "settings"},
    "generations": {"mechanism", "settings"},
    "fingerprints": {"storage", "generations", "settings", "slots", "types"},
    "joining": {"storage", "mechanism", "names", "types"},
    "stamps": {"storage"},
    "reading": {"storage", "mechanism", "slots", "types"},
    "evaluation": {"storage", "mechanism", "fingerprints", "reading", "schedule", "stamps", "types"},
    "querying": {"storage", "mechanism", "names", "publishing", "slots", "types"},
    "models": {"mechanism", "types"},
    "paths": {"types"},
}

FUNCTIONS: dict[str, set[str]] = {
    # The rooms that a function imports.
    "join": {"gate", "http", "keys", "aws", "errors", "clock", "snapshots", "starting"},
    "query": {"gate", "http", "keys", "aws", "errors", "clock", "snapshots", "starting"},
    "evaluate": {"gate", "queues", "dynamo", "keys", "aws", "clock", "errors", "starting"},
    "reports/collect": {"reports", "http", "aws", "errors", "clock", "snapshots", "starting"},
    "reports/store": {"reports", "aws", "clock", "errors", "starting"},
    "reports/jobs": {"reports", "http", "queues", "aws", "errors", "clock", "snapshots", "starting"},
    "reports/decrypt": {"reports", "queues", "aws", "errors", "clock", "starting"},
    "reports/aggregate": {"reports", "queues", "keys", "aws", "errors", "clock", "starting"},
    "reports/rotate": {"reports", "aws", "errors", "clock", "starting"},
}

INFRA: dict[str, set[str]] = {
    # The rooms that a module or a folder of infra imports.
    "distribution": {"__version__"},
    "measure": {
        *("gate", "reports", "release", "noise", "dynamo", "keys", "aws", "clock"),
        *("client", "cost", "joinlog", "local", "simulate"),
    },
    "openapi": set(),
    "reference": {"cli"},
    "smoke": {"client", "clock"},
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


def _sources(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*.py") if path != folder / "__init__.py")


SOURCES = _sources(KANON)
LAYER_SOURCES = [path for path in SOURCES if _part(path) in LAYER]
GATE_SOURCES = _sources(KANON / "gate")
FUNCTION_SOURCES = _sources(ROOT / "functions")
INFRA_SOURCES = _sources(ROOT / "infra")


def _imported_parts(path: Path, package: str) -> set[str]:
    """The modules and folders of ``package`` that a file imports."""
    return {name.removeprefix(f"{package}.").split(".")[0] for name in _imports(path) if name.startswith(f"{package}.")}


def _arrows_of_kanon() -> dict[str, set[str]]:
    """The rooms that each room imports."""
    found: dict[str, set[str]] = defaultdict(set)
    for path in SOURCES:
        found[_part(path)] |= _imported_parts(path, "kanon") - {_part(path)}
    return found


def _arrows_of_the_gate() -> dict[str, set[str]]:
    """The parts of the gate that each part of the gate imports."""
    found: dict[str, set[str]] = defaultdict(set)
    for path in GATE_SOURCES:
        part = _part(path, KANON / "gate")
        found[part] |= _imported_parts(path, "kanon.gate") - {part}
    return found


def _arrows_of_functions() -> dict[str, set[str]]:
    """The rooms that each function imports."""
    found: dict[str, set[str]] = defaultdict(set)
    for path in FUNCTION_SOURCES:
        found[str(path.parent.relative_to(ROOT / "functions"))] |= _imported_parts(path, "kanon")
    return found


def _arrows_of_infra() -> dict[str, set[str]]:
    """The rooms that each part of infra imports."""
    found: dict[str, set[str]] = defaultdict(set)
    for path in INFRA_SOURCES:
        found[_part(path, ROOT / "infra")] |= _imported_parts(path, "kanon")
    return found


@pytest.mark.parametrize(
    ("found", "allowed"),
    [
        (_arrows_of_kanon(), ARROWS),
        (_arrows_of_the_gate(), GATE),
        (_arrows_of_functions(), FUNCTIONS),
        (_arrows_of_infra(), INFRA),
    ],
    ids=["kanon", "gate", "functions", "infra"],
)
def test_every_part_imports_exactly_what_is_listed(found: dict[str, set[str]], allowed: dict[str, set[str]]) -> None:
    """An import that is not listed is a new arrow. A listed one that nothing uses is to be removed from the list."""
    missing = {part: arrows for part in found if (arrows := found[part] - allowed.get(part, set()))}
    unused = {part: arrows for part in allowed if (arrows := allowed[part] - found.get(part, set()))}
    assert (missing, unused) == ({}, {})
    assert found.keys() == allowed.keys()


@pytest.mark.parametrize(
    ("sources", "forbidden"),
    [
        (SOURCES, {"functions", "infra", "tests", "app"}),
        (FUNCTION_SOURCES, {"functions", "infra", "tests", "app"}),
        (INFRA_SOURCES, {"tests"}),
    ],
    ids=["kanon", "functions", "infra"],
)
def test_product_code_imports_no_tests_and_the_package_imports_no_function(
    sources: list[Path], forbidden: set[str]
) -> None:
    assert sources
    found = {path: {name.split(".")[0] for name in _imports(path)} & forbidden for path in sources}
    assert {path: names for path, names in found.items() if names} == {}


LEFT_OUT = {"__version__", "clock", "errors", "aws", "strict_json", "snapshots", "starting"}
"""Modules that import no room; the picture of docs/architecture.md does not show them."""


def _reachable(arrows: dict[str, set[str]]) -> dict[str, set[str]]:
    """Everything that each part imports, directly or through others."""
    found: dict[str, set[str]] = {}
    for part in TopologicalSorter(arrows).static_order():
        direct = arrows.get(part, set())
        found[part] = direct.union(*(found[one] for one in direct))
    return found


def _drawn() -> dict[str, set[str]]:
    """The arrows of the picture."""
    text = (ROOT / "docs" / "architecture.md").read_text()
    picture = text.partition("```mermaid\nflowchart TD\n")[2].partition("```")[0]
    found: dict[str, set[str]] = defaultdict(set)
    for line in picture.splitlines():
        sources, _, targets = line.partition("-->")
        for source in sources.split("&"):
            found[source.strip()] |= {target.strip() for target in targets.split("&")}
    return found


def test_the_picture_shows_every_arrow_directly_or_as_a_path() -> None:
    arrows = {part: used - LEFT_OUT for part, used in ARROWS.items() if part not in LEFT_OUT}
    arrows["functions"] = set().union(*FUNCTIONS.values()) - LEFT_OUT
    assert all(ARROWS[part] <= LEFT_OUT for part in LEFT_OUT - {"__version__"})
    drawn = _drawn()
    untrue = {part: more for part in drawn if (more := drawn[part] - arrows[part])}
    assert untrue == {}
    assert _reachable(drawn) == _reachable(arrows)


@pytest.mark.parametrize("arrows", [ARROWS, GATE], ids=["kanon", "gate"])
def test_the_listed_imports_form_no_cycle(arrows: dict[str, set[str]]) -> None:
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
    attributes = {"set_token", "step_slot", "set_key", "crossings", "visible_from", "lease_until"}
    known = set()
    for path in LAYER_SOURCES:
        names = {n.value for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.Constant)} & attributes
        if "storage" in path.parts or path.stem == "names":
            known |= names
        else:
            assert names == set(), path
    assert known == attributes


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
    assert {"kanon.gate.evaluation", "kanon.gate.mechanism.vectorised"} <= MODULES
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
    not_of_join = {"kanon.gate.storage.statuses", "kanon.gate.storage.members", "kanon.gate.querying"}
    not_of_query = {"kanon.gate.storage.step_log", "kanon.gate.storage.members", "kanon.gate.joining"}
    assert not_of_join | not_of_query <= MODULES
    assert not not_of_join & _modules_of("join")
    assert not not_of_query & _modules_of("query")
