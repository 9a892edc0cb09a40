"""The constants of one type: threshold, window, laws. They never change once used; a fingerprint checks this.

Profiles (named rules for the laws of a type) are listed in :data:`PROFILES`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, lru_cache
from hashlib import sha256
from typing import get_args

from kanon.errors import Error
from kanon.gate.mechanism.steps import PhaseRule
from kanon.noise.laws import SHAPES, Law, Shape

MOST_MEMBER_BYTES = 400_000
"""Bytes of the members of a set, of the 409,600 of a DynamoDB item; the rest is for the other attributes."""
AGE_BYTES = 2
"""A member's last join is packed as the number of steps before the evaluated one."""
LONGEST_WINDOW = 65_535  # ages are packed as two bytes


class InvalidParametersError(Error, ValueError):
    """Invalid parameters; the message says what to change."""


@dataclass(frozen=True)
class Parameters:
    """The constants of a type.

    Args:
        k: threshold, clients.
        window: w, steps.
        period: p, seconds per step.
        threshold_law: law of mu, drawn once per instance (the paper's rho_1).
        query_law: law of nu, drawn at every step (the paper's rho_2).
        client_bits: length of a client token, bits.
        phase: where instances start: a public hash of the set, or 0 for every set.

    Raises:
        InvalidParametersError: the parameters are invalid; the message says what to change.
    """

    k: int
    window: int
    period: int
    threshold_law: Law
    query_law: Law
    client_bits: int = 16
    phase: PhaseRule = "hash"

    def __post_init__(self) -> None:
        if self.k < 1:
            raise InvalidParametersError(f"k must be at least 1, not {self.k}")
        if not 2 <= self.window <= LONGEST_WINDOW:
            raise InvalidParametersError(f"window must lie between 2 and {LONGEST_WINDOW} steps, not {self.window}")
        if self.period < 1:
            raise InvalidParametersError(f"period must be at least 1 second, not {self.period}")
        if self.phase not in get_args(PhaseRule):
            raise InvalidParametersError(f"phase must be 'hash' or 'zero', not {self.phase!r}")
        if self.never_true_below < 1:
            raise InvalidParametersError(
                f"an empty set could be released as true: k + min(threshold noise) - max(query noise) is"
                f" {self.never_true_below} and must be at least 1; raise k by {1 - self.never_true_below} or"
                f" lower the truncations by as much"
            )
        needed = max(8, (8 * self.members_kept - 1).bit_length())
        most = MOST_MEMBER_BYTES // (token_bytes(max(needed, self.client_bits)) + AGE_BYTES)
        if self.members_kept > most:
            raise InvalidParametersError(
                f"a set would keep {self.members_kept} members, more than the {most} that fit into one DynamoDB item"
                f" at client_bits {max(needed, self.client_bits)}: lower k to at most"
                f" {most - self.members_kept + self.k}, or client_bits"
            )
        if not needed <= self.client_bits <= 32:
            raise InvalidParametersError(
                f"client_bits must lie between {needed} (2^client_bits >= 8 x {self.members_kept} members kept)"
                f" and 32, not {self.client_bits}"
            )

    @property
    def members_kept(self) -> int:
        """M: a count of at least M crosses with any noise."""
        return self.k + self.threshold_law.max - self.query_law.min

    @property
    def member_bytes(self) -> int:
        """Bytes of a packed member: its token and its age."""
        return token_bytes(self.client_bits) + AGE_BYTES

    @property
    def surely_true_from(self) -> int:
        """The count from which a set is true with certainty."""
        return self.members_kept

    @property
    def never_true_below(self) -> int:
        """The count below which a set cannot cross with any noise; at least 1."""
        return self.k + self.threshold_law.min - self.query_law.max

    @cached_property
    def fingerprint(self) -> bytes:
        """32 bytes that identify these parameters. They name the tape: other parameters get other noise."""
        fields = (
            "kanon/type/1",
            self.k,
            self.window,
            self.period,
            self.threshold_law.digest,
            self.query_law.digest,
            self.phase,
            self.client_bits,
        )
        return sha256("\n".join(map(str, fields)).encode()).digest()


def token_bytes(client_bits: int) -> int:
    """Bytes of a client token in an item."""
    return -(-client_bits // 8)


@dataclass(frozen=True)
class Profile:
    """A rule for the laws of a type: the shape and the split of epsilon are fixed.

    If ``truncations`` is None, the window determines them: the smallest that reach :data:`PROFILE_DELTA`, for a join
    whose step is fixed beforehand or, if ``watched``, for one whose step depends on a year of the set's answers.
    """

    shape: Shape
    threshold_epsilon: Fraction
    query_epsilon: Fraction
    truncations: tuple[int, int] | None = None
    watched: bool = False


PROFILE_DELTA = Fraction(1, 100_000)
MOST_TRUNCATION = 512  # enough for an epsilon of 0.05 at any practical delta

PROFILES: dict[str, Profile] = {
    # The published "eps=3, A=25" means epsilon 0.75 and A=25 for each noise. With 24, an empty set is never true.
    "published": Profile("two-sided", Fraction(3, 4), Fraction(3, 4), (25, 24)),
    "balanced": Profile("two-sided", Fraction(1), Fraction(1)),
    "sharp": Profile("one-sided", Fraction(9, 10), Fraction(6, 5)),
    # Version 2 meets its delta against an observer who watches for a year. Types with version 1 keep their tables.
    "balanced-2": Profile("two-sided", Fraction(1), Fraction(1), watched=True),
    "sharp-2": Profile("one-sided", Fraction(9, 10), Fraction(6, 5), watched=True),
}

CURRENT_PROFILES = ("published", "balanced-2", "sharp-2")
"""The latest version of each profile, for new types."""

YEAR = 365 * 86_400


def instances_in_a_year(window: int, period: int) -> int:
    """The most instances that a year of steps can meet, at the worst phase."""
    steps = max(1, YEAR // period)
    return 1 + -(-(steps - 1) // window)


def profile(name: str, window: int, period: int = 3600) -> tuple[Law, Law]:
    """The laws ``(threshold_law, query_law)`` of a profile at a window of ``window`` steps of ``period`` seconds.

    Raises:
        InvalidParametersError: no profile has that name.
    """
    if name not in PROFILES:
        raise InvalidParametersError(f"profile must be one of {', '.join(sorted(PROFILES))}, not {name!r}")
    chosen = PROFILES[name]
    if chosen.truncations is not None:
        law = SHAPES[chosen.shape]
        return law(chosen.threshold_epsilon, chosen.truncations[0]), law(chosen.query_epsilon, chosen.truncations[1])
    instances = instances_in_a_year(window, period) if chosen.watched else 1
    return smallest_laws(chosen.shape, chosen.threshold_epsilon, chosen.query_epsilon, window, PROFILE_DELTA, instances)


@lru_cache(maxsize=64)
def smallest_laws(
    shape: Shape, threshold_epsilon: Fraction, query_epsilon: Fraction, window: int, delta: Fraction, instances: int = 1
) -> tuple[Law, Law]:
    """The two laws with the smallest total truncation whose :func:`interval_delta` is at most ``delta``.

    Among equal totals, the smaller delta wins.

    Raises:
        InvalidParametersError: no truncation reaches ``delta`` at these epsilons.
    """
    make = SHAPES[shape]

    def second_for(first: int) -> int:
        return _smallest(
            lambda second: (
                interval_delta(make(threshold_epsilon, first), make(query_epsilon, second), window, instances) <= delta
            )
        )

    best: tuple[int, Fraction, Law, Law] | None = None
    least_first = _smallest(lambda first: (instances + 1) * make(threshold_epsilon, first).shift_delta <= delta)
    least_second = _smallest(lambda second: window * make(query_epsilon, second).tail_delta <= delta)
    for first in range(least_first, MOST_TRUNCATION):
        if best is not None and first + least_second > best[0]:
            break
        second = second_for(first)
        try:
            laws = make(threshold_epsilon, first), make(query_epsilon, second)
        except ValueError:
            break
        reached = interval_delta(*laws, window, instances)
        if reached <= delta and (best is None or (first + second, reached) < best[:2]):
            best = (first + second, reached, *laws)
    if best is None:
        raise InvalidParametersError(
            f"no truncation reaches delta {float(delta):g} at epsilons {float(threshold_epsilon):g} and"
            f" {float(query_epsilon):g} over {window} steps: raise delta or the epsilons"
        )
    return best[2], best[3]


def _smallest(reaches: Callable[[int], bool]) -> int:
    """The smallest truncation for which ``reaches`` holds, or MOST_TRUNCATION. It must hold for all larger ones."""
    low, high = 1, MOST_TRUNCATION
    while low < high:
        middle = (low + high) // 2
        try:
            reached = reaches(middle)
        except ValueError:
            reached = True  # too large for a table, so more than large enough
        low, high = (low, middle) if reached else (middle + 1, high)
    return low


def interval_delta(threshold_law: Law, query_law: Law, window: int, instances: int = 1) -> Fraction:
    """``max((I+1) d1 + (w-1) d2, w d2)``: the delta of one join that could happen in any of I instances.

    I = 1 is a join whose step is fixed beforehand; it affects two instances. If its step depends on the set's answers
    during I instances, the answers can reveal a truncated threshold noise before the join, with probability d1 each.
    """
    first, second = threshold_law.shift_delta, query_law.tail_delta
    return max((instances + 1) * first + (window - 1) * second, window * second)
