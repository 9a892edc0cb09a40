"""Ratios of processor time, measured turn by turn in one process.

Times on a shared machine vary from minute to minute, but the ratio of two adjacent measurements is stable. So both
pieces of work take turns, and each ratio is that of two adjacent turns.
"""

from __future__ import annotations

import gc
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple


class Turn(NamedTuple):
    """A piece of work and the number of its units. Its preparation is not measured."""

    units: int
    work: Callable[[], Any]


@dataclass(frozen=True)
class Ratio:
    """A measured ratio of processor times, and its target if it has one.

    ``inside`` and ``against`` say what each side includes. ``at_least`` makes the target a lower limit. Times in s, for
    one of ``unit``.
    """

    name: str
    inside: str
    against: str
    unit: str
    ratios: tuple[float, ...]
    seconds: float
    seconds_against: float
    target: float | None
    at_least: bool = False

    @property
    def median(self) -> float:
        """The ratio: the median over the turns."""
        return statistics.median(self.ratios)

    @property
    def met(self) -> bool | None:
        """Whether the target is met; None without a target."""
        if self.target is None:
            return None
        return self.median >= self.target if self.at_least else self.median <= self.target

    @property
    def figures(self) -> dict[str, object]:
        """What goes into the history."""
        return {
            "name": self.name,
            "inside": self.inside,
            "against": self.against,
            "ratio": round(self.median, 4),
            "least": round(min(self.ratios), 4),
            "most": round(max(self.ratios), 4),
            "microseconds": round(1e6 * self.seconds, 2),
            "microseconds_against": round(1e6 * self.seconds_against, 2),
            "unit": self.unit,
            "target": self.target,
            "met": self.met,
        }


@dataclass(frozen=True)
class Count:
    """A count, which is the same on every machine. ``most`` is the target."""

    name: str
    against: str
    value: float
    most: float

    @property
    def met(self) -> bool:
        """Whether the target is met."""
        return self.value <= self.most

    @property
    def figures(self) -> dict[str, object]:
        """What goes into the history."""
        value = round(self.value, 4)
        return {"name": self.name, "against": self.against, "count": value, "target": self.most, "met": self.met}


@dataclass(frozen=True)
class Taken:
    """Seconds that a command took once, and their target. ``remark`` qualifies them.

    They depend on the machine, so a miss is shown and does not make a run fail.
    """

    name: str
    inside: str
    seconds: float
    remark: str
    most: float | None

    @property
    def met(self) -> bool | None:
        """Whether the target is met; None without a target."""
        return None if self.most is None else self.seconds <= self.most

    @property
    def figures(self) -> dict[str, object]:
        """What goes into the history."""
        return {
            "name": self.name,
            "inside": self.inside,
            "seconds": round(self.seconds, 2),
            "remark": self.remark,
            "target": self.most,
            "met": self.met,
        }


def compare(
    name: str,
    against: str,
    unit: str,
    ours: Callable[[], Turn],
    bare: Callable[[], Turn],
    *,
    inside: str,
    turns: int,
    target: float | None,
    at_least: bool = False,
    children: bool = False,
) -> Ratio:
    """Measure both pieces of work in turns. The first turn warms up and is not counted.

    Args:
        name: the name of the row.
        against: the reference of the measurement, and what it includes.
        unit: the unit of a turn.
        ours: prepares a turn of our work.
        bare: prepares a turn of the reference.
        inside: what our side includes.
        turns: the number of counted turns.
        target: the upper limit of the ratio; with ``at_least`` the lower limit; None for none.
        at_least: the ratio is that of the reference to ours, so larger is better.
        children: measure the time of child processes, which do the work and are awaited.
    """
    mine: list[float] = []
    theirs: list[float] = []
    for number in range(turns + 1):
        # The first one alternates.
        for prepare, taken in [(ours, mine), (bare, theirs)][:: 1 if number % 2 else -1]:
            turn = prepare()
            gc.collect()
            began = spent(children)
            turn.work()
            taken.append((spent(children) - began) / turn.units)
    mine, theirs = mine[1:], theirs[1:]
    ratios = tuple(b / o if at_least else o / b for o, b in zip(mine, theirs, strict=True))
    return Ratio(
        name, inside, against, unit, ratios, statistics.median(mine), statistics.median(theirs), target, at_least
    )  # fmt: skip


def spent(children: bool) -> float:
    """The processor time so far, in s, of this process or of its awaited children."""
    times = os.times()
    return times.children_user + times.children_system if children else time.process_time()
