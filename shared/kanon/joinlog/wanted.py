"""What a reader takes from the rows of a log."""

from dataclasses import dataclass
from typing import Literal, NamedTuple

from kanon.joinlog.values import Dates

Kind = Literal["text", "optional", "number", "time", "day"]
"""``text`` may not be empty, ``optional`` may. A ``number`` is ``value * 10**scale``, a ``time`` microseconds."""
CellValue = str | int | None


class Column(NamedTuple):
    """A column that a reader takes."""

    name: str
    kind: Kind


@dataclass(frozen=True)
class Wanted:
    """What a reader takes from each row.

    Attributes:
        columns: the columns of the result, in order.
        scale: decimal places of numbers; None: numbers must be whole.
        dates: the order of dates such as 01/02/2026; None: they are refused.
        conditions: use only rows whose column (name) equals the text (True) or does not (False). Other rows are not
            checked further.
        days: use only rows whose ``time`` lies in these half-open intervals of days since 1970; None: all.
        time: the column for ``days``.
    """

    columns: tuple[Column, ...]
    scale: int | None = None
    dates: Dates | None = None
    conditions: tuple[tuple[str, bool, str], ...] = ()
    days: tuple[tuple[int, int], ...] | None = None
    time: str = "time"

    @property
    def names(self) -> tuple[str, ...]:
        """The columns of the log that are read."""
        used = [*(name for name, _, _ in self.conditions), *([self.time] if self.days is not None else [])]
        return tuple(dict.fromkeys([*used, *(column.name for column in self.columns)]))
