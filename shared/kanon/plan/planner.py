"""The planner: noise distributions (laws) that meet a privacy target, and the behaviour of a type with them.

Privacy comes from :mod:`kanon.gate.mechanism.bounds`, accuracy from the exact law. Nothing is simulated.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from functools import cached_property
from math import exp, floor, log10
from typing import Any

import numpy as np

from kanon.dynamo.units import item_size
from kanon.gate.mechanism.above_threshold import SetState
from kanon.gate.mechanism.bounds import Guarantee, distinct_tokens, guarantee
from kanon.gate.mechanism.exact_law import Floats, never_at_constant
from kanon.gate.mechanism.members import Member
from kanon.gate.mechanism.parameters import (
    CURRENT_PROFILES,
    PROFILES,
    InvalidParametersError,
    Parameters,
    instances_in_a_year,
    interval_delta,
    profile,
    smallest_laws,
)
from kanon.gate.models import TypeAnswer
from kanon.gate.storage.members import to_item
from kanon.gate.types import Type
from kanon.noise.bound import Bound
from kanon.noise.laws import SHAPES, Law, Shape

CONFIDENCE = 0.99
DEFAULT_CLIENT_BITS = 16
_ROUNDING = 1e-12
"""The margin for comparing probabilities. The error of the exact law in floats is below 1e-14."""


PLANNED_TYPE = "fledge"
"""The name of a planned type in the document ``Types``. It can be changed."""


@dataclass(frozen=True)
class Target:
    """A privacy target: (epsilon, delta) for one join, watched for a year, for a k and a window."""

    k: int
    window: int
    period: int
    epsilon: Fraction
    delta: Fraction

    @property
    def bound(self) -> Bound:
        """The target as a bound."""
        return Bound(self.epsilon, self.delta)

    @property
    def instances(self) -> int:
        """The number of instances that an observer watches in a year."""
        return instances_in_a_year(self.window, self.period)

    def covers(self, proved: Guarantee) -> bool:
        """Whether the proved bounds meet the target."""
        bound = proved.watched
        return bound.epsilon <= self.epsilon and bound.delta <= self.delta


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

        The set is empty at first, reaches its count at a uniformly random step of an instance, and keeps it.
        0 means true immediately.
        """
        w = self.parameters.window
        # missed[c, m - 1]: no crossing in m consecutive steps of one instance.
        missed = never_at_constant(self.parameters, np.array(self.counts)[:, None], np.arange(1, w + 1))
        waited = np.cumsum(missed, axis=1)  # E[min(delay, m)] within one instance
        with np.errstate(divide="ignore"):
            from_start = waited[:, -1] / (1 - missed[:, -1])
        with np.errstate(invalid="ignore"):
            delay: Floats = np.mean(waited + missed * from_start[:, None], axis=1)
        return np.where(1 - missed[:, -1] > _ROUNDING, delay, np.inf)

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
        """The size of the Members item of a full set, without the name of its type."""
        p = self.parameters
        step = 499_999  # the current hour has as many digits
        members = tuple(Member(token, step) for token in range(p.members_kept))
        state = SetState(members, (step - p.window, step), step, step)
        return item_size(to_item(bytes(32), "", state, p.client_bits, step * p.period))

    @property
    def document(self) -> dict[str, Any]:
        """The entry of a type with this plan in the document ``Types``."""
        p = self.parameters
        named = self.name in PROFILES and profile(self.name, p.window, p.period) == (p.threshold_law, p.query_law)
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


def zone(parameters: Parameters, confidence: float = CONFIDENCE) -> tuple[int, int]:
    """The highest count false for a whole instance and the lowest true immediately, with ``confidence``."""
    counts = np.arange(parameters.never_true_below - 1, parameters.surely_true_from + 1)
    false = never_at_constant(parameters, counts, parameters.window) >= confidence + _ROUNDING
    true = 1 - never_at_constant(parameters, counts, 1) >= confidence + _ROUNDING
    return int(counts[false].max()), int(counts[true].min())


def law_as_json(law: Law) -> dict[str, Any]:
    """A law in the form of a type's configuration."""
    return {"shape": law.shape, "epsilon": decimal_text(law.epsilon), "truncation": law.truncation}


def type_document(type_: Type) -> dict[str, Any]:
    """The entry of a type in the document ``Types``. A profile is named if the type has one, else both laws."""
    p = type_.parameters
    laws = {"threshold": law_as_json(p.threshold_law), "query": law_as_json(p.query_law)}
    return {
        "k": p.k,
        "window": p.window,
        **({"profile": type_.profile} if type_.profile else {"laws": laws}),
        **({"client_bits": p.client_bits} if p.client_bits != DEFAULT_CLIENT_BITS else {}),
        **({"phase": p.phase} if p.phase != "hash" else {}),
    }


def decimal_text(x: Fraction) -> str:
    """The exact decimal of a fraction that has a finite decimal."""
    text = format((Decimal(x.numerator) / Decimal(x.denominator)).normalize(), "f")
    if Fraction(text) != x:
        raise ValueError(f"{x} has no finite decimal: give epsilon as a decimal")
    return text


def best_plan(target: Target) -> Plan:
    """The laws with the smallest 99% zone that meet the target; of equals, those that keep the fewest members.

    Tries about a hundred splits that spend all of epsilon, ``2 e1 + e2 = epsilon`` with ``2 e2 <= epsilon``, for
    each shape of law, with the smallest truncations that meet delta.

    Raises:
        InvalidParametersError: no laws meet the target at this k.
    """
    splits = sorted(_splits(target))
    best: tuple[tuple[int, int, Fraction], Parameters] | None = None
    for width, shape, threshold_epsilon, query_epsilon in splits:
        if best is not None and width > best[0][0]:
            break
        found = _fitted(target, shape, threshold_epsilon, query_epsilon)
        if found is not None:
            false, true = zone(found)
            delta = interval_delta(found.threshold_law, found.query_law, found.window, target.instances)
            rank = (true - false, found.members_kept - found.never_true_below, delta)
            if best is None or rank < best[0]:
                best = rank, found
    if best is None:
        raise InvalidParametersError(
            f"no noise distributions give {target.bound} at k={target.k} over"
            f" {target.window} steps without a risk of releasing an empty set: raise k, epsilon or delta"
        )
    return Plan("planned", best[1])


def profile_plan(name: str, target: Target) -> Plan:
    """A profile's shape and split of epsilon, with the truncations that the target's delta needs.

    Raises:
        InvalidParametersError: no such profile, or it does not meet the target at this k.
    """
    if name in PROFILES and PROFILES[name].truncations is None:
        chosen = PROFILES[name]
        laws = smallest_laws(
            chosen.shape, chosen.threshold_epsilon, chosen.query_epsilon, target.window, target.delta, target.instances
        )
    else:
        laws = profile(name, target.window, target.period)
    found = _parameters(target, *laws)
    proved = guarantee(found)
    if not target.covers(proved):
        raise InvalidParametersError(
            f"profile {name} gives {proved.watched} over {target.window} steps, more than {target.bound}: choose"
            f" another profile, plan without one, or raise the target"
        )
    return Plan(name, found)


def compare(target: Target) -> list[Plan]:
    """The profiles as a type uses them, and the best laws for the target. Profiles too wide for k are left out."""
    plans = []
    for name in CURRENT_PROFILES:
        try:
            plans.append(Plan(name, _parameters(target, *profile(name, target.window, target.period))))
        except InvalidParametersError:
            continue
    return [*plans, best_plan(target)]


def _splits(target: Target) -> Iterator[tuple[int, Shape, Fraction, Fraction]]:
    """For each split of epsilon: (width of the 99% zone if delta is ignored, shape, e1, e2)."""
    grid = Fraction(10) ** (floor(log10(target.epsilon)) - 2)
    for n in range(int(target.epsilon / grid / 5), int(target.epsilon / grid / 2) + 1):
        query_epsilon = n * grid
        threshold_epsilon = (target.epsilon - query_epsilon) / 2
        for shape, law in SHAPES.items():
            if not _leaves_room(target, query_epsilon):
                continue
            try:
                # The tails of these truncations, below 1e-10, do not move a 99% point.
                wide = [law(epsilon, max(2, int(23 / epsilon))) for epsilon in (threshold_epsilon, query_epsilon)]
            except ValueError:
                continue
            # The width of the zone does not depend on k.
            false, true = zone(Parameters(1000, target.window, target.period, wide[0], wide[1], 32))
            yield true - false, shape, threshold_epsilon, query_epsilon


def _leaves_room(target: Target, query_epsilon: Fraction) -> bool:
    """Whether the query law can meet delta with a truncation below k.

    The condition is ``w T(A) <= delta`` at its highest outcome A. ``least`` is a lower bound of T(A) for both shapes.
    """
    r = exp(-query_epsilon)
    least = (1 - r) / 2 * r ** (target.k - 1)
    return target.window * least <= target.delta


def _fitted(target: Target, shape: Shape, threshold_epsilon: Fraction, query_epsilon: Fraction) -> Parameters | None:
    try:
        laws = smallest_laws(shape, threshold_epsilon, query_epsilon, target.window, target.delta, target.instances)
        return _parameters(target, *laws)
    except InvalidParametersError:
        return None


def _parameters(target: Target, threshold_law: Law, query_law: Law) -> Parameters:
    """Parameters with 16 client bits, or with more if the members kept need them."""
    kept = target.k + threshold_law.max - query_law.min
    bits = max(16, (8 * kept - 1).bit_length())
    return Parameters(target.k, target.window, target.period, threshold_law, query_law, bits)
