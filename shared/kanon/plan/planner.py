"""The planner: noise distributions (laws) that meet a privacy target, and the behaviour of a type with them.

Privacy comes from :mod:`kanon.gate.mechanism.bounds`, accuracy from the exact law. Nothing is simulated.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from functools import cached_property, lru_cache
from itertools import product
from math import exp, floor, log10
from typing import Any, Literal

import numpy as np

from kanon.gate.mechanism.bounds import Guarantee, distinct_tokens, guarantee
from kanon.gate.mechanism.exact_law import Floats, false_after_silence, never_at_constant
from kanon.gate.mechanism.parameters import (
    CURRENT_PROFILES,
    LEAST_EPOCH,
    PROFILES,
    USUAL_EPOCH,
    WATCHED_SETS,
    CrossingRestart,
    InvalidParametersError,
    Losses,
    Parameters,
    losses,
    most_searches,
    profile,
    profile_restart,
    smallest_laws,
    steps_in_a_year,
    usual_epoch,
)
from kanon.gate.models import TypeAnswer
from kanon.gate.parts import BYTES_A_SET
from kanon.gate.types import Type
from kanon.noise.bound import Bound
from kanon.noise.laws import SHAPES, Law, Shape

CONFIDENCE = 0.99
DEFAULT_CLIENT_BITS = 16
_DECIMALS = 10**6
"""An epsilon must have a finite decimal: one that is a share of the target is rounded down."""
_ROUNDING = 1e-12
"""The margin for comparing probabilities. The error of the exact law in floats is below 1e-14."""


PLANNED_TYPE = "fledge"
"""The name of a planned type in the document ``Types``. It can be changed."""


GuaranteeUnit = Literal["join", "year"]
"""What a target protects: one join, or all joins of a client that joins one set in every window of a year."""
HOLDS = (1, 2, 4)
"""The holds that the planner tries for the unit ``year``, windows. A longer one costs less, and old statuses stay. For
one join it changes no zone, as it changes no search."""
EPOCHS = (LEAST_EPOCH, 26, USUAL_EPOCH)
"""The epochs that the planner tries, windows; none is longer than :func:`usual_epoch`."""


@dataclass(frozen=True)
class Target:
    """A privacy target: (epsilon, delta) for a unit, a k and a window. The client may watch for a year.

    ``restart`` is what :func:`best_plan` looks for; on the grid the unit is one join.
    """

    k: int
    window: int
    period: int
    epsilon: Fraction
    delta: Fraction
    unit: GuaranteeUnit = "join"
    restart: Literal["crossing", "grid"] = "crossing"

    @property
    def bound(self) -> Bound:
        """The target as a bound."""
        return Bound(self.epsilon, self.delta)

    @property
    def year(self) -> int:
        """The steps of a year."""
        return steps_in_a_year(self.period)

    def reached(self, proved: Guarantee) -> Bound:
        """The proved bound for the unit of the target."""
        return proved.watched if self.unit == "join" else proved.rejoining[-1][1]

    def covers(self, proved: Guarantee) -> bool:
        """Whether the proved bounds meet the target."""
        bound = self.reached(proved)
        return bound.epsilon <= self.epsilon and bound.delta <= self.delta

    @property
    def least_width(self) -> int:
        """The smallest 99% zone that any mechanism can have at (epsilon, delta) for one join."""
        return least_width(self.window, self.bound)


@dataclass(frozen=True)
class Plan:
    """The parameters of a type and its behaviour. ``name`` is the origin of the laws."""

    name: str
    parameters: Parameters

    @cached_property
    def counts(self) -> range:
        """Every count whose answer depends on the noise, and one certain count at each end."""
        return range(self.parameters.never_true_below - 1, self.parameters.surely_true_from + 1)

    @cached_property
    def true_at_once(self) -> Floats:
        """Probability of true at the first evaluated step of an instance, for each of ``counts``."""
        return np.maximum(0, 1 - never_at_constant(self.parameters, self.counts, 1))

    @cached_property
    def true_within_instance(self) -> Floats:
        """Probability of true at some step of an instance with a constant count, for each of ``counts``."""
        return np.maximum(0, 1 - never_at_constant(self.parameters, self.counts, self.parameters.window))

    @cached_property
    def expected_delay(self) -> Floats:
        """Expected steps until true, for each of ``counts``; inf where true is impossible.

        The set is empty at first, reaches its count at a uniformly random step of an instance or of a search, and keeps
        it. 0 means true immediately.
        """
        return np.array([delay(self.parameters, count) for count in self.counts])

    @property
    def delay_at_zone(self) -> float:
        """:attr:`expected_delay` at the upper end of the zone, steps."""
        return delay(self.parameters, self.zone[1])

    @property
    def partial_share(self) -> float:
        """The share of steps in which a set that never crosses counts less than a window: an epoch has just begun.

        A set that stays true has none.
        """
        w, restart = self.parameters.window, self.parameters.restart
        return 0.0 if restart is None else (w - 1) / restart.epoch

    @cached_property
    def late(self) -> float:
        """The probability that a set that rises to the upper end of the zone after long silence is false at once.

        Before, it has kept the count that is worst for it since the beginning of its instance or epoch. It rises at the
        last step.
        """
        low, high = self.zone
        return max(false_after_silence(self.parameters, count, high) for count in range(low - 2, high))

    @cached_property
    def proved(self) -> Guarantee:
        """The proved guarantee of the parameters."""
        return guarantee(self.parameters)

    @cached_property
    def zone(self) -> tuple[int, int]:
        """The 99% points. Between them the noise decides.

        The highest count that is false for a whole instance and the lowest that is true immediately, each with
        probability at least 0.99: the points of false positives and of false negatives.
        """
        return zone(self.parameters)

    @cached_property
    def bytes_per_set(self) -> int:
        """The size of a full set in a part."""
        return BYTES_A_SET + self.parameters.members_kept * self.parameters.member_bytes

    @property
    def document(self) -> dict[str, Any]:
        """The entry of a type with this plan in the document ``Types``."""
        p = self.parameters
        named = self.name in PROFILES and (
            profile(self.name, p.window, p.period) == (p.threshold_law, p.query_law)
            and profile_restart(self.name, p.window, p.period) == p.restart
        )
        return type_document(Type(self.name, p, self.name if named else None))

    def as_json(self) -> dict[str, Any]:
        """The output of ``kanon plan --json``; the configuration of a type accepts ``laws``."""
        p = self.parameters
        return {
            **TypeAnswer.of(Type(self.name, p, None)).model_dump(by_alias=True, exclude={"type", "profile"}),
            "name": self.name,
            "laws": {"threshold": law_as_json(p.threshold_law), "query": law_as_json(p.query_law)},
            "types": {PLANNED_TYPE: self.document},
            "zone99": list(self.zone),
            "delayAtZone": self.delay_at_zone,
            "partialShare": self.partial_share,
            "lateAfterSilence": self.late,
            "membersKept": p.members_kept,
            "bytesPerSet": self.bytes_per_set,
            "distinctTokensAtK": round(float(distinct_tokens(p.k, p.client_bits)), 6),
            "curve": [
                {
                    "count": count,
                    "trueAtOnce": float(once),
                    "trueWithinInstance": float(within),
                    "expectedDelay": float(delay) if np.isfinite(delay) else None,
                }
                for count, once, within, delay in zip(
                    self.counts, self.true_at_once, self.true_within_instance, self.expected_delay, strict=True
                )
            ],
        }


def zone(parameters: Parameters) -> tuple[int, int]:
    """The highest count false for a whole instance and the lowest true immediately, with ``CONFIDENCE``."""
    counts = np.arange(parameters.never_true_below - 1, parameters.surely_true_from + 1)
    false = never_at_constant(parameters, counts, parameters.window) >= CONFIDENCE + _ROUNDING
    true = 1 - never_at_constant(parameters, counts, 1) >= CONFIDENCE + _ROUNDING
    return int(counts[false].max()), int(counts[true].min())


def delay(parameters: Parameters, count: int) -> float:
    """The expected steps until true of a set that reaches ``count`` and keeps it: :attr:`Plan.expected_delay`.

    If its epoch ends before, its members have joined again at most one window later.
    """
    w, restart = parameters.window, parameters.restart
    length, anew = (w, 0) if restart is None else (restart.epoch, w - 1)
    missed = never_at_constant(parameters, count, np.arange(1, length + 1))  # [m - 1]: in m steps of one search
    if 1 - missed[-1] <= _ROUNDING:
        return np.inf
    waited = np.cumsum(missed)  # E[min(delay, m)] within one search
    from_start = (waited[-1] + missed[-1] * anew) / (1 - missed[-1])
    return float(np.mean(waited + missed * (anew + from_start)))


def least_width(window: int, one_join: Bound) -> int:
    """A lower bound of the 99% zone of any mechanism with this bound for one join, clients.

    A zone of n clients turns a probability of true of at most 0.01 / w, in some step, into 0.99 by n joins.
    """
    factor, delta, true = exp(one_join.epsilon), float(one_join.delta), (1 - CONFIDENCE) / window
    width = 0
    while true < CONFIDENCE:
        true = min(factor * true + delta, 1 - (1 - true - delta) / factor)
        width += 1
    return width


def law_as_json(law: Law) -> dict[str, Any]:
    """A law in the form of a type's configuration."""
    return {"shape": law.shape, "epsilon": decimal_text(law.epsilon), "truncation": law.truncation}


def type_document(type_: Type) -> dict[str, Any]:
    """The entry of a type in the document ``Types``. A profile is named if the type has one, else both laws."""
    p = type_.parameters
    laws = {"threshold": law_as_json(p.threshold_law), "query": law_as_json(p.query_law)}
    usual = profile_restart(type_.profile, p.window, p.period) if type_.profile else None
    return {
        "k": p.k,
        "window": p.window,
        **({"profile": type_.profile} if type_.profile else {"laws": laws}),
        **({"client_bits": p.client_bits} if p.client_bits != DEFAULT_CLIENT_BITS else {}),
        **({"phase": p.phase} if p.phase != "hash" else {}),
        **({} if p.restart in (None, usual) else restart_as_json(p.restart)),
    }


def restart_as_json(restart: CrossingRestart) -> dict[str, Any]:
    """Restart after the crossing in the form of a type's configuration."""
    return {"restart": "crossing", "hold": restart.hold, "epoch": restart.epoch}


def decimal_text(x: Fraction) -> str:
    """The exact decimal of a fraction that has a finite decimal."""
    text = format((Decimal(x.numerator) / Decimal(x.denominator)).normalize(), "f")
    if Fraction(text) != x:
        raise ValueError(f"{x} has no finite decimal: give epsilon as a decimal")
    return text


def best_plan(target: Target) -> Plan:
    """The type with the smallest 99% zone that meets the target.

    Of equals with the same restart, the one whose delay at the upper end of the zone is smallest, then the one that
    keeps the fewest members. Of several restarts, the one for which :attr:`Plan.partial_share` and :attr:`Plan.late`
    have the smallest sum: it bounds the probability that a set that rises after long silence is not true at once.

    Its delta holds for a join whose step depends on a year of answers; with restart after the crossing its set too, of
    :data:`WATCHED_SETS` sets. Tries about a hundred splits that spend all of epsilon, for each shape of law, each
    hold and each epoch, with the smallest truncations.

    Raises:
        InvalidParametersError: no laws meet the target at this k.
    """
    best: dict[CrossingRestart | None, tuple[tuple[int, float, int], Parameters]] = {}
    splits = _splits(target) if target.restart == "crossing" else _grid_splits(target)
    for width, split in sorted(((split.width(target.window), split) for split in splits), key=_in_order):
        if best and width > min(rank[0] for rank, _ in best.values()):
            break
        found = split.fitted(target)
        if found is not None:
            false, true = zone(found)
            rank = (true - false, round(delay(found, true), 9), found.members_kept - found.never_true_below)
            if split.restart not in best or rank < best[split.restart][0]:
                best[split.restart] = rank, found
    if not best:
        raise InvalidParametersError(
            f"no noise distributions give {target.bound} at k={target.k} over"
            f" {target.window} steps without a risk of releasing an empty set: raise k, epsilon or delta"
        )
    least = min(rank[0] for rank, _ in best.values())
    plans = [Plan("planned", found) for rank, found in best.values() if rank[0] == least]
    return plans[0] if len(plans) == 1 else min(plans, key=lambda plan: plan.partial_share + plan.late)


def profile_plan(name: str, target: Target) -> Plan:
    """A profile's shape, restart and split of epsilon, with the truncations that the target's delta needs.

    Raises:
        InvalidParametersError: no such profile, or it does not meet the target at this k.
    """
    laws, restart = profile(name, target.window, target.period), profile_restart(name, target.window, target.period)
    if PROFILES[name].truncations is None:
        first, second = laws
        lost = _watched(target, restart)
        laws = smallest_laws(first.shape, first.epsilon, second.epsilon, lost, target.delta)
    found = _parameters(target, *laws, restart)
    proved = guarantee(found)
    if not target.covers(proved):
        raise InvalidParametersError(
            f"profile {name} gives {target.reached(proved)} over {target.window} steps, more than {target.bound}:"
            f" choose another profile, plan without one, or raise the target"
        )
    return Plan(name, found)


def compare(target: Target) -> list[Plan]:
    """The profiles as a type uses them, and the best laws for the target. Profiles too wide for k are left out."""
    plans = []
    for name in CURRENT_PROFILES:
        laws, restart = profile(name, target.window, target.period), profile_restart(name, target.window, target.period)
        try:
            plans.append(Plan(name, _parameters(target, *laws, restart)))
        except InvalidParametersError:
            continue
    return [*plans, best_plan(target)]


@dataclass(frozen=True)
class Split:
    """A split of epsilon, with the shape of the laws and the restart."""

    shape: Shape
    threshold_epsilon: Fraction
    query_epsilon: Fraction
    restart: CrossingRestart | None

    def width(self, window: int) -> int:
        """The width of the 99% zone if delta is ignored."""
        return _width(self.shape, self.threshold_epsilon, self.query_epsilon, window)

    def fitted(self, target: Target) -> Parameters | None:
        """Parameters with the smallest truncations that meet the target; None if none do."""
        lost = _watched(target, self.restart)
        try:
            laws = smallest_laws(self.shape, self.threshold_epsilon, self.query_epsilon, lost, target.delta)
            found = _parameters(target, *laws, self.restart)
        except InvalidParametersError:
            return None
        return found if target.covers(guarantee(found)) else None


@lru_cache(maxsize=1024)
def _width(shape: Shape, threshold_epsilon: Fraction, query_epsilon: Fraction, window: int) -> int:
    law = SHAPES[shape]
    # The tails of these truncations, below 1e-10, do not move a 99% point.
    wide = [law(epsilon, max(2, int(23 / epsilon))) for epsilon in (threshold_epsilon, query_epsilon)]
    # The width of the zone does not depend on k.
    false, true = zone(Parameters(1000, window, 3600, wide[0], wide[1], 32))
    return true - false


def _in_order(one: "tuple[int, Split]") -> tuple[int, str, Fraction]:
    """Narrow zones first; splits with the same laws together, because tables are cached."""
    width, split = one
    return width, split.shape, split.query_epsilon


def _watched(target: Target, restart: CrossingRestart | None) -> Losses:
    """What a join loses that its client chose after watching for a year: one set on the grid, else many.

    With restart after the crossing the losses of a year of re-joining, with all its runs, are far smaller than these.
    """
    sets = 1 if restart is None else WATCHED_SETS
    return losses(target.window, restart, target.year, sets)


def _splits(target: Target) -> Iterator[Split]:
    """The splits for restart after the crossing: ``I e1 + e2 = epsilon``; I is 1 for one join."""
    year, longest = target.unit == "year", usual_epoch(target.window, target.period)
    epochs = sorted({min(windows * target.window, longest) for windows in EPOCHS})
    for hold, epoch in product(HOLDS if year else (1,), epochs):
        restart = CrossingRestart(hold * target.window, epoch)
        met = 1 + (most_searches(restart, target.year - 1) if year else 0)
        most = Fraction(1) if year else Fraction(3, 5)
        for query_epsilon in _query_epsilons(target, Fraction(1, 5) / met, most / met):
            if met * query_epsilon <= target.epsilon:
                rest = (target.epsilon - query_epsilon) / met
                yield from _shapes(Fraction(floor(rest * _DECIMALS), _DECIMALS), query_epsilon, restart)


def _grid_splits(target: Target) -> Iterator[Split]:
    """The splits for the grid: ``2 e1 + e2 = epsilon`` with ``2 e2 <= epsilon``."""
    for query_epsilon in _query_epsilons(target, Fraction(1, 5), Fraction(1, 2)):
        yield from _shapes((target.epsilon - query_epsilon) / 2, query_epsilon, None)


def _query_epsilons(target: Target, least: Fraction, most: Fraction) -> Iterator[Fraction]:
    """Every e2 between two shares of epsilon, on a grid of about a hundred."""
    grid = Fraction(10) ** (floor(log10(target.epsilon * (most - least))) - 2) * 2
    for n in range(int(target.epsilon * least / grid), int(target.epsilon * most / grid) + 1):
        if n and _leaves_room(target, n * grid):
            yield n * grid


def _shapes(first: Fraction, second: Fraction, restart: CrossingRestart | None) -> Iterator[Split]:
    for shape, law in SHAPES.items():
        try:
            for epsilon in (first, second):
                law(epsilon, max(2, int(23 / epsilon)))
        except ValueError:
            continue
        yield Split(shape, first, second, restart)


def _leaves_room(target: Target, query_epsilon: Fraction) -> bool:
    """Whether the query law can meet delta with a truncation below k.

    The condition is ``w T(A) <= delta`` at its highest outcome A. ``least`` is a lower bound of T(A) for both shapes.
    """
    r = exp(-query_epsilon)
    least = (1 - r) / 2 * r ** (target.k - 1)
    return target.window * least <= target.delta


def _parameters(
    target: Target, threshold_law: Law, query_law: Law, restart: CrossingRestart | None = None
) -> Parameters:
    """Parameters with 16 client bits, or with more if the members kept need them."""
    kept = target.k + threshold_law.max - query_law.min
    bits = max(16, (8 * kept - 1).bit_length())
    return Parameters(target.k, target.window, target.period, threshold_law, query_law, bits, restart=restart)
