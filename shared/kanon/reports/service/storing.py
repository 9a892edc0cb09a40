"""From queue messages to objects: one Avro file of reports for each api and scheduled hour, one file of events for each
hour.

An object is named by its content. A message is done when its object is written. A repeated message gives at most
another object with the same report; jobs count a report once.
"""

import base64
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from hashlib import sha256
from io import BytesIO

from pydantic import TypeAdapter

from kanon.reports.account import HOUR
from kanon.reports.avro import Report, write_reports
from kanon.reports.collecting import Arrival, EventMessage, ReportMessage

ARRIVAL: TypeAdapter[ReportMessage | EventMessage] = TypeAdapter(Arrival)


@dataclass(frozen=True)
class File:
    """An object to write, and its messages."""

    key: str
    body: bytes
    messages: tuple[str, ...]


@dataclass
class Batch:
    """The messages of a batch by the folder of their objects."""

    reports: dict[str, dict[str, Report]] = field(default_factory=dict)
    events: dict[str, dict[str, str]] = field(default_factory=dict)

    def add(self, message_id: str, body: str) -> None:
        """Read one message.

        Raises:
            ValidationError: it is invalid.
        """
        match ARRIVAL.validate_json(body):
            case ReportMessage() as report:
                folder = f"reports/{report.api}/{_hour(report.scheduled_report_time)}/"
                stored = Report(base64.b64decode(report.payload), report.key_id, report.shared_info)
                self.reports.setdefault(folder, {})[message_id] = stored
            case EventMessage() as event:
                self.events.setdefault(f"events/{_hour(event.received)}/", {})[message_id] = event.body

    def files(self) -> Iterable[File]:
        """The objects. The same messages give the same objects in any order."""
        for folder, reports in self.reports.items():
            file = BytesIO()
            write_reports(file, sorted(set(reports.values())))
            yield _file(folder, file.getvalue(), "avro", reports)
        for folder, events in self.events.items():
            lines = "".join(f"{line}\n" for line in sorted(set(events.values())))
            yield _file(folder, lines.encode(), "jsonl", events)


def _file(folder: str, body: bytes, suffix: str, messages: Mapping[str, object]) -> File:
    return File(f"{folder}{sha256(body).hexdigest()}.{suffix}", body, tuple(messages))


def _hour(seconds: int) -> str:
    """The folder of an hour, such as ``2026/01/31/23``."""
    return datetime.fromtimestamp(seconds // HOUR * HOUR, UTC).strftime("%Y/%m/%d/%H")
