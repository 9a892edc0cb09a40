"""The expected accuracy of a release, from its tables alone: no data are read."""

from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction

from kanon.release.aggregates import AllUsers, AutomaticSum, Quantiles, units
from kanon.release.errors import SpecificationError
from kanon.release.mechanism import Mechanism
from kanon.release.selection import GaussianSelection, OptimalSelection, PublicCount
from kanon.release.totals import LEVEL, half_width

KAPPAS = (1, 2, 3, 5, 10, 20)


def utility(mechanism: Mechanism) -> Iterator[str]:
    """Sentences about the selection, the count and each aggregate."""
    yield count_line(mechanism)
    unit = units(mechanism.spec.places)
    for i, asked in enumerate(mechanism.spec.asked):
        text = mechanism.spec.aggregates[i]
        if isinstance(asked, Quantiles):
            share = mechanism.quantiles(i)[0].epsilon
            yield f"{text}: edges of {asked.measure.cells} cells, epsilon {_short(share)} each"
        elif isinstance(asked, AllUsers):
            yield f"{text}: number of users in too many groups +- {half_width(mechanism.left_out(i).law, LEVEL)} (95%)"
        elif isinstance(asked, AutomaticSum):
            k = mechanism.bounds_of(i).threshold
            wide = mechanism.automatic_total(i, 1 << 20).half_width(LEVEL) / (1 << 20)
            yield f"{text}: bounds need more than {k} users in a bin; then +- {_short(wide)} times the larger bound"
        else:
            widths = (total.half_width(LEVEL) / unit for total in mechanism.totals(i))
            yield f"{text}: noise of its totals +- {', '.join(map(_short, widths))} (95%)"


def count_line(mechanism: Mechanism) -> str:
    """One sentence about which groups are released and the accuracy of their counts."""
    rule = mechanism.rule
    if isinstance(rule, OptimalSelection):
        half = next(m for m, weight in enumerate(rule.weights) if 2 * weight >= rule.weights[-1])
        return f"groups: half of those with {half + rule.floor - 1} users, all from {rule.sure_from} users on"
    width = f"counts +- {half_width(rule.law, LEVEL)} (95%)"
    if isinstance(rule, PublicCount):
        return f"all listed groups; {width}"
    threshold = rule.threshold if isinstance(rule, GaussianSelection) else rule.law.truncation
    shape = "Gaussian" if isinstance(rule, GaussianSelection) else "two-sided"
    return (
        f"groups: about half of those with {threshold + rule.floor} users, all from {rule.sure_from} users on;"
        f" {width}, {shape} noise"
    )


def advice(mechanism: Mechanism) -> Iterator[str]:
    """The same sentence for other numbers of groups per user."""
    for kappa in KAPPAS:
        try:
            yield f"{kappa:>4}: {count_line(Mechanism(replace(mechanism.spec, groups_per_user=kappa)))}"
        except SpecificationError:
            yield f"{kappa:>4}: no table is that exact"


def _short(x: Fraction) -> str:
    return f"{float(x):.4g}"
