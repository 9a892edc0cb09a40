"""A report before encryption."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from kanon.reports.payload import Contribution, Layout

SECOND = 1000
HOUR = 3600 * SECOND
DAY = 24 * HOUR

MAX_BUCKET = 2**128 - 1
MAX_FILTERING_ID = 2**64 - 1

LAYOUT = Layout(slots=20)
"""The default layout: filtering ids of one byte. A client must use one layout for all its reports."""

Api = Literal["attribution-reporting", "kanon"]


def contribution(bucket: int, value: int, filtering_id: int = 0) -> Contribution:
    """A contribution whose numbers fit their fields.

    Raises:
        ValueError: a number does not fit. A negative value would give budget back.
    """
    if not 0 <= bucket <= MAX_BUCKET:
        raise ValueError("a key must have at most 128 bits")
    if not 0 <= value < 2**32:
        raise ValueError("a value must be from 0 to 4294967295")
    if not 0 <= filtering_id <= MAX_FILTERING_ID:
        raise ValueError("a filtering id must have at most 64 bits")
    return Contribution(bucket, value, filtering_id)


@dataclass(frozen=True)
class Report:
    """A report before encryption. Only the contributions are secret; the other fields are sent in clear.

    Attributes:
        contributions: the pairs; empty in a null report.
        scheduled: its send time, in milliseconds.
        reporting_origin: the origin that collects it, ``https://host``.
        api: the api of the client.
        destination: the site of the trigger; attribution only.
        source_registration: the day of the source (its first millisecond, UTC); attribution, if asked for.
    """

    contributions: tuple[Contribution, ...]
    scheduled: int
    reporting_origin: str
    api: Api
    destination: str | None = None
    source_registration: int | None = None

    @property
    def is_null(self) -> bool:
        """Whether the report has no contribution."""
        return not self.contributions


def total(contributions: Iterable[Contribution]) -> int:
    """What the contributions take from a unit's budget."""
    return sum(contribution.value for contribution in contributions)
