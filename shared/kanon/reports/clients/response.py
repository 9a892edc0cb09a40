"""Randomised response over all outputs of a source: the noise of event-level reports.

It is that of section 5 of the Privacy Sandbox paper.

An *output* is a matrix of counts: ``n[d][w]`` reports of trigger datum ``d`` in window ``w``. Datum ``d`` has at most
as many reports as it has summary buckets, and all data together at most ``max_reports``. The set O of all outputs is
never listed: it has 2,925 members for a default navigation source, and may have 10^20.

With probability ``(e^eps - 1) / (e^eps + |O| - 1)`` the true output is kept. Otherwise a uniform member of O, which may
be the true one, replaces it. Then ``P(o | truth t) = e^eps / (e^eps + |O| - 1)`` if ``o = t``, and ``1 / (e^eps + |O| -
1)`` otherwise. The decision is made once, at the registration of the source, before any trigger. So it is also made for
sources without triggers.
"""

import math
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, lru_cache
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


class Limits(NamedTuple):
    """The limits of one trigger datum.

    Attributes:
        windows: number of report windows.
        buckets: number of summary buckets, which is the most reports of this datum.
    """

    windows: int
    buckets: int


@dataclass(frozen=True)
class Outputs:
    """All outputs of a source.

    Attributes:
        data: one entry for every trigger datum.
        max_reports: the most reports of the source.

    Raises:
        ValueError: more than 32 data, 5 windows or 20 reports, or a negative number.
    """

    data: tuple[Limits, ...]
    max_reports: int

    def __post_init__(self) -> None:
        if len(self.data) > MAX_DATA:
            raise ValueError(f"a source has at most {MAX_DATA} trigger data")
        if not 0 <= self.max_reports <= MAX_REPORTS:
            raise ValueError(f"a source has at most {MAX_REPORTS} event-level reports")
        if any(not 1 <= datum.windows <= MAX_WINDOWS for datum in self.data):
            raise ValueError(f"a trigger datum has 1 to {MAX_WINDOWS} report windows")
        if any(not 0 <= datum.buckets <= MAX_REPORTS for datum in self.data):
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
        for d, datum in enumerate(self.data):
            row: list[int] = []
            for later in reversed(range(datum.windows)):
                buckets, chosen = datum.buckets - sum(row), 0
                while number >= (ways := self._ways(d, later, buckets - chosen, left - chosen)):
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

    def _moments(self, datum: Limits) -> tuple[Fraction, Fraction]:
        rest = list(self.data)
        rest.remove(datum)
        others = Outputs(tuple(rest), self.max_reports)
        first = second = 0
        for j in range(1, min(datum.buckets, self.max_reports) + 1):
            for n in range(1, j + 1):  # n of the datum's j reports are in the window
                weight = others._from[0][self.max_reports - j] * _divisions(j - n, datum.windows - 1)
                first, second = first + n * weight, second + n * n * weight
        mean = Fraction(first, self.count)
        return mean, Fraction(second, self.count) - mean**2

    def _ways(self, d: int, windows: int, buckets: int, left: int) -> int:
        """The number of ways to fill the last windows of datum ``d``, and all data after it.

        The datum has ``buckets`` reports left, the source ``left``. There is no way for a negative rest.
        """
        return _fillings(windows, buckets, left, self._from[d + 1])

    @cached_property
    def _from(self) -> list[list[int]]:
        """``_from[d][left]``: the number of ways to fill the data from ``d`` on with at most ``left`` reports."""
        lefts = range(self.max_reports + 1)
        found = [[1 for _ in lefts]]
        for windows, buckets in reversed(self.data):
            found.append([_fillings(windows, buckets, left, found[-1]) for left in lefts])
        return found[::-1]


def _fillings(windows: int, buckets: int, left: int, after: Sequence[int]) -> int:
    """The number of ways to fill windows with at most ``buckets`` reports, and what follows with the rest of ``left``.

    ``after[n]`` is the number of ways to fill what follows with at most ``n`` reports.
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

    outputs: Outputs
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
            [self._estimate([output[d][w] for output in told], d) for w in range(datum.windows)]
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
