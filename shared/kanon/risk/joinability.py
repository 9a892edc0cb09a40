"""Whether rows of two logs can be linked by a shared column: containment of one column's values in the other's.

Desfontaines (2020), section 4.1.4.2, definition 77: the containment of C1 in C2 is ``|C1 n C2| / |C1|``. Two sketches
of one key see the same hashes below the smaller of their bounds, so the share of C1's hashes below it that C2 also has
is a sample mean (*matched hashes*). The thesis's estimator, inclusion-exclusion, combines three estimated numbers of
values, and its error is about twice as large.
"""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from kanon.risk.errors import RiskError
from kanon.risk.khll import Sketch, merge

CONTAINED = 0.5
UNIQUE = 0.5


@dataclass(frozen=True)
class Containment:
    """The containment of one column in another, by both estimators.

    Attributes:
        matched: share of matched hashes; None if no hash of the first column is below the bound.
        standard_error: of ``matched``.
        thesis: by inclusion-exclusion.
    """

    matched: float | None
    standard_error: float | None
    thesis: float


@dataclass(frozen=True)
class Joinability:
    """The containment of two columns in each other, and the verdict, by matched hashes.

    Attributes:
        first_in_second, second_in_first: containment in both directions.
        first_unique, second_unique: share of the values of each that have one user.
    """

    first_in_second: Containment
    second_in_first: Containment
    first_unique: float
    second_unique: float

    @property
    def joinable(self) -> bool:
        """Whether half of one column's values occur in the other, and half of the values of both have one user."""
        shares = (self.first_in_second.matched, self.second_in_first.matched)
        contained = any(share is not None and share >= CONTAINED for share in shares)
        return contained and min(self.first_unique, self.second_unique) >= UNIQUE

    def as_json(self) -> dict[str, Any]:
        """All fields, for programs."""
        return {**asdict(self), "estimator": "matched", "joinable": self.joinable}


def joinability(first: Sketch, second: Sketch) -> Joinability:
    """Compare two columns.

    Raises:
        RiskError: the sketches have different keys, or one is empty.
    """
    both_ways = containment(first, second), containment(second, first)
    return Joinability(*both_ways, _unique(first), _unique(second))


def containment(first: Sketch, second: Sketch) -> Containment:
    """The containment of the first column in the second.

    Raises:
        RiskError: the sketches have different keys, or one is empty.
    """
    both = merge(first, second)
    if not (len(first.values) and len(second.values)):
        raise RiskError("a sketch without values cannot be joined")
    shared = first.number_of_values + second.number_of_values - both.number_of_values
    thesis = min(max(shared / first.number_of_values, 0.0), 1.0)
    own = first.values[first.values < min(first.bound, second.bound)]
    if not len(own):
        return Containment(None, None, thesis)
    share = float(np.isin(own, second.values).mean())
    exact = not (first.full or second.full)
    error = 0.0 if exact else float(np.sqrt(share * (1 - share) / len(own)))
    return Containment(share, error, thesis)


def _unique(sketch: Sketch) -> float:
    return float((sketch.counts < 2).mean())
