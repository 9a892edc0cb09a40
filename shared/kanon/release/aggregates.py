"""The aggregates of a release: their text forms, the totals they need from the engine, and their computation.

An aggregate is given as text: ``rows:20``, ``sum:amount:0:100``, ``mean:amount:0:100:per-user``,
``quantile:amount:0:100:0.5,0.9``, ``distinct:page``, ``sum:amount:auto``. Bounds are given in the column's own units
and held as integers, ``value * 10**scale``.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from typing import NamedTuple

from kanon.release.bounding import (
    LARGEST_VALUE,
    Bins,
    Cells,
    Centred,
    CountedRows,
    Distinct,
    Measure,
    Squares,
    Sum,
    UserMeans,
)
from kanon.release.errors import SpecificationError

FORMS = {
    "rows": "rows:MOST",
    "sum": "sum:COLUMN:LOW:HIGH or sum:COLUMN:auto",
    "mean": "mean:COLUMN:LOW:HIGH or mean:COLUMN:LOW:HIGH:per-user",
    "var": "var:COLUMN:LOW:HIGH",
    "stddev": "stddev:COLUMN:LOW:HIGH",
    "quantile": "quantile:COLUMN:LOW:HIGH:Q[,Q..]",
    "min": "min:COLUMN:LOW:HIGH",
    "max": "max:COLUMN:LOW:HIGH",
    "distinct": "distinct:COLUMN",
    "all-users": "all-users",
}
ALL_USERS = "all-users"
_MOST_ROWS = 1 << 40


class Interval(NamedTuple):
    """A value and the bounds of its interval."""

    value: Fraction
    low: Fraction
    high: Fraction


@dataclass(frozen=True)
class Need:
    """A total that an aggregate needs: what the engine sums, and its sensitivity to one user."""

    measure: Measure
    sensitivity: int


@dataclass(frozen=True)
class TotalsAggregate:
    """An aggregate that is computed from noisy totals.

    Attributes:
        name: of its column in the output.
        needs: its totals; each gets an equal part of the aggregate's budget.
        value: computes a value, and its interval if it has one, from the totals and the noisy number of users.
        uses_users: whether it also needs the noisy number of users.
        caution: a warning for the reader.
    """

    name: str
    needs: tuple[Need, ...]
    value: Callable[[Sequence[Interval], Interval], tuple[Fraction, ...]]
    uses_users: bool = False
    caution: str = ""


@dataclass(frozen=True)
class Quantiles:
    """Quantiles of a column; each gets an equal part of the aggregate's budget."""

    name: str
    measure: Cells
    qs: tuple[Fraction, ...]
    scale: int
    caution: str = ""

    def edge(self, i: int) -> Fraction:
        """The value of a grid edge."""
        m = self.measure
        return (m.low + Fraction(i * (m.high - m.low), m.cells)) / scale_factor(self.scale)

    @property
    def names(self) -> tuple[str, ...]:
        """The output columns, by rising q."""
        if self.name.split("_")[0] in ("min", "max"):
            return (self.name,)
        return tuple(f"{self.name}_{float(q):g}" for q in self.qs)


@dataclass(frozen=True)
class AutomaticSum:
    """A sum with private bounds: half of its budget finds them."""

    name: str
    measure: Bins
    scale: int
    caution: str = ""

    def bounded(self, low: int, high: int) -> TotalsAggregate:
        """The sum, once the bounds are known."""
        return _sum(self.measure.column, low, high, self.scale)


@dataclass(frozen=True)
class AllUsers:
    """An interval of each group's number of users, also of those that do not count because they have many groups.

    One total of the whole release needs budget: the number of users with more than kappa groups.
    """

    caution: str = ""


Aggregate = TotalsAggregate | Quantiles | AutomaticSum | AllUsers


def scale_factor(scale: int) -> int:
    """``10**scale``: the integer that stands for 1."""
    return int(10**scale)


def aggregate(text: str, *, scale: int, values: int, cells: int) -> Aggregate:
    """Read an aggregate.

    Args:
        text: its text form.
        scale: decimal places of values.
        values: number of values (or distinct texts) of a user that count in a group.
        cells: cells of a quantile's grid.

    Raises:
        SpecificationError: the text has a wrong form, or its bounds are impossible.
    """
    kind, *rest = text.split(":")
    match kind, rest:
        case "rows", [most]:
            return _rows(text, most)
        case "sum", [column, "auto"]:
            return AutomaticSum(f"sum_{column}", Bins(column), scale)
        case "sum", [column, low, high]:
            return _sum(column, *_bounds(text, low, high, scale), scale)
        case "mean", [column, low, high]:
            return _mean(column, *_bounds(text, low, high, scale), scale, values)
        case "mean", [column, low, high, "per-user"]:
            return _mean_of_users(column, *_bounds(text, low, high, scale), scale)
        case "var" | "stddev", [column, low, high]:
            return _spread(kind, column, *_bounds(text, low, high, scale), scale, values)
        case "quantile", [column, low, high, qs]:
            return _quantiles(f"quantile_{column}", column, *_bounds(text, low, high, scale), scale, _qs(qs), cells)
        case "min" | "max", [column, low, high]:
            q = Fraction(kind == "max")
            return _quantiles(f"{kind}_{column}", column, *_bounds(text, low, high, scale), scale, (q,), cells)
        case "distinct", [column]:
            return _distinct(column, values)
        case "all-users", []:
            return AllUsers()
    if kind in ("mean", "var") and "auto" in rest:
        raise SpecificationError(f"{kind} takes no automatic bounds: write {FORMS[kind]}")
    forms = FORMS.get(kind)
    raise SpecificationError(f"--aggregate {text}: write {forms or 'one of ' + ', '.join(FORMS)}")


def scaled(text: str, scale: int) -> int:
    """A decimal number as an integer, ``value * 10**scale``.

    Raises:
        SpecificationError: it is not a number, is too large, or has more decimal places.
    """
    try:
        number = Fraction(Decimal(text)) * scale_factor(scale)
    except (InvalidOperation, ValueError, OverflowError) as error:
        raise SpecificationError(f"{text!r} is not a number") from error
    if number.denominator != 1:
        raise SpecificationError(f"{text} has more than {scale} decimal places: raise --scale")
    if abs(number) > LARGEST_VALUE // 2:
        raise SpecificationError(f"{text} is too large to be summed: use smaller bounds")
    return number.numerator


def _bounds(text: str, low: str, high: str, scale: int) -> tuple[int, int]:
    bounds = scaled(low, scale), scaled(high, scale)
    if bounds[0] >= bounds[1]:
        raise SpecificationError(f"--aggregate {text}: the lower bound must be below the upper one")
    return bounds


def _rows(text: str, most: str) -> TotalsAggregate:
    if not most.isascii() or not most.isdigit() or not 1 <= int(most) <= _MOST_ROWS:
        raise SpecificationError(f"--aggregate {text}: write {FORMS['rows']}, MOST at least 1")
    return TotalsAggregate("rows", (Need(CountedRows(int(most)), int(most)),), lambda totals, _: totals[0])


def _sum(column: str, low: int, high: int, scale: int) -> TotalsAggregate:
    need = Need(Sum(column, low, high), max(abs(low), abs(high), 1))
    return TotalsAggregate(f"sum_{column}", (need,), lambda totals, _: divided(totals[0], scale_factor(scale)))


def divided(interval: Interval, by: int) -> Interval:
    """An interval in larger units."""
    return Interval(*(end / by for end in interval))


def _mean(column: str, low: int, high: int, scale: int, values: int) -> TotalsAggregate:
    sums = Need(Centred(column, low, high, values), values * (high - low))
    needs = (sums,) if values == 1 else (sums, Need(CountedRows(values), values))

    def value(totals: Sequence[Interval], users: Interval) -> Interval:
        return _ratio(totals[0], users if values == 1 else totals[1], low, high, scale)

    return TotalsAggregate(f"mean_{column}", needs, value, uses_users=values == 1)


def _mean_of_users(column: str, low: int, high: int, scale: int) -> TotalsAggregate:
    return TotalsAggregate(
        f"mean_{column}_per_user",
        (Need(UserMeans(column, low, high), high - low),),
        lambda totals, users: _ratio(totals[0], users, low, high, scale),
        uses_users=True,
        caution="the mean of the users' means, not of all values",
    )


def _ratio(sums: Interval, number: Interval, low: int, high: int, scale: int) -> Interval:
    """The mean ``M + sums / (2 max(1, number))`` clamped to the bounds; ``sums`` is of ``2 x - low - high``."""

    def mean(total: Fraction, count: Fraction) -> Fraction:
        exact = (low + high + total / max(Fraction(1), count)) / 2
        return min(max(exact, Fraction(low)), Fraction(high)) / scale_factor(scale)

    ends = [mean(total, count) for total in (sums.low, sums.high) for count in (number.low, number.high)]
    return Interval(mean(sums.value, number.value), min(ends), max(ends))


def _spread(kind: str, column: str, low: int, high: int, scale: int, values: int) -> TotalsAggregate:
    width = high - low
    if values * width**2 << 40 >= 1 << 127:  # c h^2 2^40 < 2^125, h = width / 2
        raise SpecificationError(f"{kind}: the bounds of {column} are too far apart to square: narrow them")
    needs = [
        Need(Centred(column, low, high, values), values * width),
        Need(Squares(column, low, high, values), values * width**2),
    ]
    if values > 1:
        needs.append(Need(CountedRows(values), values))

    def value(totals: Sequence[Interval], users: Interval) -> tuple[Fraction]:
        number = max(Fraction(1), (users if values == 1 else totals[2]).value)
        # w = 2 v and totals[1] sums 2 w^2 - width^2, so E[v^2] = (E[2 w^2 - width^2] + width^2) / 8.
        mean = totals[0].value / number / 2
        squares = (totals[1].value / number + width**2) / 8
        variance = min(max(squares - mean**2, Fraction(0)), Fraction(width**2, 4)) / scale_factor(2 * scale)
        return (variance if kind == "var" else square_root(variance),)

    return TotalsAggregate(f"{kind}_{column}", tuple(needs), value, uses_users=values == 1)


def square_root(x: Fraction) -> Fraction:
    """The square root, rounded down to a relative 2^-60."""
    if x == 0:
        return x
    size = x.numerator * x.denominator
    shift = max(0, 124 - size.bit_length()) // 2 + 1
    return Fraction(math.isqrt(size << 2 * shift), x.denominator << shift)


def _qs(text: str) -> tuple[Fraction, ...]:
    try:
        return tuple(sorted({Fraction(q) for q in text.split(",")}))
    except (ValueError, ZeroDivisionError) as error:
        raise SpecificationError(f"quantiles are fractions such as 0.5,0.9, not {text!r}") from error


def _quantiles(
    name: str, column: str, low: int, high: int, scale: int, qs: tuple[Fraction, ...], cells: int
) -> Quantiles:
    if not 2 <= cells <= 1 << 16:
        raise SpecificationError("--cells must lie between 2 and 65536")
    caution = "extremes are inaccurate: they depend on few users" if set(qs) & {Fraction(0), Fraction(1)} else ""
    return Quantiles(name, Cells(column, low, high, cells), qs, scale, caution)


def _distinct(column: str, values: int) -> TotalsAggregate:
    return TotalsAggregate(
        f"distinct_{column}",
        (Need(Distinct(column, values), values),),
        lambda totals, _: totals[0],
        caution=f"a user counts for at most {values} of them",
    )
