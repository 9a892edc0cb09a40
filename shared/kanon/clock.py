"""The server's clock, the only source of time. All code below the handlers takes time as an argument.

Keys that all clients must have in common belong to weeks, which begin on Monday at 00:00 UTC. The key of the week
before holds for a day more, and that of the next week some minutes earlier, because neither clients nor instances have
the same clock. So at most two keys are valid.
"""

import time

now = time.time
sleep = time.sleep

WEEK, DAY = 7 * 86_400, 86_400
MONDAY = 4 * DAY
"""The first Monday of Unix time."""
AFTER, BEFORE = DAY, 300
"""Seconds for which the key of a week holds after it, and before."""
LATE = 120
"""Seconds for which joins that name a step are still taken after it."""


def week_of(at: float) -> int:
    """The number of the week of a time (Unix s)."""
    return int(at - MONDAY) // WEEK


def end_of_week(week: int) -> int:
    """The Unix time at which a week ends."""
    return MONDAY + (week + 1) * WEEK


def cacheable(at: float) -> int:
    """Seconds for which the key of a week may be cached at ``at`` (Unix s): an hour, or less at its end."""
    return min(3600, int(end_of_week(week_of(at)) - at))


def valid_weeks(at: float) -> list[int]:
    """The weeks whose keys hold: the current one, and one beside it."""
    return sorted({week_of(at), week_of(at - AFTER), week_of(at + BEFORE)})


def in_time(step: int, at: float, period: int) -> bool:
    """Whether a request of this step is taken: of the current one, or of the one before for ``LATE`` seconds."""
    behind = int(at // period) - step
    return behind == 0 or (behind == 1 and at % period < LATE)
