"""The constants of one type: threshold, window, laws. They never change once used; a fingerprint checks this.

Profiles (named rules for the laws of a type) are listed in :data:`PROFILES`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, lru_cache
from hashlib import sha256
from typing import get_args

from kanon.errors import Error, meant
from kanon.gate.mechanism.steps import PhaseRule
from kanon.noise.laws import SHAPES, Law, Shape

MOST_MEMBER_BYTES = 400_000
"""Most bytes of the members of a set: one set is a small part of the states that are read at once."""
AGE_BYTES = 2
"""A member's last join is packed as the number of steps before the evaluated one."""
LONGEST_WINDOW = 65_535  # ages are packed as two bytes
MOST_STEPS = 10_000_000
"""The longest hold and the longest epoch, in steps."""


class InvalidParametersError(Error, ValueError):
    """Invalid parameters; the message says what to change."""


@dataclass(frozen=True)
class CrossingRestart:
    """Restart after the crossing: a type with it does not use the paper's grid of instances.

    Args:
        hold: L, the steps that a status stays true; at least the window.
        epoch: Y, the steps of an epoch; a search ends with its epoch, and the next one counts from 0. More than the
            window.
    """

    hold: int
    epoch: int


@dataclass(frozen=True)
class Parameters:
    """The constants of a type.

    Args:
        k: threshold, clients.
        window: w, steps.
        period: p, seconds per step.
        threshold_law: law of mu, drawn once per search (the paper's rho_1).
        query_law: law of nu, drawn at every step (the paper's rho_2).
        client_bits: length of a client token, bits.
        phase: where instances or epochs start: a public hash of the set, or 0 for every set.
        restart: None for the paper's restart on a grid of instances.

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
    restart: CrossingRestart | None = None

    def __post_init__(self) -> None:
        if self.k < 1:
            raise InvalidParametersError(f"k must be at least 1, not {self.k}")
        if not 2 <= self.window <= LONGEST_WINDOW:
            raise InvalidParametersError(f"window must lie between 2 and {LONGEST_WINDOW} steps, not {self.window}")
        if self.period < 1:
            raise InvalidParametersError(f"period must be at least 1 second, not {self.period}")
        if self.phase not in get_args(PhaseRule):
            raise InvalidParametersError(f"phase must be 'hash' or 'zero', not {self.phase!r}")
        if self.restart is not None:
            self._check_restart(self.restart)
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
                f"a set would keep {self.members_kept} members, more than the {most} that fit into"
                f" {MOST_MEMBER_BYTES:,} bytes at client_bits {max(needed, self.client_bits)}: lower k to at most"
                f" {most - self.members_kept + self.k}, or client_bits"
            )
        if not needed <= self.client_bits <= 32:
            raise InvalidParametersError(
                f"client_bits must lie between {needed} (2^client_bits >= 8 x {self.members_kept} members kept)"
                f" and 32, not {self.client_bits}"
            )

    def _check_restart(self, restart: CrossingRestart) -> None:
        if not self.window <= restart.hold <= MOST_STEPS:
            raise InvalidParametersError(
                f"hold must lie between the window of {self.window} steps and {MOST_STEPS}, not {restart.hold}: a"
                f" search counts the joins after the last one, so a set would read false while as many clients join"
            )
        if not self.window < restart.epoch <= MOST_STEPS:
            raise InvalidParametersError(
                f"epoch must be longer than the window of {self.window} steps and at most {MOST_STEPS}, not"
                f" {restart.epoch}"
            )

    @property
    def cycle(self) -> int:
        """The steps between two public restarts of a set: the window, or the epoch."""
        return self.window if self.restart is None else self.restart.epoch

    @property
    def memory(self) -> int:
        """The largest number of steps after a crossing that may still need it.

        After a crossing at step j the next search begins at ``j+L``, and lasts at most Y steps. On a grid this is the
        window.
        """
        return self.window if self.restart is None else self.restart.epoch + self.restart.hold

    def stale_after(self, max_stale: int) -> int | None:
        """So many steps after the visible step, its answers are refused; None if they never are.

        On a grid a true status ends with the clock. With restart after the crossing it is that of the visible step, so
        it must end when no new step becomes visible.
        """
        return None if self.restart is None else min(max_stale, self.window)

    @property
    def members_kept(self) -> int:
        """M: a count of at least M crosses with any noise."""
        return self.k + self.threshold_law.max - self.query_law.min

    @property
    def member_bytes(self) -> int:
        """Bytes of a member in a part: its token, two or four of them, and its age."""
        return (2 if self.client_bits <= 16 else 4) + AGE_BYTES

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
        restart = () if self.restart is None else ("crossing", self.restart.hold, self.restart.epoch)
        fields = (
            "kanon/type/1" if self.restart is None else "kanon/type/3",  # 2 had other counts
            self.k,
            self.window,
            self.period,
            self.threshold_law.digest,
            self.query_law.digest,
            self.phase,
            self.client_bits,
            *restart,
        )
        return sha256("\n".join(map(str, fields)).encode()).digest()


def token_bytes(client_bits: int) -> int:
    """Bytes of a client token in an item."""
    return -(-client_bits // 8)


@dataclass(frozen=True)
class Profile:
    """A rule for the laws and the restart of a type: the shape and the split of epsilon are fixed.

    If ``truncations`` is None, the window determines them: the smallest that reach the delta of the profile. On the
    grid that is :data:`PROFILE_DELTA`, for a join whose step is fixed beforehand or, if ``watched``, for one whose step
    depends on a year of the set's answers. With restart after the crossing (``hold`` windows, 0 for the grid) it is
    :data:`WATCHED_SETS_DELTA`, for a join whose set and step depend on a year of answers of :data:`WATCHED_SETS` sets.
    """

    shape: Shape
    threshold_epsilon: Fraction
    query_epsilon: Fraction
    truncations: tuple[int, int] | None = None
    watched: bool = False
    hold: int = 0


PROFILE_DELTA = Fraction(1, 100_000)
WATCHED_SETS = 10_000
"""The number of sets that an observer watches before choosing the one to join."""
WATCHED_SETS_DELTA = Fraction(1, 1_000_000)
MOST_TRUNCATION = 512  # enough for an epsilon of 0.05 at any practical delta
LEAST_EPOCH, USUAL_EPOCH = 13, 53
"""Windows. A search that is silent for longer has a larger threshold noise more often; a shorter epoch makes a set that
is searching count from 0 more often."""

PROFILES: dict[str, Profile] = {
    # The published "eps=3, A=25" means epsilon 0.75 and A=25 for each noise. With 24, an empty set is never true.
    "published": Profile("two-sided", Fraction(3, 4), Fraction(3, 4), (25, 24)),
    "balanced": Profile("two-sided", Fraction(1), Fraction(1)),
    "sharp": Profile("one-sided", Fraction(9, 10), Fraction(6, 5)),
    # Version 2 meets its delta against an observer who watches for a year. Types with version 1 keep their tables.
    "balanced-2": Profile("two-sided", Fraction(1), Fraction(1), watched=True),
    "sharp-2": Profile("one-sided", Fraction(9, 10), Fraction(6, 5), watched=True),
    # Restart after the crossing. The second one costs less for clients that join one set again and again.
    "crossing": Profile("one-sided", Fraction(162, 100), Fraction(138, 100), hold=1),
    "returning": Profile("one-sided", Fraction(3, 2), Fraction(3, 2), hold=4),
}

CURRENT_PROFILES = ("crossing", "returning", "published", "balanced-2", "sharp-2")
"""The latest version of each profile, for new types."""

YEAR = 365 * 86_400


def steps_in_a_year(period: int) -> int:
    """The steps of a year, at least one."""
    return max(1, YEAR // period)


@dataclass(frozen=True)
class Losses:
    """The delta of one join as multiples of d1 (:attr:`Law.shift_delta`) and d2 (:attr:`Law.tail_delta`).

    Attributes:
        threshold: multiple of d1 if the join is removed.
        query: multiple of d2 if it is removed.
        adding: multiple of d2 if it is added: the window, in steps.
    """

    threshold: int
    query: int
    adding: int

    def delta(self, threshold_law: Law, query_law: Law) -> Fraction:
        """The delta of these laws, for the worse direction."""
        d1, d2 = threshold_law.shift_delta, query_law.tail_delta
        return max(self.threshold * d1 + self.query * d2, self.adding * d2)


def losses(window: int, restart: CrossingRestart | None = None, steps: int = 1, sets: int = 1) -> Losses:
    """The losses of one join that may be at any of ``steps`` steps in any of ``sets`` sets.

    ``steps = sets = 1`` is a join that is fixed beforehand. Otherwise it may be chosen by the answers; they can reveal
    a truncated threshold noise before the join, with probability d1 for each instance or search.

    Grid: an instance of each set per window, and one more that the join reaches; ``(m I + 1) d1 + (w-1) d2``.
    Restart after the crossing: ``m I d1 + (Y-1) d2``, I the searches that could be the one that the join meets.
    """
    if restart is None:
        instances = 1 + -(-(steps - 1) // window)
        return Losses(sets * instances + 1, window - 1, window)
    searches = most_searches(restart, restart.epoch + steps + window - 2)
    return Losses(sets * searches, restart.epoch - 1, window)


def most_searches(restart: CrossingRestart, steps: int, generations: int = 0) -> int:
    """The most searches of one set that can begin within ``steps`` consecutive steps, or the most that can end there.

    Within an epoch two of them are at least ``hold`` steps apart. A log generation that begins in these steps is one
    more end of an epoch.
    """
    if steps < 1:
        return 0
    epochs, rest = divmod(steps - 1, restart.epoch)
    return 1 + epochs * -(-restart.epoch // restart.hold) - (-rest // restart.hold) + generations


def profile(name: str, window: int, period: int = 3600) -> tuple[Law, Law]:
    """The laws ``(threshold_law, query_law)`` of a profile at a window of ``window`` steps of ``period`` seconds.

    Raises:
        InvalidParametersError: there is none.
    """
    chosen = profile_named(name)
    if chosen.truncations is not None:
        law = SHAPES[chosen.shape]
        return law(chosen.threshold_epsilon, chosen.truncations[0]), law(chosen.query_epsilon, chosen.truncations[1])
    restart = profile_restart(name, window, period)
    year = steps_in_a_year(period)
    if restart is not None:
        lost, delta = losses(window, restart, year, WATCHED_SETS), WATCHED_SETS_DELTA
    else:
        lost, delta = losses(window, steps=year if chosen.watched else 1), PROFILE_DELTA
    return smallest_laws(chosen.shape, chosen.threshold_epsilon, chosen.query_epsilon, lost, delta)


def profile_restart(name: str, window: int, period: int = 3600) -> CrossingRestart | None:
    """The restart of a profile at a window of ``window`` steps of ``period`` seconds; None for the grid.

    Raises:
        InvalidParametersError: there is none.
    """
    hold = profile_named(name).hold
    return CrossingRestart(hold * window, usual_epoch(window, period)) if hold else None


def usual_epoch(window: int, period: int) -> int:
    """A year, rounded up to whole windows, but between :data:`LEAST_EPOCH` and :data:`USUAL_EPOCH` of them."""
    return window * min(USUAL_EPOCH, max(LEAST_EPOCH, -(-steps_in_a_year(period) // window)))


def profile_named(name: str) -> Profile:
    """The profile of a name.

    Raises:
        InvalidParametersError: there is none.
    """
    if name not in PROFILES:
        raise InvalidParametersError(
            f"profile must be one of {', '.join(sorted(PROFILES))}, not {name!r}{meant(name, PROFILES)}"
        )
    return PROFILES[name]


@lru_cache(maxsize=64)
def smallest_laws(
    shape: Shape, threshold_epsilon: Fraction, query_epsilon: Fraction, lost: Losses, delta: Fraction
) -> tuple[Law, Law]:
    """The two laws with the smallest total truncation whose :meth:`Losses.delta` is at most ``delta``.

    Among equal totals, the smaller delta wins.

    Raises:
        InvalidParametersError: no truncation reaches ``delta`` at these epsilons.
    """
    make = SHAPES[shape]

    def second_for(first: int) -> int:
        return _smallest(
            query_epsilon,
            lambda second: lost.delta(make(threshold_epsilon, first), make(query_epsilon, second)) <= delta,
        )

    best: tuple[int, Fraction, Law, Law] | None = None
    least_first = _smallest(
        threshold_epsilon, lambda first: lost.threshold * make(threshold_epsilon, first).shift_delta <= delta
    )
    least_second = _smallest(
        query_epsilon, lambda second: lost.adding * make(query_epsilon, second).tail_delta <= delta
    )
    for first in range(least_first, MOST_TRUNCATION):
        if best is not None and first + least_second > best[0]:
            break
        second = second_for(first)
        try:
            laws = make(threshold_epsilon, first), make(query_epsilon, second)
        except ValueError:
            break
        reached = lost.delta(*laws)
        if reached <= delta and (best is None or (first + second, reached) < best[:2]):
            best = (first + second, reached, *laws)
    if best is None:
        raise InvalidParametersError(
            f"no truncation reaches delta {float(delta):g} at epsilons {float(threshold_epsilon):g} and"
            f" {float(query_epsilon):g} over {lost.adding} steps: raise delta or the epsilons"
        )
    return best[2], best[3]


def _smallest(epsilon: Fraction, reaches: Callable[[int], bool]) -> int:
    """The smallest truncation for which ``reaches`` holds, or a too large one. It must hold for all larger ones."""
    low, high = 1, min(MOST_TRUNCATION, int(45 / epsilon) + 2)  # e^-45 < 2^-64: no table is longer
    while low < high:
        middle = (low + high) // 2
        try:
            reached = reaches(middle)
        except ValueError:
            reached = True  # too large for a table, so more than large enough
        low, high = (low, middle) if reached else (middle + 1, high)
    return low
