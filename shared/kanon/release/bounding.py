"""The engine's part: it bounds the contributions of each user and computes one row of exact numbers for each group.

Three steps (docs/proofs/release.md, Setting; T 4.2.3). A: rows of a (user, group) pair become one row. B: of each user,
the kappa pairs with the smallest keyed hashes are kept. C: kept pairs become one row for each group: users, and one
column for each measure. A measure changes by at most a fixed amount if one user is added or removed.

All numbers are integers: a value with a stated number of decimal places is held as ``value * 10**scale``.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from kanon.joinlog.values import LARGEST_NUMBER, Dates
from kanon.joinlog.wanted import Column, Wanted

LARGEST_VALUE = LARGEST_NUMBER
"""Larger values are row errors."""
LEFT_OUT = "\0left out"
"""The place of the users with too many groups among the bins. No column has this name."""


@dataclass(frozen=True)
class CountedRows:
    """Sum over users of ``min(rows, most)``."""

    most: int


@dataclass(frozen=True)
class Clamped:
    """A measure of numbers that are clamped to [low, high]."""

    column: str
    low: int
    high: int


class Sum(Clamped):
    """Sum over users of their values' sum, clamped to [low, high]."""


class UserMeans(Clamped):
    """Sum over users of ``2 x - low - high``, x the mean of the user's values, rounded and clamped to [low, high]."""


@dataclass(frozen=True)
class Centred(Clamped):
    """Sum over each user's ``values`` sampled values of ``w = 2 x - low - high``, x clamped to [low, high]."""

    values: int


@dataclass(frozen=True)
class Squares(Clamped):
    """Sum over the same values of ``2 w^2 - (high - low)^2``, which is at most ``(high - low)^2`` in size."""

    values: int


@dataclass(frozen=True)
class Cells(Clamped):
    """A histogram of one sampled value of each user in ``cells`` equal cells from low to high."""

    cells: int


@dataclass(frozen=True)
class Distinct:
    """Distinct texts; a user counts for the ``values`` texts with the smallest keyed hashes."""

    column: str
    values: int


@dataclass(frozen=True)
class Bins:
    """For each power-of-two bin, the number and the sum of the per-user sums in it (automatic bounds)."""

    column: str


Measure = CountedRows | Clamped | Distinct | Bins


def bin_edges(bin_: int) -> tuple[int, int]:
    """The lowest and the highest integer of a bin: 0, or a sign and a size in ``2^(i-1) + 1 .. 2^i``, i = 0..63."""
    if bin_ == 0:
        return 0, 0
    i = abs(bin_) - 1
    low, high = (1 << i - 1) + 1 if i else 1, 1 << i
    return (low, high) if bin_ > 0 else (-high, -low)


@dataclass(frozen=True)
class Condition:
    """Keep rows whose column equals a text, or does not."""

    column: str
    equal: bool
    text: str


@dataclass(frozen=True)
class Bounding:
    """The relational half of a release.

    Attributes:
        user: column of the owner of a row.
        groups: columns whose texts together name a group.
        measures: columns of the result, after ``grp`` and ``users``.
        kappa: groups a user counts in.
        scale: decimal places of values; None: values are whole.
        unit: ``user``, ``user-day`` or ``user-month``.
        time: column of the time.
        period: days since 1970 as half-open intervals, None for all rows.
        where: conditions on rows.
        listed: the only groups that count, as :func:`encoded` names them; None for all groups.
        left_out: whether the users with more than kappa groups are counted.
        dates: the order of dates such as 01/02/2026; None: they are refused.
        skip_bad_rows: leave out rows that cannot be read.
    """

    user: str
    groups: tuple[str, ...]
    measures: tuple[Measure, ...] = ()
    kappa: int = 1
    scale: int | None = None
    unit: str = "user"
    time: str = "time"
    period: tuple[tuple[int, int], ...] | None = None
    where: tuple[Condition, ...] = ()
    listed: tuple[str, ...] | None = None
    left_out: bool = False
    dates: Dates | None = None
    skip_bad_rows: bool = False

    @property
    def numbers(self) -> tuple[str, ...]:
        """The columns that are read as numbers, in a fixed order."""
        return tuple(sorted({m.column for m in self.measures if not isinstance(m, CountedRows | Distinct)}))

    @property
    def texts(self) -> tuple[str, ...]:
        """The columns whose distinct texts are counted."""
        return tuple(sorted({m.column for m in self.measures if isinstance(m, Distinct)}))

    @property
    def needs_time(self) -> bool:
        """Whether the time column is read."""
        return self.unit != "user" or self.period is not None

    @property
    def columns(self) -> dict[str, Column]:
        """The columns that the engine gets, by the names in its SQL."""
        return {
            "u": Column(self.user, "text"),
            **{f"g{i}": Column(name, "text") for i, name in enumerate(self.groups)},
            **{f"v{i}": Column(name, "number") for i, name in enumerate(self.numbers)},
            **{f"t{i}": Column(name, "text") for i, name in enumerate(self.texts)},
            **({"day": Column(self.time, "day")} if self.needs_time else {}),
        }

    @property
    def wanted(self) -> Wanted:
        """What is read of the files: ``columns`` in order, only of rows that are used."""
        conditions = tuple((one.column, one.equal, one.text) for one in self.where)
        return Wanted(tuple(self.columns.values()), self.scale, self.dates, conditions, self.period, self.time)


def encoded(group: Sequence[str]) -> str:
    """The name of a group in the engine. With several columns, each text follows its length in bytes."""
    if len(group) == 1:
        return group[0]
    return "".join(f"{len(text.encode())}:{text}" for text in group)


def decoded(text: str, columns: int) -> tuple[str, ...]:
    """The texts of a group; the inverse of :func:`encoded`."""
    if columns == 1:
        return (text,)
    rest, found = text.encode(), []
    while rest:
        length, _, rest = rest.partition(b":")
        found.append(rest[: int(length)].decode())
        rest = rest[int(length) :]
    return tuple(found)
