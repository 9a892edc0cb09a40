"""The mechanism of a specification: its tables, and the (epsilon, delta) that follows from them.

epsilon is divided between the count and the aggregates by weight, and each share by the kappa groups of a user. The
truncations of the other tables cost a part of delta; the rest goes to the selection. The claim is computed from the
tables: within a group the parts add up, and kappa groups give ``(kappa e, 1 - (1 - d)**kappa)``.
"""

from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from hashlib import sha256

from kanon.noise.bound import Bound
from kanon.noise.words import length_prefixed
from kanon.release.aggregate_noise import AutomaticBounds, NoisyTotal, Quantile
from kanon.release.aggregates import AllUsers, AutomaticSum, Quantiles, TotalsAggregate
from kanon.release.deltas import of_all, of_each
from kanon.release.errors import SpecificationError
from kanon.release.gaussian import MOST_GROUPS, GaussianChoice, gaussian_choice
from kanon.release.selection import (
    CountedSelection,
    GaussianSelection,
    OptimalSelection,
    PublicCount,
    counted_selection,
    optimal_selection,
    widest,
)
from kanon.release.spec import Spec

Rule = CountedSelection | GaussianSelection | OptimalSelection | PublicCount


@dataclass(frozen=True)
class GuaranteePart:
    """One part of the guarantee.

    Attributes:
        name: the aggregate, or ``selection``.
        epsilon, delta: for all groups of a user together.
        tables: digests of its noise tables.
    """

    name: str
    epsilon: Fraction
    delta: Fraction
    tables: tuple[str, ...]


@dataclass(frozen=True)
class Mechanism:
    """The noise tables of a specification. They depend on public parameters alone."""

    spec: Spec

    @cached_property
    def shares(self) -> tuple[Fraction, ...]:
        """The epsilon of the count and of each aggregate, over all groups of a user."""
        weights = self.spec.weights or (1,) * (1 + len(self.spec.aggregates))
        return tuple(self.spec.epsilon * weight / sum(weights) for weight in weights)

    def share(self, i: int) -> Fraction:
        """The epsilon of aggregate i in one group."""
        return self.shares[1 + i] / self.spec.groups_per_user

    def totals(self, i: int) -> tuple[NoisyTotal, ...]:
        """The totals of aggregate i, which must have fixed bounds and not be a quantile."""
        asked = self.spec.asked[i]
        assert isinstance(asked, TotalsAggregate)
        return tuple(NoisyTotal(need.sensitivity, self.share(i) / len(asked.needs)) for need in asked.needs)

    def quantiles(self, i: int) -> tuple[Quantile, ...]:
        """The quantiles of aggregate i."""
        asked = self.spec.asked[i]
        assert isinstance(asked, Quantiles)
        return tuple(Quantile(q, asked.measure.cells, self.share(i) / len(asked.qs)) for q in asked.qs)

    def bounds_of(self, i: int) -> AutomaticBounds:
        """Finds the bounds of aggregate i with half of its epsilon."""
        return AutomaticBounds(self.shares[1 + i] / 2)

    def automatic_total(self, i: int, sensitivity: int) -> NoisyTotal:
        """The total of aggregate i with automatic bounds, with the other half. Its table is independent of them."""
        return NoisyTotal(sensitivity, self.share(i) / 2)

    def left_out(self, i: int) -> PublicCount:
        """Counts the users with too many groups, once for all groups; of aggregate i, which is ``AllUsers``."""
        return PublicCount(widest(self.shares[1 + i]))

    @cached_property
    def aggregate_parts(self) -> tuple[GuaranteePart, ...]:
        """The guarantee of each aggregate. One with automatic bounds has two parts."""
        parts = []
        kappa = self.spec.groups_per_user
        for i, asked in enumerate(self.spec.asked):
            name = self.spec.aggregates[i]
            if isinstance(asked, AllUsers):
                count = self.left_out(i)
                parts.append(GuaranteePart(name, count.law.epsilon, count.delta, (count.law.digest,)))
                continue
            tables: tuple[NoisyTotal | Quantile, ...]
            if isinstance(asked, AutomaticSum):
                bounds = self.bounds_of(i)
                parts.append(GuaranteePart(f"{name} (bounds)", bounds.epsilon, bounds.delta, (bounds.law.digest,)))
                tables = (self.automatic_total(i, 1),)
            else:
                tables = self.quantiles(i) if isinstance(asked, Quantiles) else self.totals(i)
            group_delta = sum((one.delta for one in tables), Fraction(0))
            digests = tuple(map(_digest, tables))
            epsilon = kappa * sum((one.epsilon for one in tables), Fraction(0))
            parts.append(GuaranteePart(name, epsilon, of_all(group_delta, kappa), digests))
        return tuple(parts)

    @cached_property
    def _left_for_selection(self) -> Fraction:
        """Delta, less the truncations of all aggregates."""
        left = self.spec.delta - sum((part.delta for part in self.aggregate_parts), Fraction(0))
        if left <= 0 and self.spec.public_groups is None:
            raise SpecificationError("--delta is smaller than the truncation of the tables: raise it")
        return left

    @cached_property
    def _gaussian(self) -> GaussianChoice:
        return gaussian_choice(self.spec.groups_per_user, self.shares[0], self._left_for_selection, self.spec.floor)

    @cached_property
    def rule(self) -> Rule:
        """The rule that selects the groups and releases their counts."""
        spec = self.spec
        epsilon = self.shares[0] / spec.groups_per_user
        if spec.public_groups is not None:
            return PublicCount(widest(epsilon))
        delta = of_each(self._left_for_selection, spec.groups_per_user)
        if spec.only_groups:
            return optimal_selection(epsilon, delta, spec.floor)
        if spec.noise == "gaussian":
            return self._gaussian.selection
        if spec.noise == "laplace" or not 1 < spec.groups_per_user <= MOST_GROUPS:
            return counted_selection(epsilon, delta, spec.floor)
        try:
            counted = counted_selection(epsilon, delta, spec.floor)
        except SpecificationError:
            return self._gaussian.selection
        gaussian = self._gaussian.selection
        return gaussian if gaussian.threshold < counted.law.truncation else counted

    @cached_property
    def selection_part(self) -> GuaranteePart:
        """The guarantee of the selection and its count."""
        rule = self.rule
        if isinstance(rule, GaussianSelection):
            delta = self._gaussian.delta
        else:
            delta = of_all(rule.delta, self.spec.groups_per_user)
        return GuaranteePart(
            "selection" if self.spec.only_groups else self.spec.counted, self.shares[0], delta, (_digest(rule),)
        )

    @cached_property
    def parts(self) -> tuple[GuaranteePart, ...]:
        """Every part of the guarantee."""
        return (self.selection_part, *self.aggregate_parts)

    @cached_property
    def claim(self) -> Bound:
        """The guarantee for one unit, computed from the tables.

        Raises:
            SpecificationError: it exceeds the requested (epsilon, delta).
        """
        total = Bound(
            sum((part.epsilon for part in self.parts), Fraction(0)),
            sum((part.delta for part in self.parts), Fraction(0)),
        )
        if total.epsilon > self.spec.epsilon or total.delta > self.spec.delta:
            raise SpecificationError(
                f"the tables give {total}, more than the requested (epsilon, delta): raise --delta"
            )
        return total

    @cached_property
    def digest(self) -> str:
        """SHA-256 of all tables and thresholds, in hexadecimal. A release is repeated with the same tables only."""
        rule = self.rule
        thresholds = f"{type(rule).__name__}/{rule.sure_from}/{rule.floor}"
        tables = [digest for part in self.parts for digest in part.tables]
        return sha256(length_prefixed(*(text.encode() for text in (thresholds, *tables)))).hexdigest()


def _digest(one: Rule | NoisyTotal | Quantile) -> str:
    """SHA-256 of its noise table, in hexadecimal."""
    return one.digest if isinstance(one, OptimalSelection | Quantile) else one.law.digest
