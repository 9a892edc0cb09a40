"""Event-level reports of one source (Privacy Sandbox paper, Algorithm 4), with randomised response.

A trigger adds to its datum's sum. When the sum reaches the next summary bucket, the source gets a report of that datum
for the trigger's report window, at most ``max_reports`` in all. The reports are a matrix of counts: the true matrix, or
the one drawn at the source's registration.
"""

import secrets
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from itertools import pairwise

from kanon.reports.clients.outputs import Datum, Output, Outputs
from kanon.reports.clients.response import RandomBits, Response

LAST_VALUE = 2**32 - 1
"""The end of the last summary bucket, and the largest value of a trigger."""

EPSILON = Fraction(14)
"""The default epsilon of event-level reports (Chromium's value)."""


@dataclass(frozen=True)
class TriggerSpec:
    """The reports that some trigger data may cause.

    Attributes:
        data: the trigger data, in the order of the outputs.
        ends: ends of the report windows, in milliseconds after the registration, increasing. A window includes its end
            and begins after the end of the previous one.
        buckets: sums at which the first, second, ... report is made, increasing.
    """

    data: tuple[int, ...]
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
        specs: trigger data with windows and buckets; each datum is in one specification.
        max_reports: the most reports of the source.

    Raises:
        ValueError: a datum is there twice, or there are more than 32 data, 5 windows or 20 reports.
    """

    specs: tuple[TriggerSpec, ...]
    max_reports: int

    def __post_init__(self) -> None:
        data = [datum for spec in self.specs for datum in spec.data]
        if len(set(data)) != len(data):
            raise ValueError("a trigger datum may be in one specification only")
        _ = self.outputs  # within the limits

    @cached_property
    def rows(self) -> tuple[tuple[int, TriggerSpec], ...]:
        """The rows of an output: each trigger datum with its specification."""
        return tuple((datum, spec) for spec in self.specs for datum in spec.data)

    @cached_property
    def outputs(self) -> Outputs:
        """The set of all possible outputs."""
        return Outputs(tuple(Datum(len(spec.ends), len(spec.buckets)) for _, spec in self.rows), self.max_reports)

    def row_of(self, trigger_data: int) -> int | None:
        """The row of a trigger's data; None if the source has no such datum."""
        return next((row for row, (datum, _) in enumerate(self.rows) if datum == trigger_data), None)


@dataclass(frozen=True)
class EventTrigger:
    """The event-level part of a trigger: its datum, and what it adds to the datum's sum."""

    data: int
    value: int = 1

    def __post_init__(self) -> None:
        if not 1 <= self.value <= LAST_VALUE:
            raise ValueError("the value of an event-level trigger must be from 1 to 4294967295")


@dataclass(frozen=True)
class Events:
    """The event-level state of one source.

    Attributes:
        spec: what it may report.
        epsilon: of its randomised response.
        replaced: the output drawn at registration; None: the true output is reported.
        truth: the true output of the recorded triggers. It does not depend on ``replaced``, so attribution does not
            depend on the draw.
        sums: the sum of each datum.
    """

    spec: EventSpec
    epsilon: Fraction
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
    nothing = tuple((0,) * len(own.ends) for _, own in spec.rows)
    replaced = Response(spec.outputs, epsilon).decide(random_bits)
    return Events(spec, epsilon, replaced, nothing, (0,) * len(spec.rows))


def record(events: Events, trigger: EventTrigger, age: int) -> Events:
    """The source with one more trigger; triggers are recorded in the order of time.

    A trigger after all windows, or with data that the source does not have, changes nothing.
    """
    row = events.spec.row_of(trigger.data)
    if row is None:
        return events
    _, own = events.spec.rows[row]
    window = own.window_of(age)
    if window is None:
        return events
    reached = events.sums[row] + trigger.value
    made, left = sum(events.truth[row]), events.spec.max_reports - sum(map(sum, events.truth))
    new = min(sum(bucket <= reached for bucket in own.buckets) - made, left)
    counts = tuple(count + new * (w == window) for w, count in enumerate(events.truth[row]))
    return replace(
        events,
        truth=(*events.truth[:row], counts, *events.truth[row + 1 :]),
        sums=(*events.sums[:row], reached, *events.sums[row + 1 :]),
    )


def _increasing(numbers: tuple[int, ...]) -> bool:
    return all(one < other for one, other in pairwise(numbers))
