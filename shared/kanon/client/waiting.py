"""When a call is repeated, and how long an answer is kept: pure functions of what the service said and a random number.

Random numbers are uniform in [0, 1). ``clients/vectors.json`` has vectors for both functions.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from random import SystemRandom

REPEATED = frozenset({429, 500, 502, 503, 504})
"""Statuses after which the same request may succeed."""
LONGEST = 30.0
"""Seconds; the range of the jitter ends here, but not what ``Retry-After`` asks for."""
CLOCK_MARGIN = 60
"""A join names the step of so many seconds ago: the service takes it for 120 s more, so clocks may differ a minute."""

HeaderFields = Iterable[tuple[str, str]]
_SYSTEM = SystemRandom()


def chance() -> float:
    """A random number for times of joins. Nobody can tell it from earlier ones: they would show which have one sender.

    >>> 0 <= chance() < 1
    True
    """
    return _SYSTEM.random()


def wait(failed: int, random: float, retry_after: int | None) -> float:
    """Seconds to wait after the given number of failed attempts.

    Full jitter: a uniform part of a range that starts at one second and doubles. It comes on top of ``Retry-After``.

    >>> [wait(failed, 0.5, None) for failed in (1, 2, 3, 20)], wait(1, 0.5, 7)
    ([0.5, 1.0, 2.0, 15.0], 7.5)
    """
    return (retry_after or 0) + random * min(LONGEST, 2.0 ** min(failed - 1, 10))


def join_step(now: float, period: int) -> int:
    """The step that a join names at a time (Unix s), with steps of ``period`` seconds.

    >>> [join_step(now, 3600) for now in (7200, 7259, 7260)]
    [1, 1, 2]
    """
    return int((now - min(CLOCK_MARGIN, period // 2)) // period)


def kept(max_age: int, age: int, spread: float, random: float) -> float:
    """Seconds for which an answer is kept: until the next update, and a random part of ``spread`` longer.

    Without the second part all clients would ask in the same second.

    >>> kept(1800, 600, spread=360, random=0.25)
    1290.0
    """
    return max(0, max_age - age) + random * spread


def retry_after(headers: HeaderFields) -> int | None:
    """The seconds of ``Retry-After``; None without it, and for its form with a date."""
    text = header(headers, "retry-after")
    return int(text) if text.isdecimal() else None


def ages(headers: HeaderFields) -> tuple[int, int] | None:
    """``max-age`` of ``Cache-Control`` and ``Age``, in seconds; None if the answer may not be kept."""
    found = re.search(r"\bmax-age=(\d+)", header(headers, "cache-control"))
    age = header(headers, "age")
    return (int(found[1]), int(age) if age.isdecimal() else 0) if found else None


def header(headers: HeaderFields, name: str) -> str:
    """The first header of a name in lower case, or an empty text."""
    return next((value.strip() for key, value in headers if key.lower() == name), "")
