# mypy: ignore-errors
"""The job with PipelineDP's local engine. Runs in ``.venv-rivals``: ``python pipelinedp.py LOG TURNS``."""

import csv
import gzip
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pipeline_dp


def rows(log: Path) -> Iterator[dict[str, str]]:
    """The rows of a CSV file, plain or gzipped."""
    with gzip.open(log, "rt", newline="") if log.suffix == ".gz" else log.open(newline="") as file:
        yield from csv.DictReader(file)


def release(log: Path) -> int:
    """Release; the number of released sets."""
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
    released = engine.aggregate(list(rows(log)), parameters, extractors)
    budget.compute_budgets()
    return len(list(released))


if __name__ == "__main__":
    for _ in range(int(sys.argv[2]) + 1):
        processor, wall = time.process_time(), time.perf_counter()
        sets = release(Path(sys.argv[1]))
        print(json.dumps([time.process_time() - processor, time.perf_counter() - wall, sets]))
