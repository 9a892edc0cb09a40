"""Made-up devices: a table of events becomes encrypted reports.

Two kinds of client, by the columns of the table:

* ``windows``: ``time,client,key`` and optionally ``value`` (1 if left out). The unit is a (client, window).
* ``attribution``: ``time,client,event,destination,key`` and optionally ``value`` and ``priority``. ``event`` is
  ``source`` or ``trigger``; the key of a report is the source's key OR the trigger's. The unit is a source.
"""

import csv
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from pathlib import Path

from kanon.errors import KanonError
from kanon.reports.clients import windows
from kanon.reports.clients.attribution import (
    Amount,
    Attribution,
    Device,
    KeyPiece,
    Source,
    Trigger,
    Values,
    add_source,
    add_trigger,
)
from kanon.reports.clients.report import MAX_BUCKET, SECOND, Report
from kanon.reports.clients.windows import Windows

Row = Mapping[str, str]
NAME = "key"
"""Of the one key that a source has here."""


class EventsError(KanonError):
    """A table of events cannot be used; the message says what to change, and names no key or client."""


@dataclass(frozen=True)
class Event:
    """One line of the table.

    Attributes:
        time: milliseconds.
        client: the device.
        key: the bucket, or a piece of it.
        value: what is added.
        event: ``source``, ``trigger`` or empty.
        destination: where a trigger happens; empty for windows.
        priority: of a source.
    """

    time: int
    client: str
    key: int
    value: int = 1
    event: str = ""
    destination: str = ""
    priority: int = 0


def read_events(path: Path, columns: Iterable[str]) -> list[Event]:
    """Read a CSV with a header, and sort it by time; lines of the same time keep their order.

    Raises:
        EventsError: the file, a column or a field cannot be used.
    """
    wanted = set(columns)
    try:
        with path.open(newline="", encoding="utf-8") as lines:
            rows = csv.DictReader(lines)
            if missing := wanted - set(rows.fieldnames or ()):
                raise EventsError(f"{path} lacks the columns {', '.join(sorted(missing))}: add them to the header")
            events = [_event(row, path, rows.line_num) for row in rows]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise EventsError(f"{path} cannot be read: give a CSV file in UTF-8") from error
    return sorted(events, key=lambda event: event.time)


WINDOW_COLUMNS = ("time", "client", "key")
ATTRIBUTION_COLUMNS = (*WINDOW_COLUMNS, "event", "destination")


def from_windows(events: Iterable[Event], parameters: Windows) -> Iterator[Report]:
    """One report for every event (P, Algorithm 3)."""
    return windows.contributions(parameters, ((e.client, e.time, e.key, e.value) for e in events))


def from_attribution(
    events: Iterable[Event], parameters: Attribution, reporting_origin: str, delay: Callable[[], int]
) -> Iterator[Report]:
    """One report for every trigger (P, Algorithm 2).

    Args:
        events: in order of time.
        parameters: policy and bound.
        reporting_origin: who measures.
        delay: draws the milliseconds after which a report is sent.
    """
    devices: dict[str, Device] = {}
    for event in events:
        device = devices.get(event.client, ())
        if event.event == "source":
            destinations = frozenset({event.destination})
            source = Source(event.time, reporting_origin, destinations, keys={NAME: event.key}, priority=event.priority)
            devices[event.client] = add_source(parameters, device, source)
        else:
            trigger = Trigger(
                event.time,
                reporting_origin,
                event.destination,
                pieces=(KeyPiece(event.key, frozenset({NAME})),),
                values=(Values({NAME: Amount(event.value)}),),
            )
            attributed = add_trigger(parameters, device, trigger, delay())
            devices[event.client] = attributed.device
            assert attributed.report is not None  # the trigger asks for one
            yield attributed.report


def _event(row: Row, path: Path, line: int) -> Event:
    try:
        event = Event(
            _time(row["time"]),
            row["client"],
            _key(row["key"]),
            _number(row, "value", 1),
            row.get("event") or "",
            row.get("destination") or "",
            _number(row, "priority", 0),
        )
    except (ValueError, TypeError, AttributeError, InvalidOperation, OverflowError) as error:
        raise EventsError(
            f"{path}, line {line}: a time is unix seconds or ISO 8601, a key a number, 0x... or a text of at most 16"
            " bytes, a value 0 to 4294967295"
        ) from error
    if "event" in row and event.event not in {"source", "trigger"}:
        raise EventsError(f"{path}, line {line}: `event` is source or trigger")
    return event


def _time(text: str) -> int:
    """Unix seconds or ISO 8601 (UTC unless it says otherwise), as milliseconds; exactly, without floats."""
    try:
        milliseconds = int(Decimal(text) * SECOND)
    except InvalidOperation:
        moment = datetime.fromisoformat(text)
        moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
        passed = moment - datetime(1970, 1, 1, tzinfo=UTC)
        milliseconds = (passed.days * 86_400 + passed.seconds) * SECOND + passed.microseconds // 1000
    if milliseconds < 0:
        raise ValueError("a time before 1970")
    return milliseconds


def _key(text: str) -> int:
    """A decimal number, 0x and hexadecimal digits, or a text whose UTF-8 bytes are the number, big-endian."""
    if text.isascii() and text.isdigit():
        key = int(text)
    elif text.startswith("0x"):
        key = int(text, 16)
    else:
        key = int.from_bytes(text.encode(), "big")
    if not text or key > MAX_BUCKET:
        raise ValueError("no key of 16 bytes")
    return key


def _number(row: Row, column: str, default: int) -> int:
    text = row.get(column)
    number = int(text) if text else default
    if column == "value" and not 0 <= number < 2**32:
        raise ValueError("no value of 32 bits")
    return number
