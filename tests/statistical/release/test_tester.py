"""The stochastic tester finds planted mistakes and passes the product, in process and through the command.

The draws of a test have a fixed seed, so its outcome is fixed too. The tester refuses right code with a probability of
at most 1e-6 over all datasets of a test. The short form takes few runs; `make audit` takes more, with 20 seeds for the
product.
"""

import json
import math
import random
from collections import defaultdict
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import pytest
from typer.testing import CliRunner

from kanon.cli.main import app
from kanon.noise.laws import Law, two_sided
from kanon.release import Spec
from kanon.release.mechanism import Mechanism
from kanon.release.noising import PrivateTable, publish
from kanon.release.tape import Tape
from tests.statistical.release.tester import Dataset, datasets, find_violation

ONE = Fraction(1)
DELTA = Fraction(1, 10**5)
POINTS = (-4, -2, 0, 2, 4)
Outcome = Callable[[Dataset], Any]


# The product: exact numbers as the engine would give them, all noise fresh.

GROUPS = tuple(f"{i:03}" for i in range(500))


def product(seed: int, aggregate: str | None, cell: int = 1, *, listed: bool = True) -> Outcome:
    """A release of one group; its last column in cells of a width, or None if the group is not released.

    500 groups with the same numbers are released at a time, each with noise of its own.
    """
    spec = Spec(
        groups=("g",), epsilon=ONE, delta=DELTA, aggregates=(aggregate,) if aggregate else (),
        public_groups=tuple((name,) for name in GROUPS) if listed else None,
    )  # fmt: skip
    mechanism, draw = Mechanism(spec), random.Random(seed)
    assert mechanism.claim.epsilon <= ONE
    waiting: defaultdict[Dataset, list[Any]] = defaultdict(list)

    def released(data: Dataset) -> list[Any]:
        numbers = (len(data), *(_exact(measure, data) for measure in spec.measures))
        rows = [(name, *numbers) for name in GROUPS] if data or listed else []
        table = PrivateTable.of_rows(spec.bounding, lambda: rows, {})
        made = {names[0]: cells for names, cells in publish(table, mechanism, Tape(draw.randbytes(32), "id")).rows}
        return [math.floor(made[name][-3] / cell) if name in made else None for name in GROUPS]

    def run(data: Dataset) -> Any:
        if not waiting[data]:
            waiting[data] = released(data)
        return waiting[data].pop()

    return run


def _exact(measure: Any, data: Dataset) -> int:
    """The engine's number for one value a user."""
    clamped = [min(max(value, measure.low), measure.high) for (value,) in data]
    if type(measure).__name__ == "Sum":
        return sum(clamped)
    return sum(2 * value - measure.low - measure.high for value in clamped)


PRODUCT: dict[str, tuple[Callable[[int], Outcome], tuple[int, ...]]] = {
    "selection": (lambda seed: product(seed, None, listed=False), (0, 1)),
    "sum": (lambda seed: product(seed, "sum:v:5:6", 4), (5, 6)),
    "mean": (lambda seed: product(seed, "mean:v:-4:4"), POINTS),
}


@pytest.mark.parametrize("name", PRODUCT)
def test_the_unchanged_product_passes(name: str) -> None:
    make, points = PRODUCT[name]
    tried = list(datasets(points, 4, 3))
    assert find_violation(make(1), tried, 1.0, float(DELTA), 2_000, 2 * len(tried)) is None


@pytest.mark.audit
@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("name", PRODUCT)
def test_the_unchanged_product_passes_with_every_seed(name: str, seed: int) -> None:
    make, points = PRODUCT[name]
    tried = list(datasets(points, 12 if name == "selection" else 4, 6, first=6 * seed))
    assert find_violation(make(seed), tried, 1.0, float(DELTA), 10_000, 2 * 20 * len(PRODUCT) * len(tried)) is None


# Mistakes. The noise is the product's; what is wrong is around it.


def drawn(seed: int, law: Law) -> Callable[[], int]:
    draw = random.Random(seed)
    return lambda: law.draw(draw.getrandbits(64))


def sum_scaled_by_the_width(seed: int) -> Outcome:
    noise = drawn(seed, two_sided(ONE, 28))  # U - L = 1, and one user adds 6
    return lambda data: sum(value for (value,) in data) + noise()


def mean_by_the_exact_count(scale: int) -> Callable[[int], Outcome]:
    def make(seed: int) -> Outcome:
        noise = drawn(seed, two_sided(ONE / scale, 28 * scale))
        return lambda data: Fraction(sum(value for (value,) in data) + noise(), max(1, len(data)))

    return make


def mean_by_the_exact_count_in_cells(seed: int) -> Outcome:
    """Algorithm 2.3 of Li et al. 2016 at epsilon 1/2."""
    noise = drawn(seed, two_sided(Fraction(1, 16), 448))
    return lambda data: math.floor(Fraction(sum(value for (value,) in data) + noise(), max(1, len(data))) / 4)


PLANTED: dict[str, tuple[Callable[[int], Outcome], tuple[int, ...], float, int]] = {
    "a sum scaled by the width of its bounds": (sum_scaled_by_the_width, (5, 6), 1.0, 2_000),
    "a mean by the exact count, scale 4": (mean_by_the_exact_count(4), POINTS, 1.0, 4_000),
    "a mean by the exact count, scale 8": (mean_by_the_exact_count(8), POINTS, 1.0, 4_000),
    "a mean by the exact count in cells": (mean_by_the_exact_count_in_cells, POINTS, 0.5, 20_000),
}


@pytest.mark.parametrize("name", PLANTED)
def test_the_tester_finds_planted_mistakes(name: str) -> None:
    make, points, epsilon, runs = PLANTED[name]
    tried = list(datasets(points, 2, 8))
    violation = find_violation(make(1), tried, epsilon, float(DELTA), runs, 2 * len(tried))
    assert violation is not None
    assert violation.excess > violation.allowed


# The command.


@pytest.mark.audit
def test_the_command_passes_with_a_fresh_ledger_each_time(tmp_path: Any) -> None:
    """200 runs: low power, but through all of it. Each run draws anew."""
    runs, runner = 0, CliRunner()

    def run(data: Dataset) -> Any:
        nonlocal runs
        runs += 1
        log, out = tmp_path / f"{runs}.csv", tmp_path / f"{runs}-out.csv"
        log.write_text("set,client\n" + "".join(f"g,{user}\n" for user in range(len(data))))
        arguments = ["release", str(log), "--group", "set", "--epsilon", "1", "--delta", "1e-5", "--dataset", "d"]
        result = runner.invoke(app, [*arguments, "--out", str(out), "--ledger", str(tmp_path / f"ledger-{runs}")])
        assert result.exit_code == 0, result.output
        told = json.loads(out.with_suffix(".json").read_text())
        assert told["guarantee"]["epsilon"] <= 1
        lines = out.read_text().splitlines()[1:]
        return int(lines[0].split(",")[1]) if lines else None

    crowd = tuple((0,) for _ in range(30))
    assert find_violation(run, [crowd], 1.0, 1e-5, 100, 2) is None
    assert runs == 200
