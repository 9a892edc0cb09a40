"""The sets that an exact threshold shows to turn true, hour by hour, and whom they announce.

A query such as ``HAVING COUNT(DISTINCT client) >= 50`` over the last 30 days, run every hour, shows a set for the first
time in the hour in which its count reaches 50. If exactly one client was new in that hour, it is announced: whoever
knows that it was the only one that did anything learns that it joined this set.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from kanon.joinlog import Columns, LogError, LogReading
from kanon.joinlog.numbered import Texts, read_batches, together
from kanon.risk.errors import RiskError

HOUR = 3_600
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Flips:
    """How often sets turned true: in all, with exactly one new client in that hour, and the sets that did."""

    turned: int
    alone: int
    sets: int


def flips(source: Path, value: str, user: str, k: int, hours: int, reading: LogReading | None = None) -> Flips:
    """The flips of a log.

    Args:
        source: a CSV, JSON or Parquet file with the column ``time``.
        value: the column of sets.
        user: the column of clients.
        k: a set is shown from so many clients on.
        hours: the length of the window, in hours.
        reading: how the log is read.

    Raises:
        RiskError: the file or a row of it cannot be read.
    """
    try:
        batches = list(read_batches(source, Columns("time", value, user), reading))
    except LogError as error:
        raise RiskError(str(error)) from error
    if not batches:
        return Flips(0, 0, 0)
    sets = together([batch.sets for batch in batches]).distinct()
    clients = together([batch.clients for batch in batches]).distinct()
    steps = np.concatenate([batch.times for batch in batches]) // HOUR
    return counted(sets, clients, steps.astype(np.int64), k, hours)


def counted(sets: Texts, clients: Texts, steps: Ints, k: int, window: int) -> Flips:
    """The flips of rows, each with a set, a client and a step, (n,)."""
    members, numbers = np.unique(sets.numbers * len(clients.texts) + clients.numbers, return_inverse=True)
    order = np.lexsort((steps, numbers))
    member, step = numbers[order], steps[order]
    # A client counts in a run of steps: from a join to one window after the last join that follows before the end.
    begins = np.append(True, (member[1:] != member[:-1]) | (step[1:] > step[:-1] + window))
    last = np.append(np.flatnonzero(begins)[1:], len(step)) - 1
    owner = members[member[begins]] // len(clients.texts)
    low, span = int(step.min()), int(np.ptp(step)) + window + 1
    came, left = owner * span + (step[begins] - low), owner * span + (step[last] + window - low)
    at, place = np.unique(np.concatenate((came, left)), return_inverse=True)
    new = np.bincount(place[: len(came)], minlength=len(at))
    count = np.cumsum(new - np.bincount(place[len(came) :], minlength=len(at)))  # 0 at the end of every set
    turned = (count >= k) & (np.append(0, count[:-1]) < k)
    alone = turned & (new == 1)
    return Flips(int(turned.sum()), int(alone.sum()), len(np.unique(at[turned] // span)))
