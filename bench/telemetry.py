"""What ``kanon.opentelemetry`` adds to the export of a span, and what it sends: ``python -m bench.telemetry``.

It prints the processor time of a span whose exporter is wrapped relative to one whose exporter is not, turn by turn,
and how many requests the service got. The exporter encodes each span as JSON, as exporters do in some form.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Sequence
from typing import Any

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult

from kanon.client import Background, Client, Headers, HttpAnswer
from kanon.opentelemetry import SharedOnly

SPANS, TURNS, TERMS = 2_000, 15, 200


class Encoding(SpanExporter):
    """Encodes spans and keeps nothing."""

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Encode."""
        for span in spans:
            span.to_json(indent=None)
        return SpanExportResult.SUCCESS


class Service:
    """Answers that every value is shared, and counts requests."""

    def __init__(self) -> None:
        self.requests = self.bytes = 0

    def __call__(self, _method: str, _path: str, body: bytes, _headers: Headers) -> HttpAnswer:
        """Answer."""
        self.requests, self.bytes = self.requests + 1, self.bytes + len(body)
        answer: dict[str, Any] = {"types": [{"type": "terms", "period": 3600}]}
        if body:
            answer = {"kAnonymousSets": json.loads(body)["setsForType"], "step": 1, "nextUpdate": ""}
        return HttpAnswer(200, [("Cache-Control", "max-age=3600")], json.dumps(answer).encode())


def seconds(exporter: SpanExporter) -> float:
    """Processor time of some spans, from their start to the end of their export."""
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracer = provider.get_tracer("bench")
    began = time.process_time()
    for n in range(SPANS):
        attributes: dict[str, str | int] = {
            "search.term": f"term {n % TERMS}",
            "method": "GET",
            "status": 200,
            "user": "somebody",
        }
        with tracer.start_as_current_span("search", attributes=attributes):
            pass
    return time.process_time() - began


def main() -> int:
    """Measure and print."""
    service, plain = Service(), Encoding()
    with Background(Client(service)) as background:
        wrapped = SharedOnly(plain, background, {"search.term": "terms"}, clear={"method", "status"})
        seconds(wrapped)  # asks
        background.flush(60)
        asked = service.requests
        turns = [(seconds(wrapped), seconds(plain)) for _ in range(TURNS)]
    ratios = sorted(ours / theirs for ours, theirs in turns)
    added = statistics.median((ours - theirs) / SPANS for ours, theirs in turns)
    print(
        f"{statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f}) times the span without it,"
        f" {added * 1e6:.0f} µs more; {SPANS} spans of {TERMS} terms: {asked} requests with {service.bytes} bytes,"
        f" then {service.requests - asked} in {TURNS * SPANS} spans"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
