"""The loss at a threshold k: the share of values, and of rows, with fewer than k users.

Desfontaines (2020), section 4.1.3.1. The values of a sketch are a uniform sample without replacement, so a share of
values is a mean over it. A share of rows is the sample's total, scaled to all values, over the exact number of rows.
"""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from kanon.gate.mechanism.exact_law import never_at_constant
from kanon.gate.mechanism.parameters import InvalidParametersError, Parameters, profile
from kanon.risk.khll import SPACE, Sketch
from kanon.risk.sketching import Sketched

THRESHOLDS = range(2, 201)
LOSSES = (0.05, 0.10, 0.25)
DANGEROUS = 0.5
"""A column is dangerous if at least this share of its values has only one user."""

UniquenessVerdict = Literal["identifier", "dangerous", "not flagged"]
Lost = NDArray[np.float64]


@dataclass(frozen=True)
class ThresholdLoss:
    """The loss at a threshold of ``k`` users: shares of values and of rows with their standard errors."""

    k: int
    values: float
    rows: float
    standard_error: float
    rows_standard_error: float


@dataclass(frozen=True)
class ServiceLoss:
    """The loss if the service, with its noise, decides instead of an exact threshold.

    ``curve`` starts at the least k the noise allows.
    """

    profile: str
    window: int
    curve: tuple[ThresholdLoss, ...]


@dataclass(frozen=True)
class ColumnUniqueness:
    """The uniqueness of one column, or of one combination of columns.

    Attributes:
        columns: their names.
        user: the column that names the owner of a row.
        number_of_values: distinct values; an estimate unless ``exact``.
        exact: whether every value was kept, without sampling error.
        rows: rows of the log.
        left_out: rows with a missing value or user, not in ``rows``.
        curve: for k = 2..200.
        service: the same through the service.
    """

    columns: tuple[str, ...]
    user: str
    number_of_values: float
    exact: bool
    rows: int
    left_out: int
    curve: tuple[ThresholdLoss, ...]
    service: ServiceLoss

    @property
    def name(self) -> str:
        """``(set, day)``."""
        return f"({', '.join(self.columns)})"

    @property
    def verdict(self) -> UniquenessVerdict:
        """``identifier``: the user column is among the columns; ``dangerous``: half of the values have one user."""
        if self.user in self.columns:
            return "identifier"
        return "dangerous" if self.at(2).values >= DANGEROUS else "not flagged"

    def at(self, k: int) -> ThresholdLoss:
        """The point of the curve at k, 2 to 200."""
        return self.curve[k - THRESHOLDS.start]

    def as_json(self) -> dict[str, Any]:
        """All of it, for a program."""
        return {
            "name": self.name,
            "columns": list(self.columns),
            "user": self.user,
            "verdict": self.verdict,
            "number_of_values": self.number_of_values,
            "exact": self.exact,
            "rows": self.rows,
            "rows_left_out": self.left_out,
            "lost_at": lost_at(self.curve),
            "curve": [asdict(point) for point in self.curve],
            "service": {**asdict(self.service), "lost_at": lost_at(self.service.curve)},
        }


def lost_at(points: Sequence[ThresholdLoss]) -> dict[str, dict[str, int | None]]:
    """The least k that loses 5, 10 and 25% of the values and of the rows; None if no k up to 200 does."""

    def least(share: float, of: str) -> int | None:
        return next((point.k for point in points if getattr(point, of) >= share), None)

    return {f"{share:.0%}": {of: least(share, of) for of in ("values", "rows")} for share in LOSSES}


def report(sketched: Sketched, user: str, service_profile: str = "crossing", window: int = 720) -> ColumnUniqueness:
    """The report of one sketch.

    Args:
        sketched: the sketch and its columns.
        user: the column of the users.
        service_profile: the noise of the service, one of ``kanon.gate.mechanism.parameters.PROFILES``.
        window: window of the service, in steps.

    Raises:
        InvalidParametersError: there is no such profile.
    """
    sketch = sketched.sketch
    return ColumnUniqueness(
        sketched.columns,
        user,
        sketch.number_of_values,
        not sketch.full,
        sketch.total_rows,
        sketched.left_out,
        curve(sketch),
        through_service(sketch, service_profile, window),
    )


def curve(sketch: Sketch, thresholds: Iterable[int] = THRESHOLDS) -> tuple[ThresholdLoss, ...]:
    """The loss at exact thresholds."""
    return tuple(_point(sketch, k, (sketch.counts < k).astype(np.float64)) for k in thresholds)


def through_service(sketch: Sketch, service_profile: str, window: int) -> ServiceLoss:
    """The loss through the service. A value is lost if it reads false for a whole window at its count."""
    laws = profile(service_profile, window)
    counts, position = np.unique(np.rint(sketch.counts).astype(np.int64), return_inverse=True)
    points = []
    for k in THRESHOLDS:
        try:
            parameters = Parameters(k, window, 3600, *laws)
        except InvalidParametersError:
            continue  # with a smaller k an empty set could read true: the service refuses it
        lost = never_at_constant(parameters, np.minimum(counts, parameters.surely_true_from), window)
        points.append(_point(sketch, k, lost[position]))
    return ServiceLoss(service_profile, window, tuple(points))


def _point(sketch: Sketch, k: int, lost: Lost) -> ThresholdLoss:
    """The shares lost, from the chance of each sampled value to be lost."""
    share = float(lost.mean())
    lost_rows = lost * sketch.rows
    if not sketch.full:
        return ThresholdLoss(k, share, float(lost_rows.sum()) / sketch.total_rows, 0.0, 0.0)
    error = float(np.sqrt(max(float((lost**2).mean()) - share**2, 0.0) / sketch.size))
    scale = sketch.number_of_values / sketch.size
    rows = scale * float(lost_rows.sum()) / sketch.total_rows
    return ThresholdLoss(k, share, min(rows, 1.0), error, _rows_error(sketch, lost_rows))


def _rows_error(sketch: Sketch, lost_rows: Lost) -> float:
    """The standard error of the share of rows: Horvitz-Thompson over values below the bound, given the bound.

    Each value is kept with chance ``q = h_K / 2^64``, so the variance of the total is ``sum y^2 (1 - q) / q^2``
    (Cohen and Kaplan, "Summarizing data using bottom-k sketches", 2007). The factor ``1 - q`` is left out, as for
    values: without it the error is larger, because the sample may miss the few values with very many rows.
    """
    return float(np.sqrt((lost_rows**2).sum())) * SPACE / sketch.bound / sketch.total_rows


# --- sentences ------------------------------------------------------------------------------------

FEW = 10
CAVEATS = (
    "A threshold without noise gives no guarantee: see kanon risk no-noise.",
    "This report is computed from the log without noise. Do not publish it.",
)


def percent(share: float) -> str:
    """``98.7%``."""
    return f"{100 * share:.1f}%"


def with_error(share: float, error: float) -> str:
    """A share and its standard error: ``78.0% ± 0.9%``."""
    return percent(share) if error == 0 else f"{percent(share)} ± {percent(error)}"


def finding(report: ColumnUniqueness) -> str:
    """The uniqueness of one combination of columns, in one or two sentences."""
    number = f"{report.number_of_values:,.0f} values"
    number = number if report.exact else f"about {number}"
    if report.verdict == "identifier":
        return (
            f"{report.name} holds the user column: it is an identifier, each of its {number} has one user by"
            f" definition. Do not publish it."
        )
    one, few = report.at(2), report.at(FEW + 1)
    shares = (
        f"{with_error(one.values, one.standard_error)} of {number} have one user,"
        f" {with_error(few.values, few.standard_error)} have at most {FEW}."
    )
    if report.verdict == "dangerous":
        return (
            f"{report.name} is dangerous: {shares} At least {DANGEROUS:.0%} of the values point to one user,"
            f" so such a value identifies the user."
        )
    return f"{report.name}: {shares}"


def costs(report: ColumnUniqueness, thresholds: Sequence[int]) -> str:
    """The losses at some thresholds, in one sentence."""
    losses = "; ".join(f"k = {k} loses {rows_lost(report.at(k))}" for k in thresholds)
    return f"{report.name}: {losses}."


def rows_lost(point: ThresholdLoss) -> str:
    """The share of rows lost, and of values."""
    return (
        f"{with_error(point.rows, point.rows_standard_error)} of rows"
        f" ({with_error(point.values, point.standard_error)} of values)"
    )


def reached(report: ColumnUniqueness) -> list[str]:
    """The least k that loses 5, 10 and 25% of the values, then of the rows."""
    least = lost_at(report.curve)
    ks = [least[share][of] for of in ("values", "rows") for share in least]
    return ["above 200" if k is None else str(k) for k in ks]


REACHED = tuple(f"{share:.0%} of {of}" for of in ("values", "rows") for share in LOSSES)
"""The labels of the entries of :func:`reached`."""


def service_note(report: ColumnUniqueness) -> str:
    """The meaning of the service's columns."""
    service = report.service
    return (
        f"Through the service: a value is lost if it reads false for a whole window at its count"
        f" (profile {service.profile}, {service.window} steps; this noise needs k of at least"
        f" {service.curve[0].k if service.curve else 'more than 200'})."
    )
