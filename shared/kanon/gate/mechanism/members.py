"""The M most recent distinct clients of a set. No later decision depends on any others.

Let ``M = k + max(threshold law) - min(query law)``. A count of M or more crosses with any noise, so
``min(count, M)`` and ``count`` give the same decision. In every later window ``min(count, M)`` depends only on
the M clients that joined last. (Not in the paper; proof in docs/proofs/privacy.md.)
"""

from collections.abc import Iterable
from typing import NamedTuple


class Member(NamedTuple):
    """A client token and the last step at which it joined."""

    token: int
    last: int


def most_recent(
    members: Iterable[Member], joined: Iterable[int], step: int, since: int, keep: int
) -> tuple[Member, ...]:
    """Add the tokens that joined at ``step`` to ``members``; return the ``keep`` most recent, latest first.

    Members whose last join is before the step ``since`` are dropped. Members with the same
    last step are ordered by token, so the result does not depend on the order of the rows.
    """
    last = {member.token: member.last for member in members if member.last >= since}
    last.update(dict.fromkeys(joined, step))
    ordered = sorted(last.items(), key=lambda item: (-item[1], item[0]))
    return tuple(Member(token, at) for token, at in ordered[:keep])


def count_since(members: Iterable[Member], since: int) -> int:
    """The members whose last join is at the step ``since`` or later: the count without further joins."""
    return sum(member.last >= since for member in members)
