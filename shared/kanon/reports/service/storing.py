"""From queue messages to objects: one Avro file of reports for each api and bucket of origins.

A batch writes at most 64 objects an api, whatever its reports say, all at once and by a deadline. A message is done
when its object is written. A repeated message gives at most another object with the same report; jobs count a report
once.
"""

import base64
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextvars import copy_context
from dataclasses import dataclass, field
from io import BytesIO
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, TypeAdapter

from kanon.reports.avro import Report, write_reports
from kanon.reports.collecting import ReportMessage
from kanon.reports.shared_info import parse
from kanon.reports.storage.objects import bucket_of, name_of

PARALLEL = 16
"""Objects written at a time."""


class EventMessage(BaseModel):
    """An event-level report that an earlier version has queued. Nothing reads it, so it is dropped."""

    kind: Literal["event"]


Arrival = Annotated[ReportMessage | EventMessage, Field(discriminator="kind")]
ARRIVAL: TypeAdapter[ReportMessage | EventMessage] = TypeAdapter(Arrival)


@dataclass(frozen=True)
class File:
    """An object to write, and its messages."""

    key: str
    body: bytes
    messages: tuple[str, ...]


@dataclass
class ReportBatch:
    """The messages of a batch, by api and bucket of the origin, with the scheduled times of their reports."""

    reports: dict[tuple[str, str], dict[str, tuple[Report, int]]] = field(default_factory=dict)

    def add(self, message_id: str, body: str) -> None:
        """Read one message.

        Raises:
            ValidationError, KanonError: it is invalid.
        """
        message = ARRIVAL.validate_json(body)
        if isinstance(message, EventMessage):
            return
        origin = parse(message.shared_info).reporting_origin
        report = Report(base64.b64decode(message.payload), message.key_id, message.shared_info)
        place = self.reports.setdefault((message.api, bucket_of(origin)), {})
        place[message_id] = report, message.scheduled_report_time

    def files(self, now: float) -> Iterator[File]:
        """The objects. The same messages give the same objects in any order, within an hour."""
        for (api, bucket), reports in self.reports.items():
            file = BytesIO()
            write_reports(file, sorted({report for report, _ in reports.values()}))
            name = name_of(api, now, bucket, (scheduled for _, scheduled in reports.values()), file.getvalue())
            yield File(name, file.getvalue(), tuple(reports))


def write(files: Sequence[File], put: Callable[[str, bytes], Any], seconds: float) -> dict[str, Future[Any]]:
    """Write objects at the same time, each by ``put``. A write that has not begun after these seconds never begins.

    Returns:
        The outcome of each object by its name; a write that is not done has not succeeded.
    """
    pool = ThreadPoolExecutor(PARALLEL)
    outcomes = {file.key: pool.submit(copy_context().run, put, file.key, file.body) for file in files}
    wait(outcomes.values(), seconds)
    pool.shutdown(wait=False, cancel_futures=True)
    return outcomes
