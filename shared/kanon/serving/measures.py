"""The counts that the service on one machine shows: those that CloudWatch gets on AWS, and no other.

None is about a set, a type or a client, and none is a size. (docs/reference/metrics.md)
"""

from prometheus_client import CollectorRegistry, Counter, Gauge, disable_created_metrics, generate_latest

disable_created_metrics()  # type: ignore[no-untyped-call]


class Measures:
    """The counts since the start of the process."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()  # the library's own one also shows the memory of the process
        self.joins_accepted = self._counter("joins_accepted", "Well-formed joins that are in the log")
        self.joins_refused = self._counter("joins_refused", "Well-formed joins that got 503")
        self.queries_answered = self._counter("queries_answered", "Other requests that got 200")
        self.queries_refused = self._counter("queries_refused", "Other requests that got 5xx")
        self.requests_rejected = self._counter("requests_rejected", "Requests that got 4xx: an error of the client")
        self.steps = self._counter("steps_evaluated", "Steps that were evaluated")
        self.seconds = self._counter("evaluation_seconds", "Seconds that evaluation took")
        self.stopped = self._counter("evaluation_stopped", "Evaluations that ended with an error")
        self.lag = Gauge("kanon_steps_behind", "Closed steps that are not evaluated", registry=self._registry)

    def _counter(self, name: str, about: str) -> Counter:
        return Counter(f"kanon_{name}", about, registry=self._registry)

    def count_joins(self, accepted: int, joins: int) -> None:
        """Count the well-formed joins of a request."""
        self.joins_accepted.inc(accepted)
        self.joins_refused.inc(joins - accepted)

    def count_answer(self, status: int, *, of_join: bool) -> None:
        """Count a request by the status of its answer."""
        if 400 <= status < 500:
            self.requests_rejected.inc()
        elif not of_join:
            (self.queries_refused if status >= 500 else self.queries_answered).inc()

    def text(self) -> str:
        """All of them, in the text format of Prometheus."""
        return generate_latest(self._registry).decode()
