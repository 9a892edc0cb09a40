"""Filters: which triggers may be attributed to which sources (WICG attribution reporting, filter data)."""

from collections.abc import Mapping
from dataclasses import dataclass, field

FilterData = Mapping[str, frozenset[str]]
"""The filter values that a source declares, by name."""


@dataclass(frozen=True)
class FilterSet:
    """Values by name, and optionally the largest age of the source (milliseconds)."""

    values: FilterData = field(default_factory=dict)
    lookback: int | None = None

    def matches(self, source: FilterData, age: int) -> bool:
        """Whether each name on both sides has a common value, and the source is not too old."""
        within = self.lookback is None or age <= self.lookback
        return within and all(_shared(self.values[name], source[name]) for name in self.values if name in source)

    def matches_negated(self, source: FilterData, age: int) -> bool:
        """Whether no name on both sides has a common value, and the source is older than the lookback."""
        beyond = self.lookback is None or age > self.lookback
        return beyond and not any(_shared(self.values[name], source[name]) for name in self.values if name in source)


@dataclass(frozen=True)
class Filters:
    """``filters`` and ``not_filters``: one set of each list must match; an empty list matches every source."""

    required: tuple[FilterSet, ...] = ()
    forbidden: tuple[FilterSet, ...] = ()

    def match(self, source: FilterData, age: int) -> bool:
        """Whether a source with these data, registered ``age`` milliseconds ago, passes."""
        return (not self.required or any(one.matches(source, age) for one in self.required)) and (
            not self.forbidden or any(one.matches_negated(source, age) for one in self.forbidden)
        )


def _shared(one: frozenset[str], other: frozenset[str]) -> bool:
    """Whether two lists share a value; two empty ones count as equal."""
    return bool(one & other) or not (one or other)
