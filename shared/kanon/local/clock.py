"""Simulated time and the times at which a schedule fires."""

from __future__ import annotations

import calendar
import re
import time
from dataclasses import dataclass

from kanon import clock as service_clock


class Clock:
    """The clock of the service: simulated from ``start`` (unix seconds) on; if ``None``, the real one, put forward.

    It replaces ``kanon.clock.now`` and nothing else.

    Attributes:
        ahead: seconds by which a real clock was put forward.
    """

    def __init__(self, start: float | None) -> None:
        self._time = start
        self.ahead = 0.0

    def now(self) -> float:
        """Unix time in seconds."""
        return time.time() + self.ahead if self._time is None else self._time

    def set(self, moment: float) -> None:
        """Set the clock without firing any schedule. A real clock never goes back."""
        if self._time is None:
            self.ahead = max(self.ahead, moment - time.time())
        else:
            self._time = float(moment)

    def install(self) -> None:
        """Become the service's clock."""
        self.uninstall()
        _installed.append(self)
        service_clock.now = self.now

    def uninstall(self) -> None:
        """Give the service the clock that was installed before, or the real one; unless it has another one now."""
        if self in _installed:
            _installed.remove(self)
        if service_clock.now == self.now:
            service_clock.now = _installed[-1].now if _installed else time.time


_installed: list[Clock] = []


@dataclass(frozen=True)
class Every:
    """Fires ``offset`` s after each multiple of ``seconds``: faster than EventBridge can."""

    seconds: int
    offset: int = 0

    def next_after(self, moment: float) -> float:
        """The first such second after ``moment``."""
        return ((moment - self.offset) // self.seconds + 1) * self.seconds + self.offset


@dataclass(frozen=True)
class Cron:
    """EventBridge's ``cron(minutes hours days months weekdays years)``, in UTC."""

    expression: str

    def next_after(self, moment: float) -> float:
        """The first such second after ``moment``; ``ValueError`` if there is none or the expression is invalid."""
        match = re.fullmatch(r"cron\((\S+) (\S+) (\S+) (\S+) (\S+) (\S+)\)", self.expression)
        if match is None:
            raise ValueError(f"{self.expression!r} is not cron(...) with six fields")
        return float(_next_cron(match.groups(), int(moment)))


ScheduleExpression = Every | Cron
"""Decides when the evaluation starts."""

_FIELDS = ((0, 59), (0, 23), (1, 31), (1, 12), (1, 7), (1970, 2199))
_SECONDS_A_DAY = 86400


def _values(field: str, low: int, high: int) -> frozenset[int]:
    """The numbers a cron field names: ``*``, ``?``, lists, ranges and steps."""
    values: set[int] = set()
    for part in field.split(","):
        span, _, step = part.partition("/")
        if span in ("*", "?"):
            first, last = low, high
        else:
            ends = [int(end) for end in span.split("-")]
            first, last = ends[0], ends[-1] if len(ends) > 1 or not step else high
        values.update(range(first, last + 1, int(step or 1)))
    return frozenset(values)


def _next_cron(fields: tuple[str, ...], moment: int) -> int:
    minutes, hours, days, months, weekdays, years = (
        _values(field, low, high) for field, (low, high) in zip(fields, _FIELDS, strict=True)
    )
    day = moment - moment % _SECONDS_A_DAY
    for midnight in range(day, day + 10 * 366 * _SECONDS_A_DAY, _SECONDS_A_DAY):
        date = time.gmtime(midnight)
        weekday = calendar.weekday(*date[:3])
        if (
            date.tm_mday in days
            and date.tm_mon in months
            and date.tm_year in years
            and (weekday + 1) % 7 + 1 in weekdays  # AWS counts from Sunday = 1
        ):
            for hour in sorted(hours):
                for minute in sorted(minutes):
                    if midnight + hour * 3600 + minute * 60 > moment:
                        return midnight + hour * 3600 + minute * 60
    raise ValueError(f"cron({' '.join(fields)}) does not fire within ten years")
