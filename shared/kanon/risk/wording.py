"""The sentences of a uniqueness report, for the terminal and for the page."""

from collections.abc import Sequence

from kanon.risk.uniqueness import DANGEROUS, LOSSES, Point, Report, lost_at

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


def finding(report: Report) -> str:
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


def costs(report: Report, thresholds: Sequence[int]) -> str:
    """The losses at some thresholds, in one sentence."""
    losses = "; ".join(f"k = {k} loses {rows_lost(report.at(k))}" for k in thresholds)
    return f"{report.name}: {losses}."


def rows_lost(point: Point) -> str:
    """The share of rows lost, and of values."""
    return (
        f"{with_error(point.rows, point.rows_standard_error)} of rows"
        f" ({with_error(point.values, point.standard_error)} of values)"
    )


def reached(report: Report) -> list[str]:
    """The least k that loses 5, 10 and 25% of the values, then of the rows."""
    least = lost_at(report.curve)
    ks = [least[share][of] for of in ("values", "rows") for share in least]
    return ["above 200" if k is None else str(k) for k in ks]


REACHED = tuple(f"{share:.0%} of {of}" for of in ("values", "rows") for share in LOSSES)
"""The labels of the entries of :func:`reached`."""


def service_note(report: Report) -> str:
    """The meaning of the service's columns."""
    service = report.service
    return (
        f"Through the service: a value is lost if it reads false for a whole window at its count"
        f" (profile {service.profile}, {service.window} steps; this noise needs k of at least"
        f" {service.curve[0].k if service.curve else 'more than 200'})."
    )
