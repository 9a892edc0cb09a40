"""Jobs that end, counted by outcome."""

from aws_lambda_powertools import Metrics
from aws_lambda_powertools.metrics import MetricUnit

from kanon.reports.service.working import UNPUBLISHED

COUNTED = {"SUCCESS": "JobsFinished", "SUCCESS_WITH_ERRORS": "JobsFinished", UNPUBLISHED: "PublicationsFailed"}


def count_outcome(metrics: Metrics, code: str) -> None:
    """Count a job that has ended with this return code, or is unpublished. A crash just before the count loses it."""
    metrics.add_metric(COUNTED.get(code, "JobsRefused"), MetricUnit.Count, 1)
