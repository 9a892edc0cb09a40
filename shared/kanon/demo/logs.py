"""Join logs for a replay, in the order of time: recorded, or generated from a seed."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path

import numpy as np

from kanon.joinlog import STANDARD_INPUT, Columns, LogError, LoggedJoin, LogReading, read_joins

HOUR = 3600
DAY = 24 * HOUR
GENERATED_FROM = 1_767_225_600
"""The start of generated logs: the first second of 2026."""


@dataclass(frozen=True)
class DemoLog:
    """Joins in the order of their time, from ``start`` (unix seconds, at a full hour) on."""

    title: str
    start: int
    joins: list[LoggedJoin]

    def by_step(self, period: int) -> Iterator[tuple[int, list[LoggedJoin]]]:
        """Every step from the first to the last join, with its joins; also steps without joins."""
        expected = self.start // period
        for step, joins in groupby(self.joins, key=lambda join: int(join.time // period)):
            yield from ((silent, []) for silent in range(expected, step))
            yield step, list(joins)
            expected = step + 1


def read_log(
    path: Path | str,
    first: datetime | None,
    last: datetime | None,
    columns: Columns = Columns(),  # noqa: B008, a constant
    reading: LogReading | None = None,
) -> DemoLog:
    """The joins of a log within two dates, in the order of time. Only these joins are held in memory.

    Args:
        path: the file, or ``-`` for standard input; ``kanon.joinlog`` has the formats.
        first: the first day to read; ``None`` for the first of the log.
        last: the last day to read, whole; ``None`` for the last of the log.
        columns: the names of its columns.
        reading: how to read it; by default a row that cannot be read is an error.

    Raises:
        LogError: the log cannot be read, or no join lies within the dates.
    """
    low = first.replace(tzinfo=UTC).timestamp() if first else float("-inf")
    high = last.replace(tzinfo=UTC).timestamp() + DAY if last else float("inf")
    title = "standard input" if str(path) == STANDARD_INPUT else Path(path).name
    joins = sorted(join for join in read_joins(path, columns, reading) if low <= join.time < high)
    if not joins and first is last is None:
        raise LogError(f"{title} holds no join: check the file")
    if not joins:
        raise LogError(f"{title} holds no join within these dates: change --from or --to (FROM and TO of make demo)")
    return DemoLog(title, int(joins[0].time // HOUR * HOUR), joins)


def generated_log(seed: int, days: int = 45, joins: int = 52_000, sets: int = 400) -> DemoLog:
    """A log with heavy-tailed popularity, sets that grow and fade, and clients that come back.

    Set number r gets joins in proportion to ``r ** -1.1``; its activity rises and falls around a
    random day within or near the log; a client is drawn from the set's own audience with its own
    heavy tail, so that part of the joins are repetitions. There are more joins by day than by night.
    """
    random = np.random.default_rng(seed)
    popularity = np.arange(1, sets + 1) ** -1.1
    counts = np.maximum(1, np.round(joins * popularity / popularity.sum())).astype(int)
    found: list[LoggedJoin] = []
    for number, count in enumerate(counts, start=1):
        peak, width = random.uniform(0, days), random.uniform(2, days / 3)
        moments = _moments(random, count, peak, width, days)
        audience = max(3, int(count * random.uniform(0.5, 1.2)))
        clients = (audience * random.power(1.6, size=count)).astype(int)
        found += [
            LoggedJoin(GENERATED_FROM + float(moment), f"set-{number:03}", f"{number}-{client}")
            for moment, client in zip(moments, clients, strict=True)
        ]
    return DemoLog(f"generated log, seed {seed}", GENERATED_FROM, sorted(found))


def _moments(random: np.random.Generator, count: int, peak: float, width: float, days: int) -> np.ndarray:
    """Seconds since the start at which a set is joined: a bell around ``peak``, dense by day."""
    hours = np.arange(days * 24)
    bell = np.exp(-(((hours / 24 - peak) / width) ** 2)) + 0.02
    daylight = 1 + 0.8 * np.sin((hours % 24 - 8) / 24 * 2 * np.pi)
    weight = bell * daylight
    chosen = random.choice(hours, size=count, p=weight / weight.sum())
    return chosen * HOUR + random.uniform(0, HOUR, size=count)
