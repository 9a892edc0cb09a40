"""The specification of a release. It is public; its digest names it in the ledger."""

import json
from dataclasses import dataclass, fields
from fractions import Fraction
from functools import cached_property
from hashlib import sha256
from typing import Any, Literal, get_args

from kanon.joinlog.values import Dates
from kanon.release.accounting import Period
from kanon.release.aggregates import ALL_USERS, Aggregate, AutomaticSum, Quantiles, TotalsAggregate, aggregate
from kanon.release.bounding import Bounding, Cells, Centred, Condition, Distinct, Measure, encoded
from kanon.release.errors import SpecificationError

PrivacyUnit = Literal["user", "user-day", "user-month"]
NoiseChoice = Literal["auto", "laplace", "gaussian"]
UNITS: tuple[PrivacyUnit, ...] = get_args(PrivacyUnit)
MOST_KAPPA = 1000


@dataclass(frozen=True, kw_only=True)
class Spec:
    """The specification of a release.

    Attributes:
        groups: columns whose values together name a group.
        epsilon, delta: the guarantee for one unit, over the whole release.
        user: column of the owner of a row.
        unit: the unit of privacy: all rows of a ``user``, or of a user on one UTC day or in one UTC month.
        groups_per_user: kappa, the number of groups in which a user counts.
        floor: groups with fewer users are never released.
        aggregates: texts in the forms of ``aggregates.aggregate``.
        weights: shares of epsilon for the count and each aggregate; equal if empty.
        values_per_group: number of values of a user that count in a group.
        scale: decimal places of values, which are rounded half to even; None: values must be whole.
        cells: number of cells in the grid of quantiles.
        noise: noise of the count: ``laplace`` (two-sided), ``gaussian``, or ``auto``, the one with the lower threshold.
        only_groups: release only the names of the groups.
        public_groups: the list of groups to release, all of them; None if the data decide.
        period: the days to use; None for all.
        where: conditions on rows.
        time: column of the time.
        dates: the order of dates such as 01/02/2026, ``mdy`` or ``dmy``; None: they are refused.
        skip_bad_rows: leave out rows that cannot be read; otherwise they refuse the release.
    """

    groups: tuple[str, ...]
    epsilon: Fraction
    delta: Fraction
    user: str = "client"
    unit: PrivacyUnit = "user"
    groups_per_user: int = 1
    floor: int = 1
    aggregates: tuple[str, ...] = ()
    weights: tuple[int, ...] = ()
    values_per_group: int = 1
    scale: int | None = None
    cells: int = 4096
    noise: NoiseChoice = "auto"
    only_groups: bool = False
    public_groups: tuple[tuple[str, ...], ...] | None = None
    period: Period | None = None
    where: tuple[Condition, ...] = ()
    time: str = "time"
    dates: Dates | None = None
    skip_bad_rows: bool = False

    def __post_init__(self) -> None:
        for name in ("epsilon", "delta"):
            value = getattr(self, name)
            if not isinstance(value, int | Fraction):  # a float would make shares inexact
                raise SpecificationError(f"{name} is a Fraction, not {value!r}: write Fraction('0.1')")
            object.__setattr__(self, name, Fraction(value))
        for wrong, message in self._faults():
            if wrong:
                raise SpecificationError(message)
        _ = self.asked  # reads every aggregate
        for given, used, option, user in self._uses():
            if given and not used:  # it would change the digest alone: the same release would be charged again
                raise SpecificationError(f"{option} has no effect without {user}: leave it out")
        if ALL_USERS in self.aggregates and not self.drops_users:
            raise SpecificationError(f"every user counts in each of its listed groups: leave out {ALL_USERS}")

    def _faults(self) -> list[tuple[bool, str]]:
        weights, public = 1 + len(self.aggregates), self.public_groups is not None
        return [
            (isinstance(self.groups, str), "groups is a tuple of column names: write (name,)"),
            (not self.groups or not all(self.groups), "--group names at least one column"),
            (len(set(self.groups)) < len(self.groups), "--group names a column twice"),
            (self.user in self.groups, "the user column cannot be a group: every group would have one user"),
            (not 0 < self.epsilon <= 100, "--epsilon must lie between 0 and 100"),
            (not 0 <= self.delta < Fraction(1, 2), "--delta must lie between 0 and 0.5"),
            (not self.delta and not public, "--delta must be above 0 unless the groups are public"),
            (self.unit not in UNITS, f"--unit is one of {', '.join(UNITS)}"),
            (not 1 <= self.groups_per_user <= MOST_KAPPA, f"--groups-per-user must lie between 1 and {MOST_KAPPA}"),
            (not 1 <= self.floor <= 1 << 40, "--floor must be at least 1"),
            (self.floor > 1 and self.unit != "user", "--floor counts users: it needs --unit user"),
            (not 1 <= self.values_per_group <= 1000, "--values-per-group must lie between 1 and 1000"),
            (not 0 <= self.places <= 18, "--scale must lie between 0 and 18"),
            (self.dates not in (None, *get_args(Dates)), f"--dates is one of {', '.join(get_args(Dates))}"),
            (self.noise not in get_args(NoiseChoice), f"--noise is one of {', '.join(get_args(NoiseChoice))}"),
            (weights > 1 and len(self.weights) not in (0, weights), f"--weight takes {weights} numbers: count first"),
            (any(not 1 <= weight <= 1000 for weight in self.weights), "weights are whole numbers from 1 to 1000"),
            (self.only_groups and bool(self.aggregates), "--only groups releases no aggregates"),
            (self.aggregates.count(ALL_USERS) > 1, f"--aggregate {ALL_USERS} is given twice: leave one out"),
            (self.only_groups and public, "public groups exclude --only groups"),
            (self.only_groups and self.noise != "auto", "--only groups draws no noise: leave out --noise"),
            (public and self.floor > 1, "public groups are all released: leave out --floor"),
            (public and self.noise != "auto", "public groups get Laplace noise: leave out --noise"),
        ]

    def _uses(self) -> list[tuple[bool, bool, str, str]]:
        """Options that only some releases use: whether it is given, whether it is used, its name, and what uses it."""
        bounding = self.bounding
        times = "--days or another --unit"
        sampled = any(isinstance(one, Centred | Distinct) for one in self.measures)
        in_cells = any(isinstance(one, Cells) for one in self.measures)
        return [
            (bool(self.weights), bool(self.aggregates), "--weight", "--aggregate"),
            (self.values_per_group > 1, sampled, "--values-per-group", "a mean, var, stddev or distinct"),
            (self.scale is not None, bool(bounding.numbers), "--scale", "an aggregate of numbers"),
            (self.cells != Spec.cells, in_cells, "--cells", "a quantile, min or max"),
            (self.time != Spec.time, bounding.needs_time, "--time", times),
            (self.dates is not None, bounding.needs_time, "--dates", times),
        ]

    @cached_property
    def asked(self) -> tuple[Aggregate, ...]:
        """The aggregates.

        Raises:
            SpecificationError: one cannot be read.
        """
        return tuple(
            aggregate(text, scale=self.places, values=self.values_per_group, cells=self.cells)
            for text in self.aggregates
        )

    @property
    def drops_users(self) -> bool:
        """Whether a group may have users that do not count in it, because they have too many groups."""
        return self.listed is None or len(self.listed) > self.groups_per_user

    @property
    def counted(self) -> str:
        """The column of the noisy counts."""
        return f"{self.units}_counted" if self.drops_users else self.units

    @property
    def units(self) -> str:
        """What a count counts: users, or their days or months."""
        return {"user": "users", "user-day": "user_days", "user-month": "user_months"}[self.unit]

    @property
    def places(self) -> int:
        """Decimal places of values as they are held."""
        return self.scale or 0

    @property
    def roles(self) -> tuple[str, ...]:
        """The canonical text of each aggregate, with its index; two aggregates never share one."""
        return tuple(f"{i}/{text}" for i, text in enumerate(self.aggregates))

    @cached_property
    def measures(self) -> tuple[Measure, ...]:
        """The measures that the engine computes, each once."""
        wanted: list[Measure] = []
        for one in self.asked:
            if isinstance(one, Quantiles | AutomaticSum):
                wanted.append(one.measure)
            elif isinstance(one, TotalsAggregate):
                wanted += [need.measure for need in one.needs]
        return tuple(dict.fromkeys(wanted))

    @property
    def bounding(self) -> Bounding:
        """The engine's part."""
        return Bounding(
            user=self.user, groups=self.groups, measures=self.measures, kappa=self.groups_per_user, scale=self.scale,
            unit=self.unit, time=self.time, period=self.period.days if self.period else None, where=self.where,
            listed=self.listed, left_out=ALL_USERS in self.aggregates, dates=self.dates,
            skip_bad_rows=self.skip_bad_rows,
        )  # fmt: skip

    @cached_property
    def listed(self) -> tuple[str, ...] | None:
        """The public groups as the engine names them, sorted by bytes; None if the data decide."""
        if self.public_groups is None:
            return None
        return tuple(sorted({encoded(group) for group in self.public_groups}, key=str.encode))

    def as_json(self) -> dict[str, Any]:
        """The specification in exact texts, with only a digest of the public groups."""
        told: dict[str, Any] = {}
        for field in fields(self):
            value: Any = self.places if field.name == "scale" else getattr(self, field.name)
            if field.name in ("dates", "skip_bad_rows") and not value:
                continue  # the digest of older specifications stays the same
            if isinstance(value, Fraction):
                value = str(value)
            elif field.name == "where":
                value = [[one.column, "=" if one.equal else "!=", one.text] for one in value]
            elif isinstance(value, Period):
                value = str(value)
            elif field.name == "public_groups" and value is not None:
                value = sha256("\n".join(f"{len(g.encode())}:{g}" for g in self.listed or ()).encode()).hexdigest()
            told[field.name] = value
        return told

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the canonical JSON text, in hexadecimal."""
        text = json.dumps(self.as_json(), sort_keys=True, separators=(",", ":"))
        return sha256(b"kanon/release/specification/1\n" + text.encode()).hexdigest()
