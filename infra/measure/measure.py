"""Ratios of processor time, measured turn by turn in one process.

Times on a shared machine differ from minute to minute; what two pieces of work take next to each other does
not. So both take turns, and the ratio is of turns that are neighbours.
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
    """A piece of work and how many units of it there are; to prepare it is not measured."""

    units: int
    work: Callable[[], Any]


@dataclass(frozen=True)
class Ratio:
    """What was measured: processor time against that of something else, and the target.

    ``at_least`` turns the target round: the ratio is to be no smaller. Times in s, for one of ``unit``.
    """

    name: str
    against: str
    unit: str
    ratios: tuple[float, ...]
    seconds: float
    seconds_against: float
    target: float
    at_least: bool = False

    @property
    def median(self) -> float:
        """The ratio: the median over the turns."""
        return statistics.median(self.ratios)

    @property
    def met(self) -> bool:
        """Whether the target is met."""
        return self.median >= self.target if self.at_least else self.median <= self.target

    @property
    def figures(self) -> dict[str, object]:
        """What goes into the history."""
        return {
            "name": self.name,
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
    """What was counted, not timed: the same on every machine. ``most`` is the target."""

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


def compare(
    name: str,
    against: str,
    unit: str,
    ours: Callable[[int], Turn],
    bare: Callable[[int], Turn],
    *,
    turns: int,
    target: float,
    at_least: bool = False,
    children: bool = False,
) -> Ratio:
    """Let both take turns, one more turn than counted to warm up.

    Args:
        name: what is measured.
        against: what it is measured against.
        unit: what the units of a turn are.
        ours: prepares a turn.
        bare: prepares a turn of the other.
        turns: how many are counted.
        target: what the ratio of their times is to be at most, or at least.
        at_least: the ratio is that of the other to ours: the larger the better.
        children: the work is done by processes that are started and awaited; theirs is the time.
    """
    mine: list[float] = []
    theirs: list[float] = []
    for number in range(turns + 1):
        # Each goes first every other time.
        for prepare, taken in [(ours, mine), (bare, theirs)][:: 1 if number % 2 else -1]:
            turn = prepare(number)
            gc.collect()
            began = _spent(children)
            turn.work()
            taken.append((_spent(children) - began) / turn.units)
    mine, theirs = mine[1:], theirs[1:]
    ratios = tuple(b / o if at_least else o / b for o, b in zip(mine, theirs, strict=True))
    return Ratio(name, against, unit, ratios, statistics.median(mine), statistics.median(theirs), target, at_least)


def _spent(children: bool) -> float:
    """Processor time so far, s, of this process or of those it has awaited."""
    times = os.times()
    return times.children_user + times.children_system if children else time.process_time()
