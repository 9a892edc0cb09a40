"""No floating-point number takes part in drawing or comparing."""

import ast
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

import kanon

VECTORISED = ("gate/mechanism/columns", "gate/mechanism/vectorised")
DECIDING = (
    *(f"gate/mechanism/{name}" for name in ("steps", "tape", "members", "above_threshold")),
    *VECTORISED,
)
TABLES = ("noise/words", "noise/laws", "gate/mechanism/parameters")
RELEASE = tuple(
    f"release/{name}"
    for name in (
        *("aggregate_noise", "aggregates", "bounding", "deltas", "gaussian", "ledger", "mechanism", "noising"),
        *("selection", "tape"),
    )
)
"""What a release draws, claims and charges; ``release/widths`` only proposes."""
INTEGER_NUMPY = {
    "arange",
    "array",
    "bincount",
    "bool_",
    "clip",
    "column_stack",
    "concatenate",
    "cumsum",
    "diff",
    "flatnonzero",
    "frombuffer",
    "fromiter",
    "full",
    "full_like",
    "iinfo",
    "int64",
    "isin",
    "maximum",
    "minimum",
    "repeat",
    "roll",
    "searchsorted",
    "uint64",
    "unique",
    "where",
    "zeros",
}
"""What keeps integers integers; a mean or a quotient is not among it."""


def _tree(module: str) -> ast.Module:
    return ast.parse((Path(kanon.__file__).parent / f"{module}.py").read_text())


def _uses_of_float(tree: ast.AST) -> list[int]:
    """Lines that make or hold a float, not counting the texts of errors and type hints."""
    texts = {id(inner) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for inner in ast.walk(node)} | {
        id(inner)
        for node in ast.walk(tree)
        for hint in (getattr(node, "annotation", None), getattr(node, "returns", None))
        if hint is not None
        for inner in ast.walk(hint)
    }
    return [
        node.lineno
        for node in ast.walk(tree)
        if id(node) not in texts
        and (
            (isinstance(node, ast.Constant) and isinstance(node.value, float | complex))
            or (isinstance(node, ast.Name) and node.id in ("float", "complex", "round"))
            or (isinstance(node, ast.Attribute) and node.attr in ("float64", "float32", "float_"))
        )
    ]


@pytest.mark.parametrize("module", [*DECIDING, *TABLES, *RELEASE])
def test_a_module_between_tape_and_comparison_holds_no_float(module: str) -> None:
    assert _uses_of_float(_tree(module)) == []


@pytest.mark.parametrize("module", DECIDING)
def test_a_module_that_decides_only_uses_floor_division(module: str) -> None:
    assert not [node for node in ast.walk(_tree(module)) if isinstance(node, ast.Div)]


@pytest.mark.parametrize("module", [*DECIDING, *TABLES])
def test_only_the_vectorised_modules_use_numpy_and_no_module_uses_math_or_random(module: str) -> None:
    imported = set()
    for node in ast.walk(_tree(module)):
        if isinstance(node, ast.Import):
            imported |= {alias.name.partition(".")[0] for alias in node.names}
        if isinstance(node, ast.ImportFrom):
            imported.add(str(node.module).partition(".")[0])
    assert not imported & {
        "math",
        "cmath",
        "random",
        "secrets",
        "statistics",
        "decimal",
        "time",
        "os",
    }
    assert ("numpy" in imported) == (module in VECTORISED)


@pytest.mark.parametrize("module", VECTORISED)
def test_a_vectorised_module_uses_only_integer_operations(module: str) -> None:
    used = {
        node.attr
        for node in ast.walk(_tree(module))
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "np"
    }
    assert used <= INTEGER_NUMPY


class _Watched(ast.NodeTransformer):
    """Every quotient ``a / b`` becomes ``_quotient(a, b)``."""

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        self.generic_visit(node)
        if not isinstance(node.op, ast.Div):
            return node
        call = ast.Call(ast.Name("_quotient", ast.Load()), [node.left, node.right], [])
        return ast.copy_location(call, node)


def test_every_quotient_in_the_making_of_a_law_is_a_fraction() -> None:
    quotients: list[type] = []

    def quotient(a: Any, b: Any) -> Any:
        quotients.append(type(a / b))
        return a / b

    tree = ast.fix_missing_locations(_Watched().visit(_tree("noise/laws")))
    laws: dict[str, Any] = {"_quotient": quotient, "__name__": "kanon.noise.laws"}
    exec(compile(tree, "laws.py", "exec"), laws)  # the module itself, its divisions watched
    for shape in ("two_sided", "one_sided"):
        law = laws[shape](Fraction(3, 4), 24)
        assert all(type(weight) is int for weight in law.weights)
        assert type(law.shift_delta) is Fraction
        assert type(law.tail_delta) is Fraction
    assert set(quotients) == {Fraction}


def test_the_check_finds_a_planted_float() -> None:
    for text in ("0.5", "float(3)", "round(x)", "np.float64(1)", "1j"):
        assert _uses_of_float(ast.parse(text)) == [1]
    assert _uses_of_float(ast.parse('f"{float(x):g}"')) == []
