"""The counts that the service on one machine shows: those that CloudWatch gets on AWS, and no other.

None is about a set, a type or a client, and none is a size. (docs/reference/metrics.md)
"""

from prometheus_client import CollectorRegistry, Counter, Gauge, disable_created_metrics, generate_latest

disable_created_metrics()  # type: ignore[no-untyped-call]


class Measures:
    """The counts since the start of the process."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()  # the library's own one also shows the memory of the process
        self.joins_accepted = self.counter("joins_accepted", "Well-formed joins that are in the log")
        self.joins_refused = self.counter("joins_refused", "Well-formed joins that got 503")
        self.queries_answered = self.counter("queries_answered", "Other requests that got 200")
        self.queries_refused = self.counter("queries_refused", "Other requests that got 5xx")
        self.requests_rejected = self.counter("requests_rejected", "Requests that got 4xx: an error of the client")
        self.steps = self.counter("steps_evaluated", "Steps that were evaluated")
        self.seconds = self.counter("evaluation_seconds", "Seconds that evaluation took")
        self.stopped = self.counter("evaluation_stopped", "Evaluations that ended with an error")
        self.lag = self.gauge("steps_behind", "Closed steps that are not evaluated")

    def gauge(self, name: str, about: str) -> Gauge:
        """A further number."""
        return Gauge(f"kanon_{name}", about, registry=self._registry)

    def counter(self, name: str, about: str) -> Counter:
        """A further count."""
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


class ListMeasures:
    """The counts of lists, among the others."""

    def __init__(self, measures: Measures) -> None:
        self.stopped = measures.counter("lists_stopped", "Publications of lists that ended with an error")
        self.behind = measures.gauge("lists_behind", "Steps by which the oldest list is behind the answers")
        self.unopened = measures.gauge("unopened_values", "Sealed values that do not open")


class ReportMeasures:
    """The counts of reports, among the others."""

    def __init__(self, measures: Measures) -> None:
        self.failed = measures.counter("report_stages_failed", "Stages of jobs that failed and will be repeated")
        self._rejected = measures.requests_rejected
        self._counts = {
            "ReportsAccepted": measures.counter("reports_accepted", "Reports that are stored"),
            "ReportsRefused": measures.counter("reports_refused", "Reports that got 5xx"),
            "KeysRefused": measures.counter("report_keys_refused", "Requests for public keys that got 5xx"),
            "DebugReports": measures.counter("debug_reports", "Debug reports, which are discarded"),
            "JobsFinished": measures.counter("jobs_finished", "Jobs whose summary is written"),
            "JobsRefused": measures.counter("jobs_refused", "Jobs that ended without a summary"),
            "PublicationsFailed": measures.counter("publications_failed", "Summaries that could not be written"),
        }

    def count(self, name: str) -> None:
        """Count a request or the end of a job, by the name of its metric on AWS."""
        (self._rejected if name == "RequestsRejected" else self._counts[name]).inc()
