"""Event-level reports of one source (Privacy Sandbox paper, Algorithm 4), and the file of their responses.

A trigger adds to its datum's sum. When the sum reaches the next summary bucket, the source gets a report of that datum
for the trigger's report window, at most ``max_reports`` in all. The reports are a matrix of counts: the true matrix, or
the one drawn at the source's registration.
"""

import json
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from itertools import pairwise
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from kanon.errors import Error
from kanon.reports.clients.encrypt import SECOND
from kanon.reports.clients.response import MAX_EPSILON, Limits, Output, Outputs, RandomBits, Response
from kanon.reports.job import decimal, written
from kanon.strict_json import parse

LAST_VALUE = 2**32 - 1
"""The end of the last summary bucket, and the largest value of a trigger."""

EPSILON = Fraction(MAX_EPSILON)
"""The default epsilon of event-level reports (Chromium's value)."""


class EventsError(Error, ValueError):
    """A table of events, a file of responses or a parameter is invalid.

    The message says what to change, and names no key or client.
    """


@dataclass(frozen=True)
class DatumSpec:
    """The reports that one trigger datum may cause.

    Attributes:
        ends: ends of the report windows, in milliseconds after the registration, increasing. A window includes its end
            and begins after the end of the previous one.
        buckets: sums at which the first, second, ... report is made, increasing.
    """

    ends: tuple[int, ...]
    buckets: tuple[int, ...]

    def __post_init__(self) -> None:
        if not _increasing((0, *self.ends)) or not self.ends:
            raise ValueError("report windows must end one after the other, after the registration")
        if not _increasing((0, *self.buckets)) or not self.buckets or self.buckets[-1] > LAST_VALUE:
            raise ValueError("summary buckets must increase, from 1 to at most 4294967295")

    def window_of(self, age: int) -> int | None:
        """The report window of a trigger, by the source's age; None after all windows."""
        return next((window for window, end in enumerate(self.ends) if age <= end), None)


@dataclass(frozen=True)
class EventSpec:
    """The event-level reports that one source may have.

    Attributes:
        data: windows and buckets of the trigger data 0, 1, ...
        max_reports: the most reports of the source.

    Raises:
        ValueError: there are more than 32 data, 5 windows or 20 reports.
    """

    data: tuple[DatumSpec, ...]
    max_reports: int

    def __post_init__(self) -> None:
        _ = self.outputs  # within the limits

    @cached_property
    def outputs(self) -> Outputs:
        """The set of all possible outputs."""
        return Outputs(tuple(Limits(len(own.ends), len(own.buckets)) for own in self.data), self.max_reports)


@dataclass(frozen=True)
class EventTrigger:
    """The event-level part of a trigger: its datum, and what it adds to the datum's sum."""

    datum: int
    value: int = 1

    def __post_init__(self) -> None:
        if not 1 <= self.value <= LAST_VALUE:
            raise ValueError("the value of an event-level trigger must be from 1 to 4294967295")


@dataclass(frozen=True)
class Events:
    """The event-level state of one source.

    Attributes:
        spec: what it may report.
        replaced: the output drawn at registration; None: the true output is reported.
        truth: the true output of the recorded triggers. It does not depend on ``replaced``, so attribution does not
            depend on the draw.
        sums: the sum of each datum.
    """

    spec: EventSpec
    replaced: Output | None
    truth: Output
    sums: tuple[int, ...]

    @property
    def finished(self) -> bool:
        """Whether the true output has all its reports: then triggers belong to other sources."""
        return sum(map(sum, self.truth)) == self.spec.max_reports

    @property
    def told(self) -> Output:
        """The output that is reported. The counts of a window are final from its end on."""
        return self.truth if self.replaced is None else self.replaced


def register(spec: EventSpec, epsilon: Fraction = EPSILON, random_bits: RandomBits = secrets.randbits) -> Events:
    """A new source: the randomised response is drawn here, once.

    Privacy guarantee: the reports of the source are epsilon-DP for its triggers (Privacy Sandbox paper, Theorem 5.1).
    """
    nothing = tuple((0,) * len(own.ends) for own in spec.data)
    replaced = Response(spec.outputs, epsilon).decide(random_bits)
    return Events(spec, replaced, nothing, (0,) * len(spec.data))


def record(events: Events, trigger: EventTrigger, age: int) -> Events:
    """The source with one more trigger; triggers are recorded in the order of time.

    A trigger after all windows, or with a datum that the source does not have, changes nothing.
    """
    datum, spec = trigger.datum, events.spec
    if not 0 <= datum < len(spec.data) or (window := spec.data[datum].window_of(age)) is None:
        return events
    reached = events.sums[datum] + trigger.value
    made, left = sum(events.truth[datum]), spec.max_reports - sum(map(sum, events.truth))
    new = min(sum(bucket <= reached for bucket in spec.data[datum].buckets) - made, left)
    counts = tuple(count + new * (w == window) for w, count in enumerate(events.truth[datum]))
    return replace(
        events,
        truth=(*events.truth[:datum], counts, *events.truth[datum + 1 :]),
        sums=(*events.sums[:datum], reached, *events.sums[datum + 1 :]),
    )


def _increasing(numbers: tuple[int, ...]) -> bool:
    return all(one < other for one, other in pairwise(numbers))


@dataclass(frozen=True)
class Reporting:
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
        return Response(self.spec.outputs, self.epsilon)


class ResponseFile(BaseModel):
    """The JSON of randomised responses: one output for every source, with the parameters that estimates need."""

    model_config = ConfigDict(extra="forbid", strict=True)

    epsilon: str
    data: int
    windows: list[int]
    reports: int
    responses: list[list[list[Annotated[int, Field(ge=0)]]]]
    written_by: str = ""


def document(reporting: Reporting, told: Sequence[Output]) -> bytes:
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


def read_responses(text: str) -> tuple[Reporting, list[Output]]:
    """Read a file of responses.

    Raises:
        EventsError: it is not such a file, or a response is not a possible output.
    """
    try:
        file = ResponseFile.model_validate(parse(text))
        epsilon = decimal(file.epsilon, "epsilon")
    except (ValueError, RecursionError) as error:
        raise EventsError("this is not a file of responses: write one with `kanon reports respond`") from error
    reporting = Reporting(epsilon, file.data, tuple(file.windows), file.reports)
    told = [tuple(map(tuple, rows)) for rows in file.responses]
    shape = [len(reporting.windows)] * reporting.data
    if any([len(row) for row in output] != shape or sum(map(sum, output)) > reporting.reports for output in told):
        raise EventsError("a response is not an output that a source of these parameters can have")
    return reporting, told
