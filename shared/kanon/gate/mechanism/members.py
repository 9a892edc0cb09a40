"""The M most recent distinct clients of a set: all that any later decision can depend on.

With ``M = k + max(law1) - min(law2)`` a count of M or more crosses whatever is drawn, so ``min(count, M)``
decides like ``count``; and in every later window ``min(count, M)`` depends only on the M clients that joined
last. (Not in the paper; proof in docs/privacy.md.)
"""

from collections.abc import Iterable
from typing import NamedTuple


class Member(NamedTuple):
    """A client token and the last step at which it joined."""

    token: int
    last: int


def most_recent(
    members: Iterable[Member], joined: Iterable[int], step: int, window: int, keep: int
) -> tuple[Member, ...]:
    """Fold the distinct tokens that joined at ``step`` into ``members``: the ``keep`` most recent, latest first.

    Members whose last join left the window ``(step - window, step]`` are dropped. Among members with the same
    last step the order is by token, so the result does not depend on the order of the rows.
    """
    last = {member.token: member.last for member in members if member.last > step - window}
    last.update(dict.fromkeys(joined, step))
    ordered = sorted(last.items(), key=lambda item: (-item[1], item[0]))
    return tuple(Member(token, at) for token, at in ordered[:keep])


def count_at(members: Iterable[Member], step: int, window: int) -> int:
    """How many members joined in ``(step - window, step]``, if nobody joins after the latest of them."""
    return sum(member.last > step - window for member in members)
