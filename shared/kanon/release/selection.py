"""Selection rules: which groups a release names, and their noisy numbers of users.

Every rule looks at ``m = max(0, n - floor + 1)`` for a group of n users, and releases nothing unless m >= 1. So a
released group always has n >= floor. One user changes m by at most one, so a guarantee for m holds for n.

``released`` takes a uniform 64-bit word. ``delta`` is that of one user in one group, exact or rounded up. From
``sure_from`` users on, a group is certainly released.
"""

from bisect import bisect_left
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, lru_cache
from hashlib import sha256
from itertools import accumulate, pairwise

from kanon.noise.exact import exp_bounds
from kanon.noise.laws import Law, Table, two_sided
from kanon.noise.words import TOTAL
from kanon.release.deltas import shift_delta
from kanon.release.errors import SpecificationError

LARGEST_TRUNCATION = 10_000


def above_floor(users: int, floor: int) -> int:
    """``m = max(0, n - floor + 1)``: 1 for a group of exactly ``floor`` users."""
    return max(0, users - floor + 1)


class Thresholded:
    """Releases ``n + X`` if m >= 1 and ``m + X`` is above a threshold."""

    law: Table
    threshold: int
    floor: int

    def released(self, users: int, word: int) -> int | None:
        """The noisy number of users, or None."""
        m = above_floor(users, self.floor)
        noisy = m + self.law.draw(word)
        return noisy + self.floor - 1 if m >= 1 and noisy > self.threshold else None

    @property
    def sure_from(self) -> int:
        """The least n that is released even with the lowest noise."""
        return self.threshold - self.law.min + self.floor

    @cached_property
    def least_words(self) -> tuple[int, ...]:
        """For m = 0, 1, .. a lower bound of the words that release a group, exact if m >= 1.

        With the last m, that of ``sure_from`` users, it is 0. From there on it stays 0.
        """
        return tuple(below_or_at(self.law, self.threshold - m) for m in range(self.threshold - self.law.min + 2))


@dataclass(frozen=True)
class CountedSelection(Thresholded):
    """Release ``n + X`` if ``m + X > A``, X two-sided on -A..A (docs/proofs/release.md, S1).

    Privacy guarantee: (law.epsilon, delta) for one user in one group.
    """

    law: Law
    floor: int = 1

    @property
    def threshold(self) -> int:  # type: ignore[override]
        """A."""
        return self.law.truncation

    @cached_property
    def delta(self) -> Fraction:
        """The worst hockey-stick over m = 0 .. 2A + 1 and both directions of m users against m + 1.

        From 2A + 1 on, all are equal. Outcome ``v > A`` of m users has the weight of ``X = v - m``; "nothing" has the
        weight of ``X <= A - m``. The outcomes above A are a suffix of the table, so the sums for all m are suffix sums.
        """
        law = self.law
        low, _ = exp_bounds(law.epsilon)
        top, bottom = low.numerator, low.denominator
        span = 2 * law.truncation
        # Outcome v is X = v - m with m users and X = v - m - 1 with m + 1: neighbours in the table.
        fewer, more = [*law.weights, 0], [0, *law.weights]
        fewer_excess = _suffix_sums([max(0, p * bottom - q * top) for p, q in zip(fewer, more, strict=True)])
        more_excess = _suffix_sums([max(0, q * bottom - p * top) for p, q in zip(fewer, more, strict=True)])
        below = (0, *law.cumulative)
        worst = 0
        for m in range(span + 2):
            first = max(0, span + 1 - m)  # position of the outcome A + 1
            fewer_nothing, more_nothing = below[first], below[max(0, first - 1)]
            worst = max(
                worst,
                fewer_excess[first] + max(0, fewer_nothing * bottom - more_nothing * top),
                more_excess[first] + max(0, more_nothing * bottom - fewer_nothing * top),
            )
        return Fraction(worst, bottom * TOTAL)


def _suffix_sums(terms: list[int]) -> list[int]:
    """``sums[i] = sum(terms[i:])``, with a last entry 0."""
    return [*reversed(list(accumulate(reversed(terms)))), 0]


@lru_cache(maxsize=64)
def counted_selection(epsilon: Fraction, delta: Fraction, floor: int = 1) -> CountedSelection:
    """The rule with the least A whose delta is at most ``delta``.

    Raises:
        SpecificationError: no table reaches this delta.
    """
    _refuse_above_20(epsilon)

    def fits(truncation: int) -> bool:
        try:
            return CountedSelection(two_sided(epsilon, truncation)).delta <= delta
        except ValueError as error:
            raise SpecificationError(
                f"no noise table of epsilon {float(epsilon):.3g} a group reaches delta {float(delta):.3g} a group:"
                " raise --epsilon or --delta, or lower --groups-per-user"
            ) from error

    above = 1
    while not fits(above):
        above = min(2 * above, above + LARGEST_TRUNCATION // 4)
    least = bisect_left(range(above), x=True, lo=above // 2 + 1, key=fits)
    return CountedSelection(two_sided(epsilon, least), floor)


@dataclass(frozen=True)
class OptimalSelection:
    """Keep a group of m users with probability ``weights[m] / 2**64``, without a count: pi_opt (S2; T 4.3.2).

    Privacy guarantee: (epsilon, delta) for one user in one group. Up to rounding, no rule keeps a group with a higher
    probability.
    """

    epsilon: Fraction
    weights: tuple[int, ...]
    floor: int = 1

    def released(self, users: int, word: int) -> int | None:
        """0 if the group is kept, otherwise None. The rule releases no number of users."""
        m = min(above_floor(users, self.floor), len(self.weights) - 1)
        return 0 if word < self.weights[m] else None

    @cached_property
    def delta(self) -> Fraction:
        """The worst excess over both outcomes, both directions, and all m."""
        low, _ = exp_bounds(self.epsilon)
        worst = Fraction(0)
        for fewer, more in pairwise((*self.weights, TOTAL)):
            for p, q in ((fewer, more), (TOTAL - fewer, TOTAL - more)):
                worst = max(worst, p - low * q, q - low * p)
        return worst / TOTAL

    @property
    def sure_from(self) -> int:
        """``N + floor - 1``, N the first m that is always kept."""
        return len(self.weights) + self.floor - 2

    @property
    def digest(self) -> str:
        """SHA-256 of the weights in hexadecimal, 16 bytes each."""
        return sha256(b"".join(weight.to_bytes(16, "big") for weight in self.weights)).hexdigest()


@lru_cache(maxsize=64)
def optimal_selection(epsilon: Fraction, delta: Fraction, floor: int = 1) -> OptimalSelection:
    """The table of pi_opt, by T's recurrence with each step rounded down.

    Raises:
        SpecificationError: epsilon is outside 0.005 .. 20, or delta below 1e-12.
    """
    if not Fraction(1, 200) <= epsilon <= 20 or not Fraction(1, 10**12) <= delta < 1:
        raise SpecificationError(
            f"--only groups takes epsilon 0.005 to 20 and delta from 1e-12 a group, not {float(epsilon):.3g} and"
            f" {float(delta):.3g}: change --epsilon, --delta or --groups-per-user"
        )
    low, _ = exp_bounds(epsilon)
    step = delta.numerator * TOTAL // delta.denominator
    weights = [0]
    while weights[-1] < TOTAL:
        w = weights[-1]
        rest = TOTAL - w - step
        kept = low.numerator * w // low.denominator + step
        weights.append(min(kept, TOTAL - -(-rest * low.denominator // low.numerator), TOTAL))
    return OptimalSelection(epsilon, tuple(weights), floor)


@dataclass(frozen=True)
class PublicCount:
    """Release ``n + X`` for every group of a public list. Which groups are listed must not depend on the data.

    Privacy guarantee: (law.epsilon, delta), delta the hockey-stick of the law's truncation.
    """

    law: Law
    floor: int = 1

    def released(self, users: int, word: int) -> int:
        """The noisy number of users."""
        return users + self.law.draw(word)

    @cached_property
    def delta(self) -> Fraction:
        """The hockey-stick of a shift by one."""
        return shift_delta(self.law, 1, self.law.epsilon)

    @property
    def sure_from(self) -> int:
        """0: every listed group is released."""
        return 0


@dataclass(frozen=True)
class GaussianSelection(Thresholded):
    """Release ``n + X`` if m >= 1 and ``m + X > T``, X discrete Gaussian (``kanon.release.gaussian``).

    ``delta`` is that of one group's threshold. The delta of the noise is claimed for all kappa groups together.
    """

    law: Table
    threshold: int
    floor: int = 1

    @cached_property
    def delta(self) -> Fraction:
        """``P(1 + X > T)``: releasing a group reveals its only user."""
        return Fraction(self.law.cumulative[-1] - below_or_at(self.law, self.threshold - 1), TOTAL)


def below_or_at(table: Table, x: int) -> int:
    """The weight of the outcomes up to ``x``."""
    if x < table.min:
        return 0
    return table.cumulative[min(x, table.max) - table.min]


@lru_cache(maxsize=64)
def widest(epsilon: Fraction) -> Law:
    """The two-sided law with the largest truncation that a table of 2^64 weights holds.

    Raises:
        SpecificationError: epsilon is below 0.005, where the truncation costs too much delta, or above 20.
    """
    if epsilon < Fraction(1, 200):
        raise SpecificationError(f"epsilon {float(epsilon):.3g} a group is below 0.005: use fewer shares")
    _refuse_above_20(epsilon)
    # The last outcome of the ideal distribution with probability 2^-64 or more. Rounding may be wrong by one.
    high = exp_bounds(epsilon)[1]
    rarest = TOTAL * (high - 1) / (high + 1)
    outcomes = range(1, min(LARGEST_TRUNCATION, 45 // epsilon + 1))  # e^45 > 2^64
    truncation = max(1, bisect_left(outcomes, x=True, key=lambda a: exp_bounds(epsilon * a, 64)[1] > rarest))
    return two_sided(epsilon, next(a for a in (truncation + 1, truncation, truncation - 1) if _is_table(epsilon, a)))


def _refuse_above_20(epsilon: Fraction) -> None:
    if epsilon > 20:
        raise SpecificationError(
            f"epsilon {float(epsilon):.3g} a group is above the limit of a table (20): lower --epsilon"
        )


def _is_table(epsilon: Fraction, truncation: int) -> bool:
    try:
        two_sided(epsilon, truncation)
    except ValueError:
        return False
    return True
