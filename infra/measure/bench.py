"""``python -m infra.measure.bench``: measures the cost of the service relative to the bare libraries.

Prints a table, and appends the results as one line of JSON to a history file if one is given. Exits with a status
other than 0 if a count misses its target. Times depend on the machine, so they are shown but not judged.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from infra.measure import evaluating, handlers, imports, reports
from infra.measure.counted import TYPES, counts
from infra.measure.measure import Count, Ratio
from infra.measure.service import PERIOD, service
from kanon.gate.types import read_types
from kanon.local.source import ROOT


def main(arguments: list[str] | None = None) -> int:
    """Measure everything; 1 if a counted quantity missed its target."""
    parser = argparse.ArgumentParser(prog="python -m infra.measure.bench", description=__doc__)
    parser.add_argument("--short", action="store_true", help="small sizes: the counts are valid, the times are rough")
    parser.add_argument("--history", type=Path, help="append the results of a full run to this file, as a line of JSON")
    asked = parser.parse_args(arguments)
    results: list[Count | Ratio] = []
    print("| what | against | figure | lowest, highest | target | met |\n|---|---|---|---|---|---|")
    for result in measured(short=asked.short):
        results.append(result)
        print(line(result), flush=True)
    if asked.history and not asked.short:
        with asked.history.open("a") as history:
            history.write(json.dumps(run(results)) + "\n")
    return int(any(isinstance(result, Count) and not result.met for result in results))


def measured(*, short: bool) -> Iterator[Count | Ratio]:
    """Every result, as soon as it is measured."""
    yield from counts(200 if short else 500, 2_000 if short else 10_000, 50 if short else 1_000)
    turns, times = (1, 1) if short else (39, 5)  # many short turns: a disturbed turn does not move the median
    parameters = read_types(TYPES, PERIOD)["fledge"].parameters
    yield from evaluating.decide(parameters, min(turns, 3), 2_000 if short else 1_000_000)
    yield evaluating.exact_law(parameters, min(turns, 3))
    with service({"Types": TYPES}) as running:
        for function in ("join", "query"):
            yield imports.start(function, running.environments[function], turns)
        yield handlers.join(running, turns, 5 * times)
        yield handlers.batch_join(running, turns, max(1, times // 10))
        yield from handlers.query(running, turns, times)
        yield evaluating.evaluate(running, turns, 100 * times)
    yield from reports.measured(short=short)


def line(result: Count | Ratio) -> str:
    """A row of the table."""
    if isinstance(result, Count):
        target, figure, spread = f"at most {result.most:g}", f"{result.value:.4g}", "counted"
    else:
        target = f"at {'least' if result.at_least else 'most'} {result.target:g}"
        figure = f"{result.median:.2f} ({1e6 * result.seconds:.3g} us a {result.unit})"
        spread = f"{min(result.ratios):.2f}, {max(result.ratios):.2f}"
    return f"| {result.name} | {result.against} | {figure} | {spread} | {target} | {'yes' if result.met else 'no'} |"


def run(results: list[Count | Ratio]) -> dict[str, object]:
    """The results of a run, with the commit, the Python version and the machine."""
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return {
        "when": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "commit": commit.stdout.strip(),
        "python": platform.python_version(),
        "machine": platform.machine(),
        "figures": [result.figures for result in results],
    }


if __name__ == "__main__":
    sys.exit(main())
