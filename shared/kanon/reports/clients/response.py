"""Randomised response over all outputs of a source: the noise of event-level reports.

It is that of section 5 of the Privacy Sandbox paper.

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
from kanon.reports.clients.outputs import Output, Outputs

RandomBits = Callable[[int], int]
"""Returns a uniform integer of the given number of bits; ``secrets.randbits`` outside tests."""

WORD = 256
"""Bits of the word that decides whether the truth is kept."""

MAX_EPSILON = 14


@lru_cache(maxsize=1024)
def keep_threshold(states: int, epsilon: Fraction, word: int = WORD) -> int:
    """``floor(2^word (e^eps - 1) / (e^eps + states - 1))``, exact: the upper and lower bounds give the same integer.

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
        return 1 << word  # with one output there is nothing to protect
    bits = word + 64
    while True:
        low, high = ((bound - 1) * (1 << word) // (bound + states - 1) for bound in exp_bounds(Fraction(epsilon), bits))
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
