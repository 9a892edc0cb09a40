"""What the layer holds, what functions start with, and the picture of docs/architecture.md.

`make lint` checks the layers of pyproject.toml.
"""

import ast
import json
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

LAYER = {
    *("__init__", "aws", "clock", "dynamo", "errors", "gate", "hpke", "http", "keys", "noise", "queues"),
    *("settings", "snapshots", "starting", "strict_json"),
}
"""The part of the package that the functions need: shared/Makefile lists the same names."""


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
            if not isinstance(child, ast.expr):  # an expression imports nothing
                visit(child)

    visit(ast.parse(path.read_text()))
    return frozenset(found)


def _part(path: Path) -> str:
    return path.relative_to(KANON).parts[0].removesuffix(".py")


def _sources(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*.py") if path != folder / "__init__.py")


SOURCES = _sources(KANON)
MODULES = {".".join(path.relative_to(KANON.parent).with_suffix("").parts) for path in SOURCES}
LAYER_SOURCES = [path for path in SOURCES if _part(path) in LAYER]


def _arrows() -> dict[str, set[str]]:
    """The rooms that each room imports, and those that the functions import."""
    found: dict[str, set[str]] = defaultdict(set)
    for path in (*SOURCES, *_sources(ROOT / "functions")):
        part = _part(path) if path.is_relative_to(KANON) else "functions"
        rooms = {name.split(".")[1] for name in _imports(path) if name.startswith("kanon.")}
        found[part] |= rooms - LEFT_OUT - {part}
    return {part: rooms for part, rooms in found.items() if part not in LEFT_OUT}


def test_functions_import_the_layer_and_reports() -> None:
    assert _arrows()["functions"] <= LAYER | {"reports", "gateway", "credentials"}


LEFT_OUT = {
    *(
        "__version__",
        "clock",
        "console",
        "cors",
        "created",
        "errors",
        "findings",
        "aws",
        "hpke",
        "strict_json",
        "snapshots",
        "starting",
    ),
    *("page", "pictures"),
}
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
    """The layers in pyproject.toml say what may import what; the picture says what does."""
    drawn, arrows = _drawn(), _arrows()
    assert {part: more for part in drawn if (more := drawn[part] - arrows[part])} == {}
    assert _reachable(drawn) == _reachable(arrows)


def test_only_the_vectorised_mechanism_imports_numpy() -> None:
    pure = [path for path in SOURCES if _part(path) == "noise" or "gate/mechanism" in str(path)]
    using = {path.stem for path in pure if any(name.startswith("numpy") for name in _imports(path))}
    assert using == {"columns", "vectorised", "exact_law"}


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


LISTED = json.dumps({"terms": {"k": 50, "window": 24, "profile": "crossing", "listed": True}})
WITH_CREDENTIALS = json.dumps({"people": {"k": 50, "window": 24, "profile": "crossing", "credential": True}})


def _environment(function: str) -> dict[str, str]:
    from tests.unit.gate.test_settings import EVALUATE, JOIN, QUERY

    settings = {"join": JOIN, "query": QUERY, "evaluate": EVALUATE, "sweep": EVALUATE}[function]
    paths = [ROOT / "shared", ROOT / "functions" / function]
    return {**settings, "PYTHONPATH": os.pathsep.join(map(str, paths)), "PATH": os.environ["PATH"]}


@cache
def _modules_of(function: str, **environment: str) -> frozenset[str]:
    """Everything that is imported when a function starts, in a process of its own."""
    text = "import app, sys; print('\\n'.join(sys.modules))"
    ran = subprocess.run(
        [sys.executable, "-c", text],
        env={**_environment(function), **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    return frozenset(ran.stdout.split())


@pytest.mark.slow
@pytest.mark.parametrize("function", ["join", "query"])
def test_join_and_query_start_without_numpy_and_without_the_mechanism_of_evaluation(function: str) -> None:
    modules = _modules_of(function)
    assert "kanon.http.edge" in modules
    assert {"kanon.gate.evaluation", "kanon.gate.mechanism.vectorised"} <= MODULES
    assert not {"numpy", "kanon.gate.evaluation", "kanon.gate.mechanism.vectorised"} & modules


@pytest.mark.slow
def test_join_loads_cryptography_before_its_first_request_if_a_type_is_listed_and_never_otherwise() -> None:
    sealing = {"cryptography", "kanon.gate.sealing", "kanon.hpke"}
    assert not sealing & _modules_of("join")
    assert not sealing & _modules_of("join", KANON_LISTER_KEY="k" * 43)
    assert sealing <= _modules_of("join", KANON_LISTER_KEY="k" * 43, KANON_TYPES=LISTED)


@pytest.mark.slow
def test_join_loads_credentials_before_its_first_request_if_a_type_needs_them_and_never_otherwise() -> None:
    credentials = {"Crypto", "kanon.gate.admitting", "kanon.credentials.arc"}
    assert not credentials & _modules_of("join")
    assert not credentials & _modules_of("join", KANON_ISSUER_KEY_SECRET="arn:issuer")
    assert credentials <= _modules_of("join", KANON_ISSUER_KEY_SECRET="arn:issuer", KANON_TYPES=WITH_CREDENTIALS)


@pytest.mark.slow
@pytest.mark.parametrize("function", ["query", "evaluate", "sweep"])
def test_no_other_function_of_the_gate_loads_credentials(function: str) -> None:
    assert not {"Crypto", "kanon.gate.admitting"} & _modules_of(function, KANON_TYPES=WITH_CREDENTIALS)


@pytest.mark.slow
@pytest.mark.parametrize("function", ["query", "evaluate", "sweep"])
def test_no_other_function_of_the_gate_loads_cryptography(function: str) -> None:
    assert not {"cryptography", "kanon.gate.sealing"} & _modules_of(function, KANON_TYPES=LISTED)


@pytest.mark.slow
@pytest.mark.parametrize("function", ["join", "query", "evaluate", "sweep"])
def test_no_function_imports_command_line_tools(function: str) -> None:
    modules = _modules_of(function)
    assert {name.split(".")[1] for name in modules if name.startswith("kanon.")} <= LAYER
    assert "kanon.gate.mechanism.exact_law" not in modules  # shared/Makefile leaves it out
    assert not {"typer", "rich", "matplotlib", "moto", "yaml", "infra"} & {name.split(".")[0] for name in modules}


@pytest.mark.slow
@pytest.mark.parametrize("function", ["join", "query", "evaluate", "sweep"])
def test_no_function_imports_the_transfer_manager_of_s3(function: str) -> None:
    modules = _modules_of(function)
    assert "botocore.session" in modules
    assert not {"boto3", "s3transfer"} & {name.split(".")[0] for name in modules}


def test_join_never_reads_statuses_and_query_never_reads_the_log_or_states() -> None:
    not_of_join = {"kanon.gate.storage.aws.statuses", "kanon.gate.storage.aws.parts", "kanon.gate.querying"}
    not_of_query = {"kanon.gate.storage.aws.step_log", "kanon.gate.storage.aws.parts", "kanon.gate.joining"}
    assert not_of_join | not_of_query <= MODULES
    assert not not_of_join & _modules_of("join")
    assert not not_of_query & _modules_of("query")


@pytest.mark.slow
def test_the_command_line_starts_without_the_libraries_of_extras() -> None:
    extras = ("boto3", "botocore", "numpy", "cryptography", "fastavro", "duckdb", "pyarrow", "matplotlib", "moto")
    text = f"import sys; sys.modules.update(dict.fromkeys({extras})); import kanon.cli.main"
    ran = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
