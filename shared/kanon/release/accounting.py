"""What adds up: names of datasets, periods of whole UTC days, and the costs of releases of several periods.

Texts that look alike name the same data, so that a slip of the hand opens no second account.
"""

import re
import unicodedata
from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from fractions import Fraction
from functools import lru_cache
from itertools import accumulate

from kanon.release.errors import SpecificationError


def resolved(text: str, known: Collection[str]) -> str:
    """The name of a dataset in the ledger: without outer and double spaces, unless the ledger knows it with them.

    Raises:
        SpecificationError: the ledger knows it by a name that looks like this one, or no name can be made of it.
    """
    name = " ".join(unicodedata.normalize("NFKC", text).split())
    for exact in (text, name):
        if exact in known:
            return exact
    alike = next((one for one in known if look(one) == look(text)), None)
    if alike is not None:
        raise SpecificationError(
            f"the ledger has a dataset {alike!r}, and {text!r} looks like it: write it the same way. For other data"
            " choose a name with other letters or digits"
        )
    if not name.isprintable() or not look(name):
        raise SpecificationError("the name of a dataset has letters or digits, and no invisible characters")
    return name


@lru_cache(maxsize=1024)
def look(name: str) -> str:
    """The letters and digits of a name, without case; every run of other characters counts as one dash."""
    return re.sub(r"[\W_]+", "-", unicodedata.normalize("NFKC", name).casefold()).strip("-")


_EPOCH = date(1970, 1, 1)
_FORM = re.compile(r"(\d{4})-(\d{2})(?:-(\d{2}))?")
HalfOpenInterval = tuple[int, int]
"""A half-open interval."""


@dataclass(frozen=True)
class Period:
    """A union of whole days, as disjoint half-open intervals of days since 1970, in order."""

    days: tuple[HalfOpenInterval, ...]

    @classmethod
    def read(cls, text: str) -> "Period":
        """Read ``2026-01``, ``2026-01-15``, ``2026-01..2026-03`` (both ends included), or several with commas.

        Raises:
            SpecificationError: the text has a wrong form.
        """
        intervals = []
        for part in text.split(","):
            first, dots, last = part.partition("..")
            start, end = _days(first, text)[0], _days(last if dots else first, text)[1]
            if start >= end:
                raise SpecificationError(f"--days {text}: the end is before the start")
            intervals.append((start, end))
        return cls(tuple(_merged(intervals)))

    def __str__(self) -> str:
        return ",".join(f"{_EPOCH + timedelta(a)}..{_EPOCH + timedelta(b - 1)}" for a, b in self.days)


def _days(text: str, whole: str) -> HalfOpenInterval:
    """The first day of a month or day, and the day after its last one."""
    found = _FORM.fullmatch(text.strip())
    try:
        if found is None:
            raise ValueError
        year, month, day = int(found[1]), int(found[2]), int(found[3] or 1)
        start = datetime(year, month, day, tzinfo=UTC).date()
        following = date(year + month // 12, month % 12 + 1, 1)
        end = start + timedelta(1) if found[3] else following
    except (ValueError, OverflowError) as error:
        raise SpecificationError(f"--days {whole}: write 2026-01, 2026-01-15 or 2026-01..2026-03") from error
    if start < _EPOCH:
        raise SpecificationError(f"--days {whole}: times begin in 1970")
    return (start - _EPOCH).days, (end - _EPOCH).days


def _merged(intervals: Iterable[HalfOpenInterval]) -> list[HalfOpenInterval]:
    merged: list[HalfOpenInterval] = []
    for start, end in sorted(intervals):
        if merged and start <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(end, merged[-1][1])
        else:
            merged.append((start, end))
    return merged


def month_of(day: int) -> int:
    """The number of a day's month since 1970."""
    when = _EPOCH + timedelta(day)
    return 12 * (when.year - 1970) + when.month - 1


def touched(period: Period | None, unit: str) -> tuple[HalfOpenInterval, ...] | None:
    """The days or months that a period touches, as intervals; None if it touches all.

    The costs of disjoint periods do not add up for units inside one period: user-days for periods of days, user-months
    for whole months. For users they always add up, because a user may have rows in every period.
    """
    if period is None or unit == "user":
        return None
    if unit == "user-day":
        return period.days
    return tuple(_merged((month_of(start), month_of(end - 1) + 1) for start, end in period.days))


PrivacyCost = tuple[Fraction, Fraction]


def most_spent(costs: Iterable[tuple[tuple[HalfOpenInterval, ...] | None, PrivacyCost]]) -> PrivacyCost:
    """The largest epsilon and the largest delta spent on any one place.

    Args:
        costs: the days or months that each release touches (None: all) and its (epsilon, delta).
    """
    told = list(costs)
    return _most((days, epsilon) for days, (epsilon, _) in told), _most((days, delta) for days, (_, delta) in told)


def _most(amounts: Iterable[tuple[tuple[HalfOpenInterval, ...] | None, Fraction]]) -> Fraction:
    everywhere = Fraction(0)
    changes: defaultdict[int, Fraction] = defaultdict(Fraction)
    for intervals, amount in amounts:
        if intervals is None:
            everywhere += amount
        for start, end in intervals or ():
            changes[start] += amount
            changes[end] -= amount
    return everywhere + max(accumulate((changes[place] for place in sorted(changes)), initial=Fraction(0)))
