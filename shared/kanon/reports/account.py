"""Units of account: a job charges its budget to them. Clear fields alone decide them."""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from typing import NamedTuple

from kanon.noise.words import length_prefixed
from kanon.reports.shared_info import ATTRIBUTION_APIS, SharedInfo

HOUR, DAY = 3600, 86_400
MAX_AGE, MAX_AHEAD = 90 * DAY, DAY
"""The largest age of a report when a job is received, and how far ahead its time may be. Budgets are kept as long."""


class Source(NamedTuple):
    """The clear fields that a unit is made of."""

    api: str
    version: str
    reporting_origin: str
    attribution_destination: str | None
    source_registration_time: int | None
    hour: int


@dataclass(frozen=True)
class Wanted:
    """The reports that a job asks for, by clear fields.

    Args:
        destinations: the only attribution destinations, ``None`` for any.
        hours: the only hours of ``scheduled_report_time``, since 1970; ``None`` for any.
        without: sources whose reports are left out.
    """

    destinations: frozenset[str] | None = None
    hours: range | None = None
    without: frozenset[Source] = frozenset()

    def takes(self, source: Source) -> bool:
        """Whether reports with these clear fields are asked for."""
        asked = self.destinations is None or source.attribution_destination in self.destinations
        timely = self.hours is None or source.hour in self.hours
        return asked and timely and source not in self.without


EVERY = Wanted()


class Unit(NamedTuple):
    """One budget: a budget key, an origin, and an hour of the scheduled report time (hours since 1970)."""

    key: str
    origin: str
    hour: int

    @property
    def row(self) -> bytes:
        """SHA-256 of key, origin and day: the row with the 24 hours of that day."""
        day = self.hour // 24
        return hashlib.sha256(
            length_prefixed(b"kanon/reports/row/1", self.key.encode(), self.origin.encode(), day.to_bytes(8, "big"))
        ).digest()


def moment(seconds: float) -> str:
    """A time as RFC 3339, UTC, such as ``2026-01-31T23:59:59Z``."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def source_of(info: SharedInfo) -> Source:
    """The fields of a report that decide its units."""
    return Source(
        info.api,
        info.version,
        info.reporting_origin,
        info.attribution_destination,
        info.source_registration_time,
        info.scheduled_report_time // HOUR,
    )


@lru_cache(maxsize=4096)
def budget_key(
    api: str, version: str, origin: str, destination: str | None, registered: int | None, filtering_id: int
) -> str:
    """SHA-256 of the joined fields, in hexadecimal, as the aggregation service computes it.

    The filtering id is left out for version 0.x with id 0: old units keep their names.
    """
    parts = [api, version, origin]
    if api in ATTRIBUTION_APIS:
        parts.append(destination or "")
        if registered is not None:
            parts.append(moment(registered))
    if filtering_id or not version.startswith("0."):
        parts.append(str(filtering_id))
    return hashlib.sha256("-".join(parts).encode()).hexdigest()


def units(sources: Iterable[Source], filtering_ids: Iterable[int]) -> list[Unit]:
    """The units that a job charges, in order: one for each source and each *requested* filtering id.

    The contents of reports have no influence: a null report in place of a report gives the same units.
    """
    requested = tuple(filtering_ids)
    charged = {
        Unit(budget_key(*source[:5], filtering_id), source.reporting_origin, source.hour)
        for source in sources
        for filtering_id in requested
    }
    return sorted(charged)
