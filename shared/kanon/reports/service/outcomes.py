"""Jobs that end, counted by outcome."""

from aws_lambda_powertools import Metrics
from aws_lambda_powertools.metrics import MetricUnit

SUCCEEDED = frozenset({"SUCCESS", "SUCCESS_WITH_ERRORS"})


def count_outcome(metrics: Metrics, code: str) -> None:
    """Count a job that has ended with this return code. A crash just before the count loses it."""
    metrics.add_metric("JobsFinished" if code in SUCCEEDED else "JobsRefused", MetricUnit.Count, 1)
