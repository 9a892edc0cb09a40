# mypy: ignore-errors
"""The job with PipelineDP's local engine. Runs in ``.venv-rivals``."""

import csv
import gzip
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
