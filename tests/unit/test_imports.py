"""Imports point one way: functions -> use cases -> storage, mechanism; mechanism imports nothing of ours."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

import kanon

KANON = Path(kanon.__file__).parent
ROOT = KANON.parents[1]

LAYERS: dict[str, set[str]] = {
    # What a module, or a package, may import of ours. Only later layers see earlier ones.
    "mechanism": {"mechanism"},
    "errors": set(),
    "clock": set(),
    "aws": set(),
    "storage": {"storage", "mechanism", "errors", "clock"},
    "types": {"mechanism", "errors"},
    "settings": {"types", "errors"},
    "keys": {"mechanism", "errors"},
    "publishing": {"mechanism"},
    "fingerprints": {"storage", "mechanism", "keys", "settings", "types", "errors"},
    "joining": {"storage", "mechanism", "keys", "types"},
    "evaluation": {"storage", "mechanism", "publishing", "settings", "types", "errors"},
    "querying": {"storage", "mechanism", "publishing", "keys", "types", "errors"},
    "models": set(),
    "http": {"storage", "models", "errors"},
}
FOR_PEOPLE = {"cli", "tools", "client"}
"""Packages for people, left out of the layer: they may import anything, nothing of the layer imports them."""


def _imports(path: Path) -> set[str]:
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
    return found


def _part(path: Path) -> str:
    return path.relative_to(KANON).parts[0].removesuffix(".py")


SOURCES = sorted(path for path in KANON.rglob("*.py") if path != KANON / "__init__.py")
LAYER_SOURCES = [path for path in SOURCES if _part(path) not in FOR_PEOPLE]


def test_every_module_of_the_layer_has_its_place_in_the_order() -> None:
    assert {_part(path) for path in LAYER_SOURCES} == set(LAYERS)


@pytest.mark.parametrize("path", LAYER_SOURCES, ids=lambda path: str(path.relative_to(KANON)))
def test_a_module_imports_only_what_lies_below_it(path: Path) -> None:
    ours = {name.split(".")[1] for name in _imports(path) if name.startswith("kanon.")}
    assert ours <= LAYERS[_part(path)]
    assert not {name.split(".")[0] for name in _imports(path)} & {"functions", "infra", "tests", "join", "query"}


@pytest.mark.parametrize("path", [p for p in LAYER_SOURCES if _part(p) == "mechanism"], ids=lambda path: str(path.name))
def test_the_mechanism_is_pure_no_aws_no_clock_no_environment_no_randomness(path: Path) -> None:
    outside = {name.split(".")[0] for name in _imports(path)}
    assert not outside & {"boto3", "botocore", "aws_lambda_powertools", "pydantic", "time", "os", "random", "secrets"}
    if path.stem not in ("vectorised", "exact_law"):
        assert "numpy" not in outside


def test_only_storage_knows_the_names_of_attributes() -> None:
    for path in LAYER_SOURCES:
        if _part(path) not in ("storage", "keys"):
            names = {n.value for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.Constant)}
            assert not names & {"set_token", "step_slot", "set_key", "crossings", "visible_from", "lease_until"}, path


def _environment(function: str) -> dict[str, str]:
    from tests.unit.gate.test_settings import EVALUATE, JOIN, QUERY

    settings = {"join": JOIN, "query": QUERY, "evaluate": EVALUATE}[function]
    paths = [ROOT / "shared", ROOT / "functions" / function]
    return {**settings, "PYTHONPATH": os.pathsep.join(map(str, paths)), "PATH": os.environ["PATH"]}


def _modules_of(function: str) -> set[str]:
    """Everything that is imported when a function starts, in a process of its own."""
    text = "import app, sys; print('\\n'.join(sys.modules))"
    ran = subprocess.run(
        [sys.executable, "-c", text], env=_environment(function), capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    return set(ran.stdout.split())


@pytest.mark.parametrize("function", ["join", "query"])
def test_join_and_query_start_without_numpy_and_without_the_mechanism_of_evaluation(function: str) -> None:
    modules = _modules_of(function)
    assert "kanon.http" in modules
    assert not {"numpy", "kanon.gate.evaluation", "kanon.gate.mechanism.vectorised"} & modules


@pytest.mark.parametrize("function", ["join", "query", "evaluate"])
def test_no_function_starts_what_is_for_people(function: str) -> None:
    roots = {".".join(name.split(".")[:2]) for name in _modules_of(function)}
    assert not {f"kanon.{name}" for name in FOR_PEOPLE} & roots
    assert not {"typer", "rich", "matplotlib", "moto", "yaml", "infra"} & roots


def test_join_never_reads_statuses_and_query_never_reads_the_log_or_members() -> None:
    assert not {"kanon.gate.storage.statuses", "kanon.gate.storage.members", "kanon.gate.querying"} & _modules_of(
        "join"
    )
    assert not {"kanon.gate.storage.step_log", "kanon.gate.storage.members", "kanon.gate.joining"} & _modules_of(
        "query"
    )
