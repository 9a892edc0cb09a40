"""Metrics of many requests in one log line: a line for each request would cost more than the request."""

from collections import Counter

from aws_lambda_powertools import Metrics
from aws_lambda_powertools.metrics import MetricUnit

from kanon import clock

SECONDS = 60.0
"""An environment writes its sums at most this often."""


class Totals:
    """The sums of an environment since its last line.

    The first request writes them, later ones once a minute. An environment that is never called again loses what it
    counted since its last line.

    Args:
        metrics: writes the line.
        urgent: the metrics that alarms wait for: a request that counts one of them writes the line at once.
    """

    def __init__(self, metrics: Metrics, *urgent: str) -> None:
        self._metrics, self._urgent = metrics, urgent
        self._sums: Counter[str] = Counter()
        self._due = 0.0

    def add(self, **counts: int) -> None:
        """Add to the sums, by metric. Zeros are written, too."""
        for name, count in counts.items():
            self._sums[name] += count

    def write(self) -> None:
        """Write the line if it is due."""
        now = clock.now()
        if now < self._due and not any(self._sums[name] for name in self._urgent):
            return
        self._due = now + SECONDS
        for name, count in self._sums.items():
            self._metrics.add_metric(name, MetricUnit.Count, count)
        if self._sums:
            self._metrics.flush_metrics()
        self._sums.clear()
