"""Event-level reports of one source, and their noise (Privacy Sandbox paper, Algorithm 4 and section 5).

A trigger adds to its datum's sum. When the sum reaches the next summary bucket, the source gets a report of that datum
for the trigger's report window, at most ``max_reports`` in all. The reports are an *output*: a matrix of counts,
``n[d][w]`` reports of trigger datum ``d`` in window ``w``. It is the true one, or the one drawn at the registration.
Datum ``d`` has at most as many reports as it has summary buckets, and all data together at most ``max_reports``. The
set O of all outputs is never listed: it has 2,925 members for a default navigation source, and may have 10^20.

With probability ``(e^eps - 1) / (e^eps + |O| - 1)`` the true output is kept. Otherwise a uniform member of O, which may
be the true one, replaces it. Then ``P(o | truth t) = e^eps / (e^eps + |O| - 1)`` if ``o = t``, and ``1 / (e^eps + |O| -
1)`` otherwise. The decision is made once, at the registration of the source, before any trigger. So it is also made for
sources without triggers.
"""

import math
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import NamedTuple

from kanon.noise.exact import exp_bounds

Output = tuple[tuple[int, ...], ...]
"""Counts of reports by datum, then by window."""

RandomBits = Callable[[int], int]
"""Returns a uniform integer of the given number of bits; ``secrets.randbits`` outside tests."""

WORD = 256
"""Bits of the word that decides whether the truth is kept."""

MAX_EPSILON = 14
MAX_DATA = 32
MAX_WINDOWS = 5
MAX_REPORTS = 20


LAST_VALUE = 2**32 - 1
"""The end of the last summary bucket, and the largest value of a trigger."""


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
    """The event-level reports that one source may have, and all its outputs.

    Attributes:
        data: windows and buckets of the trigger data 0, 1, ...
        max_reports: the most reports of the source.

    Raises:
        ValueError: more than 32 data, 5 windows or 20 reports, or a negative number.
    """

    data: tuple[DatumSpec, ...]
    max_reports: int

    def __post_init__(self) -> None:
        if len(self.data) > MAX_DATA:
            raise ValueError(f"a source has at most {MAX_DATA} trigger data")
        if not 0 <= self.max_reports <= MAX_REPORTS:
            raise ValueError(f"a source has at most {MAX_REPORTS} event-level reports")
        if any(len(datum.ends) > MAX_WINDOWS for datum in self.data):
            raise ValueError(f"a trigger datum has 1 to {MAX_WINDOWS} report windows")
        if any(len(datum.buckets) > MAX_REPORTS for datum in self.data):
            raise ValueError(f"a trigger datum has at most {MAX_REPORTS} summary buckets")

    @property
    def count(self) -> int:
        """The number of outputs, |O|; at least 1."""
        return self._from[0][self.max_reports]

    def unrank(self, number: int) -> Output:
        """The output with this number, ``0 <= number < count``. Numbers follow the order of the matrices.

        Raises:
            IndexError: no output has this number.
        """
        if not 0 <= number < self.count:
            raise IndexError("no output has this number")
        rows, left = [], self.max_reports
        for datum, after in zip(self.data, self._from[1:], strict=True):
            row: list[int] = []
            for later in reversed(range(len(datum.ends))):
                buckets, chosen = len(datum.buckets) - sum(row), 0
                while number >= (ways := _fillings(later, buckets - chosen, left - chosen, after)):
                    number -= ways
                    chosen += 1
                row.append(chosen)
                left -= chosen
            rows.append(tuple(row))
        return tuple(rows)

    @cached_property
    def moments(self) -> tuple[tuple[Fraction, Fraction], ...]:
        """Mean and variance of ``n[d][w]`` over O, by datum. They are the same for all windows of a datum."""
        found = {datum: self._moments(datum) for datum in set(self.data)}
        return tuple(found[datum] for datum in self.data)

    def _moments(self, datum: DatumSpec) -> tuple[Fraction, Fraction]:
        rest = list(self.data)
        rest.remove(datum)
        others = EventSpec(tuple(rest), self.max_reports)
        first = second = 0
        for j in range(1, min(len(datum.buckets), self.max_reports) + 1):
            for n in range(1, j + 1):  # n of the datum's j reports are in the window
                weight = others._from[0][self.max_reports - j] * _divisions(j - n, len(datum.ends) - 1)
                first, second = first + n * weight, second + n * n * weight
        mean = Fraction(first, self.count)
        return mean, Fraction(second, self.count) - mean**2

    @cached_property
    def _from(self) -> list[list[int]]:
        """``_from[d][left]``: the number of ways to fill the data from ``d`` on with at most ``left`` reports."""
        lefts = range(self.max_reports + 1)
        found = [[1 for _ in lefts]]
        for datum in reversed(self.data):
            windows, buckets = len(datum.ends), len(datum.buckets)
            found.append([_fillings(windows, buckets, left, found[-1]) for left in lefts])
        return found[::-1]


def _fillings(windows: int, buckets: int, left: int, after: Sequence[int]) -> int:
    """The number of ways to fill windows with at most ``buckets`` reports, and what follows with the rest of ``left``.

    ``after[n]`` is the number of ways to fill what follows with at most ``n`` reports. A negative rest has none.
    """
    return sum(_divisions(n, windows) * after[left - n] for n in range(min(buckets, left) + 1))


def _divisions(reports: int, windows: int) -> int:
    """The number of ways to divide reports among windows ("stars and bars")."""
    return math.comb(windows - 1 + reports, reports) if windows else int(reports == 0)


@lru_cache(maxsize=1024)
def keep_threshold(states: int, epsilon: Fraction) -> int:
    """``floor(2^256 (e^eps - 1) / (e^eps + states - 1))``, exact: the upper and lower bounds give the same integer.

    The truth is kept if a uniform word is below it. Rounding down keeps the truth less often, which favours privacy.

    Raises:
        ValueError: ``epsilon`` is negative or above 14, or ``states`` below 1.
    """
    if not 0 <= epsilon <= MAX_EPSILON:
        raise ValueError(f"the epsilon of event-level reports must lie between 0 and {MAX_EPSILON}")
    if states < 1:
        raise ValueError("a source must have at least one output")
    if epsilon == 0:
        return 0
    if states == 1:
        return 1 << WORD  # with one output there is nothing to protect
    bits = WORD + 64
    while True:
        low, high = ((bound - 1) * (1 << WORD) // (bound + states - 1) for bound in exp_bounds(Fraction(epsilon), bits))
        if low == high:
            return low
        bits *= 2


@dataclass(frozen=True)
class Response:
    """The randomised response of one source.

    Privacy guarantee: for any two truths t, u and any output o, ``P(o | t) <= e^eps P(o | u)``, exactly: the
    probability of keeping the truth is rounded down to a multiple of 2^-256, and the uniform draw has no bias.
    """

    outputs: EventSpec
    epsilon: Fraction

    @cached_property
    def threshold(self) -> int:
        """The truth is kept if a uniform word of 256 bits is less."""
        return keep_threshold(self.outputs.count, self.epsilon)

    @property
    def keep(self) -> Fraction:
        """The exact probability that the truth is kept."""
        return Fraction(self.threshold, 1 << WORD)

    def decide(self, random_bits: RandomBits = secrets.randbits) -> Output | None:
        """Decide for a new source: None keeps the truth; an output replaces it permanently."""
        if random_bits(WORD) < self.threshold:
            return None
        return self.outputs.unrank(uniform(self.outputs.count, random_bits))

    def estimates(self, told: Sequence[Output]) -> list[list["Estimate"]]:
        """Estimate the true numbers of reports from the outputs of all sources, with and without reports.

        Returns:
            An estimate for each datum and window. Let p be the probability that the truth is kept, and m and v mean and
            variance of a count over O. Of n counts o the estimate is ``(sum o - n (1 - p) m) / p``, and its variance
            is ``(1 - p) (sum (o - m)^2 + n p v) / p^2``. Both have no bias, whatever the truth is.

        Raises:
            ValueError: epsilon is 0: the reports hold no information.
        """
        if self.threshold == 0:
            raise ValueError("with epsilon 0 the reports hold no information: no estimate is possible")
        return [
            [self._estimate([output[d][w] for output in told], d) for w in range(len(datum.ends))]
            for d, datum in enumerate(self.outputs.data)
        ]

    def _estimate(self, counts: Sequence[int], d: int) -> "Estimate":
        keep, (mean, variance), n = self.keep, self.outputs.moments[d], len(counts)
        squares = sum(count**2 for count in counts) - 2 * mean * sum(counts) + n * mean**2
        return Estimate(
            (sum(counts) - n * (1 - keep) * mean) / keep,
            (1 - keep) * (squares + n * keep * variance) / keep**2,
        )


class Estimate(NamedTuple):
    """An estimate of a true number of reports. It may be negative.

    Attributes:
        reports: the number, without bias.
        variance: of ``reports``, without bias.
    """

    reports: Fraction
    variance: Fraction

    @property
    def standard_error(self) -> float:
        """The square root of the variance."""
        return math.sqrt(self.variance)


def uniform(below: int, random_bits: RandomBits) -> int:
    """A uniform integer in ``0 .. below - 1``: draws that are too large are drawn again."""
    bits = (below - 1).bit_length()
    while (number := random_bits(bits) if bits else 0) >= below:
        pass
    return number


def replace_probability(states: int, epsilon: float) -> float:
    """The probability that the truth is replaced: ``states / (e^eps + states - 1)``. For display, not for draws."""
    return states / (math.exp(epsilon) + states - 1)


def information_gain(states: int, epsilon: float) -> float:
    """The largest information of an output, in bits: the capacity of the symmetric channel over the outputs."""
    if states == 1:
        return 0.0
    wrong = replace_probability(states, epsilon) * (states - 1) / states
    entropy = -sum(p * math.log2(p) for p in (wrong, 1 - wrong) if p > 0)
    return math.log2(states) - entropy - wrong * math.log2(states - 1)


EPSILON = Fraction(MAX_EPSILON)
"""The default epsilon of event-level reports (Chromium's value)."""


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
    replaced = Response(spec, epsilon).decide(random_bits)
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
