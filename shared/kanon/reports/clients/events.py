"""Event-level reports of one source (Privacy Sandbox paper, Algorithm 4), with randomised response.

A trigger adds to its datum's sum. When the sum reaches the next summary bucket, the source gets a report of that datum
for the trigger's report window, at most ``max_reports`` in all. The sent reports are a function of the matrix of
counts: the true matrix, or the one drawn at the source's registration.
"""

import secrets
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from itertools import pairwise
from typing import Literal

from kanon.reports.clients.outputs import Datum, Output, Outputs
from kanon.reports.clients.report import DAY
from kanon.reports.clients.response import MAX_INFORMATION_GAIN, RandomBits, Response, information_gain

Kind = Literal["navigation", "event"]
LAST_VALUE = 2**32 - 1
"""The end of the last summary bucket, and the largest value of a trigger."""

MAX_STATES = 2**32 - 1
"""The most outputs of one source (Chromium's trigger-state cardinality)."""

EPSILON = Fraction(14)
"""The browsers' default epsilon of event-level reports."""


@dataclass(frozen=True)
class TriggerSpec:
    """The reports that some trigger data may cause.

    Attributes:
        data: the trigger data, in the order of the outputs.
        ends: ends of the report windows, in milliseconds after the registration, increasing. A window includes its end
            and begins after the end of the previous one.
        buckets: sums at which the first, second, ... report is made, increasing.
        operator: ``count`` adds 1 a trigger, ``value_sum`` its value.
        start: the beginning of the first window, in milliseconds after the registration.
    """

    data: tuple[int, ...]
    ends: tuple[int, ...]
    buckets: tuple[int, ...]
    operator: Literal["count", "value_sum"] = "count"
    start: int = 0

    def __post_init__(self) -> None:
        if self.operator not in {"count", "value_sum"}:
            raise ValueError("a summary operator must be `count` or `value_sum`")
        if not _increasing((self.start, *self.ends)) or self.start < 0 or not self.ends:
            raise ValueError("report windows must end one after the other, after their start")
        if not _increasing((0, *self.buckets)) or not self.buckets or self.buckets[-1] > LAST_VALUE:
            raise ValueError("summary buckets must increase, from 1 to at most 4294967295")

    def window_of(self, age: int) -> int | None:
        """The report window of a trigger, by the source's age; None outside all windows."""
        if age < self.start:
            return None
        return next((window for window, end in enumerate(self.ends) if age <= end), None)


@dataclass(frozen=True)
class EventSpec:
    """The event-level reports that one source may have.

    Attributes:
        specs: trigger data with windows and buckets; each datum is in one specification.
        max_reports: the most reports of the source.
        matching: ``modulus`` maps a trigger's data to one of the source's, ``exact`` drops others.
        delay: milliseconds between the end of a window and the sending of its reports.
        tells_bucket: whether reports show their summary bucket.

    Raises:
        ValueError: the data do not suit the matching, or there are more than 32 data, 5 windows or 20 reports.
    """

    specs: tuple[TriggerSpec, ...]
    max_reports: int
    matching: Literal["modulus", "exact"] = "modulus"
    delay: int = 0
    tells_bucket: bool = False

    def __post_init__(self) -> None:
        if self.matching not in {"modulus", "exact"}:
            raise ValueError("trigger data matching must be `modulus` or `exact`")
        data = [datum for spec in self.specs for datum in spec.data]
        if len(set(data)) != len(data):
            raise ValueError("a trigger datum may be in one specification only")
        if self.matching == "modulus" and sorted(data) != list(range(len(data))):
            raise ValueError("with modulus matching the trigger data must be 0, 1, 2, ... without a gap")
        _ = self.outputs  # within the limits

    @cached_property
    def rows(self) -> tuple[tuple[int, TriggerSpec], ...]:
        """The rows of an output: each trigger datum with its specification."""
        return tuple((datum, spec) for spec in self.specs for datum in spec.data)

    @cached_property
    def outputs(self) -> Outputs:
        """The set of all possible outputs."""
        return Outputs(tuple(Datum(len(spec.ends), len(spec.buckets)) for _, spec in self.rows), self.max_reports)

    @property
    def ends(self) -> tuple[int, ...]:
        """All ends of windows, in order."""
        return tuple(sorted({end for spec in self.specs for end in spec.ends}))

    def row_of(self, trigger_data: int) -> int | None:
        """The row of a trigger's data; None if the source has no such datum."""
        if self.matching == "modulus":
            trigger_data = trigger_data % len(self.rows) if self.rows else trigger_data
        return next((row for row, (datum, _) in enumerate(self.rows) if datum == trigger_data), None)

    def allowed(self, kind: Kind, epsilon: Fraction) -> bool:
        """Whether browsers would accept the source: at most 11.5 bits (6.5 for views) and 2^32 - 1 outputs."""
        states = self.outputs.count
        return states <= MAX_STATES and information_gain(states, float(epsilon)) <= MAX_INFORMATION_GAIN[kind]


def default_spec(kind: Kind, window: int, delay: int = 0) -> EventSpec:
    """The default specification of a source.

    Navigation: data 0 to 7, three reports, windows that end after 2 days, 7 days and ``window`` milliseconds (the
    last alone if it is earlier). Event: data 0 and 1, one report, one window.
    """
    if kind == "event":
        return EventSpec((TriggerSpec((0, 1), (window,), (1,)),), 1, delay=delay)
    ends = (*(end for end in (2 * DAY, 7 * DAY) if end < window), window)
    return EventSpec((TriggerSpec(tuple(range(8)), ends, (1, 2, 3)),), 3, delay=delay)


@dataclass(frozen=True)
class EventTrigger:
    """The event-level part of a trigger."""

    data: int
    priority: int = 0
    value: int = 1
    deduplication_key: int | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.value <= LAST_VALUE:
            raise ValueError("the value of an event-level trigger must be from 1 to 4294967295")


@dataclass(frozen=True)
class Recorded:
    """A recorded trigger: its row, its window, and its sort key."""

    age: int
    row: int
    window: int
    value: int
    priority: int


@dataclass(frozen=True)
class EventReport:
    """An event-level report, apart from the fields of its source.

    Attributes:
        trigger_data: the datum.
        bucket: the first and last sum of the report's summary bucket.
        age: its send time, in milliseconds after the registration.
    """

    trigger_data: int
    bucket: tuple[int, int]
    age: int


@dataclass(frozen=True)
class Events:
    """The event-level state of one source.

    Attributes:
        spec: what it may report.
        epsilon: of its randomised response.
        replaced: the output drawn at registration; None: the true output is reported.
        triggers: the recorded triggers, in order. Recording does not depend on ``replaced``, so attribution does not
            depend on the draw.
        deduplication: keys of recorded triggers.
    """

    spec: EventSpec
    epsilon: Fraction = EPSILON
    replaced: Output | None = None
    triggers: tuple[Recorded, ...] = ()
    deduplication: frozenset[int] = field(default_factory=frozenset)

    @cached_property
    def truth(self) -> Output:
        """The true output of the triggers recorded so far."""
        return true_output(self.spec, self.triggers)

    @property
    def finished(self) -> bool:
        """Whether the true output has all its reports: then the source is inactive under the policy ``paper``."""
        return sum(map(sum, self.truth)) == self.spec.max_reports

    def reports(self, after: int, until: int) -> list[EventReport]:
        """The reports with a send age in ``(after, until]``. Those of a window are final from its end on."""
        output = self.truth if self.replaced is None else self.replaced
        return [report for report in reports_of(self.spec, output) if after < report.age <= until]


def register(spec: EventSpec, epsilon: Fraction = EPSILON, random_bits: RandomBits = secrets.randbits) -> Events:
    """A new source: the randomised response is drawn here, once.

    Privacy guarantee: the reports of the source are epsilon-DP for its triggers (Privacy Sandbox paper, Theorem 5.1).
    """
    return Events(spec, epsilon, Response(spec.outputs, epsilon).decide(random_bits))


def record(events: Events, trigger: EventTrigger, age: int) -> Events | None:
    """The source with one more trigger; None if the trigger is dropped.

    It is dropped outside all windows, for data that the source does not have, and for a deduplication key that
    was recorded before.
    """
    row = events.spec.row_of(trigger.data)
    if row is None or trigger.deduplication_key in events.deduplication:
        return None
    _, spec = events.spec.rows[row]
    window = spec.window_of(age)
    if window is None:
        return None
    value = trigger.value if spec.operator == "value_sum" else 1
    recorded = Recorded(age, row, window, value, trigger.priority)
    keys = events.deduplication if trigger.deduplication_key is None else {trigger.deduplication_key}
    return replace(events, triggers=(*events.triggers, recorded), deduplication=events.deduplication | keys)


def true_output(spec: EventSpec, triggers: Iterable[Recorded]) -> Output:
    """The true matrix of counts of these triggers.

    At each end of a window, reports are assigned to the waiting triggers by priority, then by time, while reports are
    left. Reports of the windows that end now are sent. The other triggers wait and compete again at the next end. With
    equal priorities this is the paper's order: by time.
    """
    triggers = list(triggers)
    counts = [[0] * len(row.ends) for _, row in spec.rows]
    sums = [0] * len(spec.rows)
    for end in spec.ends:
        waiting = [t for t in triggers if t.age <= end <= _end(spec, t)]
        for recorded in _reporting(spec, waiting, counts, sums):
            if _end(spec, recorded) == end:
                counts[recorded.row][recorded.window] += 1
        for recorded in waiting:
            if _end(spec, recorded) == end:
                sums[recorded.row] += recorded.value
    return tuple(map(tuple, counts))


def _reporting(spec: EventSpec, waiting: list[Recorded], counts: list[list[int]], sums: list[int]) -> list[Recorded]:
    """The triggers that cause a report, one entry per report, in order of priority."""
    made = [sum(row) for row in counts]
    sums = list(sums)
    found = []
    for recorded in sorted(waiting, key=lambda t: (-t.priority, t.age)):
        _, own = spec.rows[recorded.row]
        sums[recorded.row] += recorded.value
        reached = sum(bucket <= sums[recorded.row] for bucket in own.buckets)
        while made[recorded.row] < reached and sum(made) < spec.max_reports:
            made[recorded.row] += 1
            found.append(recorded)
    return found


def _end(spec: EventSpec, recorded: Recorded) -> int:
    return spec.rows[recorded.row][1].ends[recorded.window]


def reports_of(spec: EventSpec, output: Output) -> list[EventReport]:
    """The reports of an output, by send time, then by datum and bucket."""
    found = []
    for (datum, own), counts in zip(spec.rows, output, strict=True):
        buckets = [
            (first, last - 1) for first, last in zip(own.buckets, (*own.buckets[1:], LAST_VALUE + 1), strict=True)
        ]
        for end, count in zip(own.ends, counts, strict=True):
            found += [EventReport(datum, bucket, end + spec.delay) for bucket in buckets[:count]]
            buckets = buckets[count:]
    return sorted(found, key=lambda report: (report.age, report.trigger_data, report.bucket))


def _increasing(numbers: tuple[int, ...]) -> bool:
    return all(one < other for one, other in pairwise(numbers))
