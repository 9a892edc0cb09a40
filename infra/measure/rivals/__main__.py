"""``python -m infra.measure.rivals LOG``: run the job with each library and print the ratios.

The ratio is of processor time, because other programs on the machine do not change it; all libraries have two threads.
The table also has the median number of released sets.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).parent
LEAST_RATIO = 5


class Turn(NamedTuple):
    """One release: seconds and the number of released sets."""

    processor: float
    wall: float
    sets: int


def main(arguments: list[str] | None = None) -> int:
    """Measure; 1 if a rival takes less than five times as long."""
    parser = argparse.ArgumentParser(prog="python -m infra.measure.rivals", description=__doc__)
    parser.add_argument("log", type=Path, help="a CSV log with set and client, plain or gzipped")
    parser.add_argument("--turns", type=int, default=5, help="times each releases, after one to warm up")
    parser.add_argument("--python", type=Path, default=Path(".venv-rivals/bin/python"), help="with the libraries")
    asked = parser.parse_args(arguments)
    if not asked.log.exists() or not asked.python.exists():
        parser.error(f"{asked.log if asked.python.exists() else asked.python} does not exist: see `make rivals`")
    ours = run(Path(sys.executable), "kanon_release", asked.log, asked.turns)
    print(f"| library | processor time | ratio | wall time | sets |\n|---|---|---|---|---|\n{row('kanon', ours, ours)}")
    met = True
    for name, script in (("PipelineDP 0.3.1", "pipelinedp"), ("OpenDP 0.16 with Polars", "opendp_polars")):
        found = run(asked.python, script, asked.log, asked.turns)
        print(row(name, found, ours))
        met &= median(found) >= LEAST_RATIO * median(ours)
    return 0 if met else 1


def run(python: Path, script: str, log: Path, turns: int) -> list[Turn]:
    """The turns of one library."""
    environment = os.environ | {"POLARS_MAX_THREADS": "2", "OMP_NUM_THREADS": "2"}
    command: list[str | Path] = [python, HERE / "turns.py", script, log, str(turns)]
    answer = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    return [Turn(*json.loads(line)) for line in answer.stdout.splitlines()]


def median(turns: list[Turn]) -> float:
    """The median processor time, seconds."""
    return statistics.median(turn.processor for turn in turns)


def row(name: str, turns: list[Turn], ours: list[Turn]) -> str:
    """A line of the table."""
    wall, sets = (statistics.median(getattr(turn, part) for turn in turns) for part in ("wall", "sets"))
    return f"| {name} | {median(turns):.2f} s | {median(turns) / median(ours):.1f} | {wall:.2f} s | {sets:.0f} |"


if __name__ == "__main__":
    sys.exit(main())
