"""Simulated devices: a table of events becomes encrypted reports, or a file of randomised responses.

Two kinds of client, by the columns of the table:

* ``windows``: ``time,client,key`` and optionally ``value`` (1 if left out). The unit is a (client, window).
* ``attribution``: ``time,client,event,destination,key`` and optionally ``value``. ``event`` is ``source`` or
  ``trigger``; the key of a report is the source's key OR the trigger's. The unit is a source. The key of a trigger is
  its datum in event-level reports.
"""

import csv
import json
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from functools import cached_property
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from kanon.errors import Error
from kanon.reports.clients.devices import (
    DELAY,
    Attribution,
    KeyPiece,
    Source,
    Sources,
    Trigger,
    Windows,
    add_source,
    add_trigger,
    contributions,
)
from kanon.reports.clients.encrypt import MAX_BUCKET, SECOND, ClientReport
from kanon.reports.clients.events import MAX_EPSILON, DatumSpec, EventSpec, EventTrigger, Output, RandomBits, Response
from kanon.reports.job import decimal, written
from kanon.reports.shared_info import END_OF_TIME
from kanon.strict_json import parse

NAME = "key"
"""The name of the only key of a source."""


class EventsError(Error, ValueError):
    """A table of events, a file of responses or a parameter is invalid.

    The message says what to change, and names no key or client.
    """


@dataclass(frozen=True)
class Event:
    """One line of the table.

    Attributes:
        time: milliseconds.
        client: the device.
        key: the bucket, or a piece of it.
        value: what is added.
        event: ``source``, ``trigger`` or empty.
        destination: the site of a trigger; empty for windows.
    """

    time: int
    client: str
    key: int
    value: int = 1
    event: str = ""
    destination: str = ""


WINDOW_COLUMNS = ("time", "client", "key")
ATTRIBUTION_COLUMNS = (*WINDOW_COLUMNS, "event", "destination")


def read_events(path: Path, columns: Iterable[str]) -> list[Event]:
    """Read a CSV with a header, and sort it by time; lines of the same time keep their order.

    Raises:
        EventsError: the file, a column or a field is invalid.
    """
    wanted = set(columns)
    try:
        with path.open(newline="", encoding="utf-8") as lines:
            rows = csv.DictReader(lines)
            if missing := wanted - set(rows.fieldnames or ()):
                raise EventsError(f"{path} lacks the columns {', '.join(sorted(missing))}: add them to the header")
            events = [_event(row, path, rows.line_num, "event" in wanted) for row in rows]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise EventsError(f"{path} cannot be read: give a CSV file in UTF-8") from error
    return sorted(events, key=lambda event: event.time)


def read_keys(text: str) -> list[int]:
    """The distinct keys of a text, ascending: one per line, written as in the column ``key`` of a table.

    Raises:
        EventsError: a line is not a key, or there is none.
    """
    keys = set()
    for number, line in enumerate(text.removesuffix("\n").split("\n"), 1):
        try:
            keys.add(_key(line.removesuffix("\r")))
        except ValueError as error:
            raise EventsError(
                f"line {number} of the keys: a key is a number, 0x... or a text of at most 16 bytes"
            ) from error
    return sorted(keys)


def _event(row: Mapping[str, str], path: Path, line: int, attribution: bool) -> Event:
    try:
        event = Event(_time(row["time"]), row["client"], _key(row["key"]), _value(row.get("value")))
        if attribution:
            event = replace(event, event=row["event"], destination=row["destination"] or "")
    except (ValueError, TypeError, AttributeError, ArithmeticError) as error:
        raise EventsError(
            f"{path}, line {line}: a time is unix seconds or ISO 8601, a key a number, 0x... or a text of at most 16"
            " bytes, a value 0 to 4294967295"
        ) from error
    if attribution and (event.event not in {"source", "trigger"} or not event.destination):
        raise EventsError(f"{path}, line {line}: `event` is source or trigger, and each has a `destination`")
    return event


def _time(text: str) -> int:
    """Unix seconds or ISO 8601 (UTC if it has no offset), as exact milliseconds."""
    try:
        milliseconds = int(Decimal(text) * SECOND)
    except InvalidOperation:
        moment = datetime.fromisoformat(text)
        moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
        passed = moment - datetime(1970, 1, 1, tzinfo=UTC)
        milliseconds = (passed.days * 86_400 + passed.seconds) * SECOND + passed.microseconds // 1000
    if not 0 <= milliseconds < END_OF_TIME * SECOND:
        raise ValueError("a time before 1970 or after 9999")
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


def _value(text: str | None) -> int:
    """The number in the column ``value``; 1 if there is none."""
    value = int(text) if text else 1
    if not 0 <= value < 2**32:
        raise ValueError("no value of 32 bits")
    return value


def reports_of(events: Iterable[Event], client: Windows | Attribution, reporting_origin: str) -> Iterator[ClientReport]:
    """The reports that simulated clients with these parameters make of a table in order of time, in its order."""
    if isinstance(client, Windows):
        return contributions(client, ((e.client, e.time, e.key, e.value) for e in events))
    return from_attribution(events, client, reporting_origin, random_delay)


def random_delay() -> int:
    """A uniform delay of a report, in milliseconds."""
    return secrets.randbelow(DELAY + 1)


def from_attribution(
    events: Iterable[Event], parameters: Attribution, reporting_origin: str, delay: Callable[[], int]
) -> Iterator[ClientReport]:
    """One report for every trigger of events in order of time (Privacy Sandbox paper, Algorithm 2).

    ``delay`` draws the delay of a report, in milliseconds.
    """
    devices: dict[str, Sources] = {}
    for event in events:
        device = devices.get(event.client, ())
        if event.event == "source":
            devices[event.client] = add_source(parameters, device, _source(event, reporting_origin))
        else:
            attributed = add_trigger(parameters, device, _trigger(event, reporting_origin), delay())
            devices[event.client] = attributed.device
            assert attributed.report is not None  # the trigger asks for a report
            yield attributed.report


def _source(event: Event, reporting_origin: str) -> Source:
    return Source(event.time, reporting_origin, frozenset({event.destination}), keys={NAME: event.key})


def _trigger(event: Event, reporting_origin: str) -> Trigger:
    pieces = (KeyPiece(event.key, frozenset({NAME})),)
    return Trigger(event.time, reporting_origin, event.destination, pieces, {NAME: event.value})


# ------------------------------------------------------------------------------------------- randomised responses
@dataclass(frozen=True)
class ResponseParameters:
    """What every source of a file may report, and how it is protected.

    Attributes:
        epsilon: of the randomised response of one source, above 0 and at most 14.
        data: trigger data are 0 to ``data - 1``.
        windows: ends of the report windows, in seconds after the source.
        reports: the most reports of one source. Each trigger makes one report while there are some left.

    Raises:
        EventsError: a parameter is out of range.
    """

    epsilon: Fraction
    data: int
    windows: tuple[int, ...]
    reports: int

    def __post_init__(self) -> None:
        if not 0 < self.epsilon <= MAX_EPSILON:
            raise EventsError(f"epsilon must be above 0 and at most {MAX_EPSILON}")
        if not 1 <= self.data <= 32 or not 1 <= self.reports <= 20 or len(self.windows) > 5:
            raise EventsError("a source has 1 to 32 data, 1 to 20 reports and 1 to 5 windows")
        try:
            _ = self.spec
        except ValueError as error:
            raise EventsError(str(error)) from error

    @cached_property
    def spec(self) -> EventSpec:
        """The event-level reports of one source."""
        datum = DatumSpec(tuple(end * SECOND for end in self.windows), tuple(range(1, self.reports + 1)))
        return EventSpec((datum,) * self.data, self.reports)

    @property
    def response(self) -> Response:
        """The randomised response of one source."""
        return Response(self.spec, self.epsilon)


def responses(
    events: Iterable[Event], reporting: ResponseParameters, random_bits: RandomBits = secrets.randbits
) -> list[Output]:
    """The randomised response of every source, in the order of the sources (Privacy Sandbox paper, Algorithm 4).

    Events are in order of time. A trigger counts once for the newest source of its client and destination that has
    reports left, whatever its value.

    Raises:
        EventsError: the key of a trigger is not a datum.
    """
    parameters = Attribution(epsilon=reporting.epsilon)
    spec, last = reporting.spec, max(reporting.windows) * SECOND + 1
    devices: dict[str, Sources] = {}
    order = []
    for event in events:
        device = devices.get(event.client, ())
        places = frozenset({event.destination})
        if event.event == "source":
            order.append((event.client, len(device)))
            device = add_source(parameters, device, Source(event.time, "", places, {}, last, spec), random_bits)
        elif event.key >= reporting.data:
            raise EventsError(f"the key of a trigger must be from 0 to {reporting.data - 1}, or give a larger --data")
        else:
            trigger = Trigger(event.time, "", event.destination, event=EventTrigger(event.key))
            device = add_trigger(parameters, device, trigger).device
        devices[event.client] = device
    states = (devices[client][place].events for client, place in order)
    return [state.told for state in states if state is not None]


class ResponseFile(BaseModel):
    """The JSON of randomised responses: one output for every source, with the parameters that estimates need."""

    model_config = ConfigDict(extra="forbid", strict=True)

    epsilon: str
    data: int
    windows: list[int]
    reports: int
    responses: list[list[list[Annotated[int, Field(ge=0)]]]]
    written_by: str = ""


def document(reporting: ResponseParameters, told: Sequence[Output]) -> bytes:
    """The JSON of responses, one line for each source."""
    parameters = {
        "epsilon": written(reporting.epsilon),
        "data": reporting.data,
        "windows": reporting.windows,
        "reports": reporting.reports,
    }
    head = "".join(f"  {json.dumps(name)}: {json.dumps(value)},\n" for name, value in parameters.items())
    lines = ",\n".join(map(json.dumps, told))
    return f'{{\n{head}  "responses": [\n{lines}\n]}}\n'.encode()


def read_responses(text: str) -> tuple[ResponseParameters, list[Output]]:
    """Read a file of responses.

    Raises:
        EventsError: it is not such a file, or a response is not a possible output.
    """
    try:
        file = ResponseFile.model_validate(parse(text))
        epsilon = decimal(file.epsilon, "epsilon")
    except (ValueError, RecursionError) as error:
        raise EventsError("this is not a file of responses: write one with `kanon reports respond`") from error
    reporting = ResponseParameters(epsilon, file.data, tuple(file.windows), file.reports)
    told = [tuple(map(tuple, rows)) for rows in file.responses]
    shape = [len(reporting.windows)] * reporting.data
    if any([len(row) for row in output] != shape or sum(map(sum, output)) > reporting.reports for output in told):
        raise EventsError("a response is not an output that a source of these parameters can have")
    return reporting, told
