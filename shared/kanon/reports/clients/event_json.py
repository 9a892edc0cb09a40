"""Event-level reports as JSON in clear. Their noise is already added."""

from collections.abc import Mapping
from typing import NamedTuple

from kanon.reports.clients.attribution import Device, Stored
from kanon.reports.clients.events import EventReport
from kanon.reports.clients.report import SECOND
from kanon.reports.clients.response import Response

PATH = "/.well-known/attribution-reporting/report-event-attribution"
RATE_DIGITS = 7
"""Decimals of ``randomized_trigger_rate``, as browsers round it."""

Body = Mapping[str, object]


class Sent(NamedTuple):
    """An event-level report and its send time, in milliseconds."""

    time: int
    reporting_origin: str
    body: Body


def reports_due(device: Device, after: int, until: int) -> list[Sent]:
    """The event-level reports of all sources with a send time in ``(after, until]``, in order of time.

    This includes sources without triggers and inactive sources: outputs were drawn for them too.
    """
    found = []
    for stored in device:
        if stored.events is not None:
            start = stored.source.time
            due = stored.events.reports(after - start, until - start)
            found += [Sent(start + one.age, stored.source.reporting_origin, _body(stored, one)) for one in due]
    return sorted(found, key=lambda sent: sent.time)


def _body(stored: Stored, report: EventReport) -> Body:
    source, events = stored.source, stored.events
    assert events is not None
    destinations = sorted(source.destinations)
    rate = Response(events.spec.outputs, events.epsilon).trigger_rate
    return {
        "attribution_destination": destinations[0] if len(destinations) == 1 else destinations,
        "randomized_trigger_rate": round(rate, RATE_DIGITS),
        "scheduled_report_time": str((source.time + report.age) // SECOND),
        "source_event_id": str(source.event_id),
        "source_type": source.kind,
        "trigger_data": str(report.trigger_data),
    } | ({"trigger_summary_bucket": list(report.bucket)} if events.spec.tells_bucket else {})
