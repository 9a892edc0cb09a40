"""An exporter of OpenTelemetry that lets an attribute leave in clear only if the crowd shares its value.

It needs the extra ``opentelemetry`` (docs/guides/telemetry.md).
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from kanon.client import OTHER, Background, SetId, value_id

try:
    from opentelemetry.sdk.trace import Event, ReadableSpan
    from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
    from opentelemetry.trace import Link
    from opentelemetry.trace.status import Status
except ImportError as missing:
    raise ImportError(
        f"{missing.name} is missing: pip install 'kanon-dp[opentelemetry]'", name=missing.name
    ) from missing

JOIN_AGAIN = 86_400.0
"""Seconds after which a client joins the same value again."""
MOST_JOINED = 100_000
"""Joins that are remembered; with more all are forgotten, and a second join costs a write and no privacy."""

Attributes = Mapping[str, Any]


class SharedOnly(SpanExporter):
    """Gives copies of spans to another exporter. It never waits for the service.

    An attribute in ``types`` is sent as it is if a kept answer says that its value is shared. Otherwise ``other`` is
    sent: for a value that is rare, not asked about yet, or whose answer is too old. The question follows in the
    background. Attributes in ``clear`` are sent unchanged, all other ones as ``other``; the same holds for those of
    events and links. The description of a status, which may repeat a value, is left out. Names of spans and events,
    times, and the resource stay as they are: do not put values into them.

    Values are texts, whole numbers, booleans, or lists of them, of which each must be shared; numbers and booleans are
    compared as their JSON text. Anything else is ``other``.

    Args:
        exporter: sends the copies.
        background: asks the service, and joins.
        types: the type of each attribute that is asked about, such as ``{"search.term": "terms"}``.
        clear: names of attributes that say nothing about a person.
        client: the client id of a span; with it each value joins its set, once a day. None: this span does not join.

    Raises:
        ValueError: an attribute is in ``types`` and in ``clear``.
    """

    def __init__(
        self,
        exporter: SpanExporter,
        background: Background,
        types: Mapping[str, str],
        *,
        clear: Collection[str] = (),
        client: Callable[[ReadableSpan], str | int | None] | None = None,
    ) -> None:
        if both := types.keys() & set(clear):
            raise ValueError(f"the attribute {min(both)!r} is in types and in clear: take it out of one of them")
        self._exporter, self._background = exporter, background
        self._types, self._clear, self._client = dict(types), frozenset(clear), client
        self._joined: dict[tuple[str, SetId, str | int], float] = {}

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Export copies."""
        return self._exporter.export([self._copy(span) for span in spans])

    def shutdown(self) -> None:
        """Shut the other exporter down."""
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Flush the other exporter."""
        return self._exporter.force_flush(timeout_millis)

    def _copy(self, span: ReadableSpan) -> ReadableSpan:
        client = self._client(span) if self._client is not None else None
        shown = self._shown
        if client is not None:
            self._join(client, [span.attributes or {}, *(event.attributes or {} for event in span.events)])
        return ReadableSpan(
            name=span.name,
            context=span.context,
            parent=span.parent,
            resource=span.resource,
            attributes=shown(span.attributes),
            events=[Event(event.name, shown(event.attributes), event.timestamp) for event in span.events],
            links=[Link(link.context, shown(link.attributes)) for link in span.links],
            kind=span.kind,
            status=Status(span.status.status_code),
            start_time=span.start_time,
            end_time=span.end_time,
            instrumentation_scope=span.instrumentation_scope,
        )

    def _shown(self, attributes: Attributes | None) -> dict[str, Any]:
        return {name: self._one(name, value) for name, value in (attributes or {}).items()}

    def _one(self, name: str, value: Any) -> Any:
        if name in self._clear:
            return value
        type_ = self._types.get(name)
        texts = None if type_ is None else texts_of(value)
        if type_ is None or texts is None:
            return OTHER
        shown = [self._background.shown(type_, text) == text for text in texts]  # each one is asked about
        return value if all(shown) and OTHER not in texts else OTHER

    def _join(self, client: str | int, all_attributes: Iterable[Attributes]) -> None:
        """Join the sets of the values. When a client joins does not depend on any answer."""
        now = time.monotonic()
        for attributes in all_attributes:
            for name in attributes.keys() & self._types.keys():
                for text in texts_of(attributes[name]) or ():
                    join = self._types[name], value_id(text), client
                    if self._joined.get(join, now) <= now and self._background.join(join[0], text, client):
                        self._joined.pop(join, None)
                        self._joined[join] = now + JOIN_AGAIN
        if len(self._joined) > MOST_JOINED:
            self._joined.clear()


def texts_of(value: Any) -> list[str] | None:
    """The texts of the values of an attribute; None if it has another form."""
    values = value if isinstance(value, list | tuple) else [value]
    texts = [one if isinstance(one, str) else json.dumps(one) for one in values if isinstance(one, str | int)]
    try:
        "".join(texts).encode()
    except UnicodeEncodeError:
        return None
    return texts if texts and len(texts) == len(values) else None
