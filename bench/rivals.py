"""``make rivals``: users per set of a log, released by kanon and by two other libraries.

``python -m bench.rivals LOG``. The job is the same for all: count the users of each set, epsilon 1, delta 1e-6, at most
10 sets per user. Each library runs this file in an interpreter of its own (``rivals.py LOG LIBRARY``), which has
one warm-up turn, and prints the processor time, the wall time and the number of released sets of each turn. All have
two threads at most. The ratio is of processor time, because other programs on the machine do not change it.
"""

import csv
import gzip
import importlib
import json
import os
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

LEAST_RATIO = 5
LIBRARIES = {"kanon": "kanon", "pipelinedp": "PipelineDP 0.3.1", "opendp": "OpenDP 0.16 with Polars"}
ROWS, SETS = 1_000_000, 100_000
"""Public upper bounds, which OpenDP asks for."""

TURNS = 5
RIVAL_PYTHON = Path(".venv-rivals/bin/python")

Turns = list[tuple[float, float, int]]
"""Processor time and wall time of each turn, s, and the number of released sets."""


def main(log: Path) -> int:
    """Measure; 1 if a rival takes less than five times as long."""
    if not log.is_file() or not RIVAL_PYTHON.exists():
        raise SystemExit(f"{RIVAL_PYTHON if log.is_file() else log} does not exist: make rivals LOG=joins.csv.gz")
    print("| library | processor time | ratio | wall time | sets |\n|---|---|---|---|---|")
    taken = []
    for library, name in LIBRARIES.items():
        processor, wall, sets = map(statistics.median, zip(*run(library, log), strict=True))
        taken.append(processor)
        print(f"| {name} | {processor:.2f} s | {processor / taken[0]:.1f} | {wall:.2f} s | {sets:.0f} |")
    return int(min(taken[1:]) < LEAST_RATIO * taken[0])


def run(library: str, log: Path) -> Turns:
    """The turns of one library, in an interpreter of its own."""
    python = sys.executable if library == "kanon" else RIVAL_PYTHON
    environment = os.environ | {"POLARS_MAX_THREADS": "2", "OMP_NUM_THREADS": "2"}
    answer = subprocess.run(
        [python, __file__, log, library], env=environment, check=True, capture_output=True, text=True
    )
    return [json.loads(line) for line in answer.stdout.splitlines()]


def release_and_print(log: Path, library: str) -> None:
    """The turns of a library, in its interpreter."""
    release = {"kanon": kanon, "pipelinedp": pipelinedp, "opendp": opendp}[library]
    for number in range(TURNS + 1):
        processor, wall = time.process_time(), time.perf_counter()
        sets = release(log)
        if number:
            print(json.dumps([time.process_time() - processor, time.perf_counter() - wall, sets]))


def kanon(log: Path) -> int:
    """Release with ``kanon release`` and a ledger of its own; the number of released sets."""
    from kanon.release import Ledger, Spec, release

    spec = Spec(groups=("set",), epsilon=Fraction(1), delta=Fraction(1, 10**6), groups_per_user=10)
    with TemporaryDirectory() as folder:
        return len(release(log, spec, Ledger.at(Path(folder) / "ledger"), dataset="log").released.rows)


def opendp(log: Path) -> int:
    """Release with OpenDP's Polars engine."""
    import polars as pl

    dp: Any = importlib.import_module("opendp.prelude")
    dp.enable_features("contrib")
    warnings.simplefilter("ignore", FutureWarning)
    bounds = [dp.polars.Bound(by=["set"], per_group=1), dp.polars.Bound(by=["set"], num_groups=10)]
    context = dp.Context.compositor(
        data=pl.read_csv(log, schema_overrides={"set": pl.String, "client": pl.String}).lazy(),
        privacy_unit=dp.unit_of(contributions=bounds, identifier=pl.col("client")),
        privacy_loss=dp.loss_of(epsilon=1.0, delta=1e-6),
        split_evenly_over=1,
        margins=[
            dp.polars.Margin(by=(), max_length=ROWS),
            dp.polars.Margin(by=["set"], max_groups=SETS, max_length=ROWS),
        ],
    )
    query = context.query().truncate_per_group(1, by=["set"], keep="first")
    query = query.truncate_num_groups(10, by=["set"], keep="first").group_by("set").agg(dp.len())
    return int(query.release().collect().height)


def pipelinedp(log: Path) -> int:
    """Release with PipelineDP's local engine."""
    import pipeline_dp

    budget = pipeline_dp.NaiveBudgetAccountant(total_epsilon=1, total_delta=1e-6)
    engine = pipeline_dp.DPEngine(budget, pipeline_dp.LocalBackend())
    parameters = pipeline_dp.AggregateParams(
        noise_kind=pipeline_dp.NoiseKind.LAPLACE,
        metrics=[pipeline_dp.Metrics.PRIVACY_ID_COUNT],
        max_partitions_contributed=10,
        max_contributions_per_partition=1,
    )
    extractors = pipeline_dp.DataExtractors(
        privacy_id_extractor=lambda row: row["client"],
        partition_extractor=lambda row: row["set"],
        value_extractor=lambda _: 0,
    )
    released = engine.aggregate(list(_rows(log)), parameters, extractors)
    budget.compute_budgets()
    return len(list(released))


def _rows(log: Path) -> Iterator[dict[str, Any]]:
    with gzip.open(log, "rt", newline="") if log.suffix == ".gz" else log.open(newline="") as file:
        yield from csv.DictReader(file)


if __name__ == "__main__":
    if len(sys.argv) == 3:
        release_and_print(Path(sys.argv[1]), sys.argv[2])
    else:
        sys.exit(main(Path(*sys.argv[1:])))
