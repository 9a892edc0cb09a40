"""The exporter lets a value leave only if it is known to be shared, with spans of the real SDK."""

import json
import threading
from collections.abc import Sequence
from typing import Any

import pytest
from opentelemetry.sdk.trace import Event, ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import Link, SpanContext, Status, StatusCode

from kanon.client import Background, Client, HttpAnswer, NoAnswerError, value_id
from kanon.opentelemetry import SharedOnly

TERMS = {"search.term": "terms"}


class Crowd:
    """A service that knows shared values, and keeps what joined; it can be down or hold requests back."""

    def __init__(self, *shared: str) -> None:
        self.shared = {value_id(value) for value in shared}
        self.joined: list[tuple[str, str]] = []
        self.asked: list[str] = []
        self.down, self.gate, self.time = False, threading.Event(), 0.0
        self.gate.set()

    def __call__(self, method: str, path: str, body: bytes, headers: Any) -> HttpAnswer:
        assert self.gate.wait(30)
        if self.down:
            raise NoAnswerError("down")
        answer: Any = {"types": [{"type": "terms", "period": 3600}, {"type": "words", "period": 3600, "listed": True}]}
        if path.endswith(":join"):
            self.joined.append((path.rsplit("/", maxsplit=1)[-1].partition(":")[0], json.loads(body)["client"]))
            answer = {}
        elif body:
            (asked,) = json.loads(body)["setsForType"]
            self.asked += asked["hashes"]
            true = [{"type": "terms", "hashes": [id_ for id_ in asked["hashes"] if id_ in self.shared]}]
            answer = {"kAnonymousSets": true, "step": 1, "nextUpdate": ""}
        return HttpAnswer(200, [("Cache-Control", "max-age=600")], json.dumps(answer).encode())


class Traced:
    """A tracer whose spans go through the wrapper into memory."""

    def __init__(self, crowd: Crowd, types: dict[str, str] = TERMS, **options: Any) -> None:
        client = Client(crowd, spread=0.0)
        client._calls.clock = lambda: crowd.time
        self.background, self.memory = Background(client), InMemorySpanExporter()
        provider = TracerProvider()
        self.exporter = SharedOnly(self.memory, self.background, types, **options)
        provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.tracer = provider.get_tracer("test")

    def span(self, **attributes: Any) -> dict[str, Any]:
        """The attributes of a span as they leave."""
        with self.tracer.start_as_current_span("search", attributes=attributes):
            pass
        return dict(self.memory.get_finished_spans()[-1].attributes or {})

    def settled(self) -> None:
        assert self.background.flush(10)


def sent(spans: Sequence[ReadableSpan]) -> str:
    return "".join(span.to_json() for span in spans)


def test_a_value_leaves_only_after_an_answer_that_it_is_shared() -> None:
    traced = Traced(Crowd("popular"))
    for term, after in (("popular", "popular"), ("secret", "other")):
        assert traced.span(**{"search.term": term}) == {"search.term": "other"}
        traced.settled()
        assert traced.span(**{"search.term": term}) == {"search.term": after}
    assert "secret" not in sent(traced.memory.get_finished_spans())


def test_an_export_never_waits_for_the_service() -> None:
    crowd = Crowd("popular")
    crowd.gate.clear()
    traced = Traced(crowd)
    assert [traced.span(**{"search.term": "popular"}) for _ in range(100)] == [{"search.term": "other"}] * 100
    crowd.gate.set()
    traced.settled()
    assert crowd.asked == [value_id("popular")]


def test_an_answer_that_is_too_old_and_a_service_that_is_down_give_other() -> None:
    crowd = Crowd("popular")
    traced = Traced(crowd)
    traced.span(**{"search.term": "popular"})
    traced.settled()
    crowd.time, crowd.down = 600.0, True
    assert traced.span(**{"search.term": "popular"}) == {"search.term": "other"}
    traced.background.close(0)


def test_attributes_that_nobody_named_leave_as_other_in_spans_events_and_links() -> None:
    traced = Traced(Crowd(), clear={"method"})
    attributes = {"method": "GET", "user": "alice", "count": 3, "ratio": 0.5, "list": ("a", "b")}
    context = SpanContext(1, 2, is_remote=False)
    with traced.tracer.start_as_current_span(
        "search", attributes=attributes, links=[Link(context, attributes)]
    ) as span:
        span.add_event("clicked", attributes)
        span.set_status(Status(StatusCode.ERROR, "no such user: alice"))
        span.record_exception(ValueError("alice"))
    (left,) = traced.memory.get_finished_spans()
    expected = {"method": "GET", "user": "other", "count": "other", "ratio": "other", "list": "other"}
    assert left.attributes == expected
    assert left.links[0].attributes == expected
    assert left.events[0].attributes == expected
    assert (left.status.status_code, left.status.description) == (StatusCode.ERROR, None)
    assert "alice" not in sent([left])


def test_the_copy_keeps_everything_else_and_the_span_is_not_changed() -> None:
    traced = Traced(Crowd())
    seen: list[ReadableSpan] = []
    traced.memory.export = seen.extend  # type: ignore[assignment, return-value]
    with traced.tracer.start_as_current_span("outer"), traced.tracer.start_as_current_span("inner") as span:
        span.set_attribute("search.term", "secret")
        span.add_event("event", {"search.term": "secret"}, timestamp=5)
    original, copy = span, seen[0]
    assert isinstance(original, ReadableSpan)
    assert original.attributes == {"search.term": "secret"}
    names = ("name", "context", "parent", "resource", "kind", "start_time", "end_time", "instrumentation_scope")
    assert [getattr(copy, name) for name in names] == [getattr(original, name) for name in names]
    assert isinstance(copy.events[0], Event)
    assert (copy.events[0].name, copy.events[0].timestamp) == ("event", 5)
    assert "secret" not in sent(seen)


@pytest.mark.parametrize(
    ("value", "left"),
    [("a", "a"), (7, 7), (True, True), (("a", "b"), ("a", "b")), (("a", "x"), "other"), (1.5, "other"), ((), "other"),
     ("x", "other"), (8, "other"), ("other", "other"), ("\ud800", "other"), (("a", 1.5), "other")],
)  # fmt: skip
def test_lists_numbers_and_booleans_leave_only_if_each_of_their_values_is_shared(value: Any, left: Any) -> None:
    traced = Traced(Crowd("a", "b", "7", "true", "1.5"))
    traced.exporter._shown({"search.term": value})
    traced.settled()
    assert traced.exporter._shown({"search.term": value}) == {"search.term": left}


def test_each_value_joins_once_a_day_for_each_client_whatever_the_answers_are() -> None:
    crowd = Crowd("popular")
    traced = Traced(crowd, client=lambda span: (span.attributes or {}).get("user"))
    for user in ("alice", "bob", "alice", None):
        for term in ("popular", "rare"):
            traced.span(**{"search.term": term, **({"user": user} if user else {})})
            traced.settled()
    terms = [value_id("popular"), value_id("rare")]
    assert sorted(crowd.joined) == sorted((term, user) for term in terms for user in ("alice", "bob"))
    assert "alice" not in sent(traced.memory.get_finished_spans())


def test_values_join_a_listed_type_too() -> None:
    crowd = Crowd()
    traced = Traced(crowd, {"search.term": "words"}, client=lambda _: "alice")
    traced.span(**{"search.term": "v"})
    traced.settled()
    assert crowd.joined == [(value_id("v"), "alice")]


def test_without_a_client_nothing_joins() -> None:
    crowd = Crowd()
    traced = Traced(crowd)
    traced.span(**{"search.term": "v"})
    traced.settled()
    assert (crowd.joined, crowd.asked) == ([], [value_id("v")])


def test_an_attribute_is_either_asked_about_or_clear() -> None:
    with pytest.raises(ValueError, match=r"'search\.term' is in types and in clear"):
        Traced(Crowd(), clear={"search.term"})


def test_flush_and_shutdown_reach_the_other_exporter() -> None:
    traced = Traced(Crowd())
    assert traced.exporter.force_flush() is True
    traced.span(**{"search.term": "v"})
    traced.exporter.shutdown()
    traced.span(**{"search.term": "v"})
    assert len(traced.memory.get_finished_spans()) == 1
    traced.background.close()
