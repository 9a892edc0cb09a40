"""The states of many sets as columns, and :func:`members.most_recent` for all of them at once."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise

import numpy as np
from numpy.typing import NDArray

from kanon.gate.mechanism.above_threshold import SetState
from kanon.gate.mechanism.members import Member

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

NEVER = int(np.iinfo(np.int64).min)
"""Stands for a step that does not exist."""
_TOKEN_BITS = 32


@dataclass(frozen=True)
class Tokens:
    """Client tokens of n sets: those of set i are ``tokens[starts[i] : starts[i + 1]]``.

    Attributes:
        sizes: tokens per set, (n,).
        tokens: all tokens, set after set, (sum of sizes,).
    """

    sizes: Ints
    tokens: Ints

    @classmethod
    def of(cls, joined: Sequence[Sequence[int]]) -> "Tokens":
        """The tokens of sets."""
        sizes = np.fromiter(map(len, joined), np.int64, len(joined))
        return cls(sizes, np.fromiter(chain.from_iterable(joined), np.int64, int(sizes.sum())))

    @property
    def owners(self) -> Ints:
        """The number of the set of each token, (sum of sizes,)."""
        return np.repeat(np.arange(len(self.sizes)), self.sizes)

    @property
    def starts(self) -> Ints:
        """The first position of each set's tokens, and the number of all tokens, (n + 1,)."""
        return np.concatenate(([0], np.cumsum(self.sizes)))


@dataclass(frozen=True)
class States:
    """The states of n sets, column by column; :class:`above_threshold.SetState` describes them.

    Attributes:
        keys: n set keys.
        members: the tokens of their members, latest first.
        lasts: the last steps of these members, (number of members,).
        crossings: the last two crossings, oldest first, (n, 2). A set with one has NEVER in the first column.
        evaluated: (n,), NEVER if a set was not evaluated.
        wake_ups: (n,), NEVER if there is none.
    """

    keys: Sequence[bytes]
    members: Tokens
    lasts: Ints
    crossings: Ints
    evaluated: Ints
    wake_ups: Ints

    @classmethod
    def of(cls, sets: Sequence[tuple[bytes, SetState]]) -> "States":
        """The states of sets."""
        states = [state for _, state in sets]
        return cls(
            [set_key for set_key, _ in sets],
            Tokens.of([[member.token for member in state.members] for state in states]),
            np.array([member.last for state in states for member in state.members], np.int64),
            crossing_columns(state.crossings for state in states),
            step_column(state.evaluated for state in states),
            step_column(state.wake_up for state in states),
        )

    def __len__(self) -> int:
        return len(self.keys)

    def part(self, chosen: Bools) -> "States":
        """The states of the ``chosen`` sets, (n,)."""
        if chosen.all():
            return self
        rows, members = np.flatnonzero(chosen), np.repeat(chosen, self.members.sizes)
        return States(
            [self.keys[row] for row in rows.tolist()],
            Tokens(self.members.sizes[rows], self.members.tokens[members]),
            self.lasts[members],
            self.crossings[rows],
            self.evaluated[rows],
            self.wake_ups[rows],
        )

    def states(self) -> list[SetState]:
        """The states one by one."""
        starts, tokens, lasts = self.members.starts.tolist(), self.members.tokens.tolist(), self.lasts.tolist()
        members = [tuple(map(Member, tokens[a:b], lasts[a:b])) for a, b in pairwise(starts)]
        columns = zip(members, self.crossings.tolist(), self.evaluated.tolist(), self.wake_ups.tolist(), strict=True)
        return [
            SetState(kept, tuple(at for at in crossings if at != NEVER), _or_none(evaluated), _or_none(wake_up))
            for kept, crossings, evaluated, wake_up in columns
        ]


def step_column(steps: Iterable[int | None]) -> Ints:
    """Steps, with NEVER where there is none."""
    return np.array([NEVER if step is None else step for step in steps], np.int64)


def crossing_columns(crossings: Iterable[Sequence[int]]) -> Ints:
    """At most two crossings of each set, oldest first, as two columns."""
    return np.array([(NEVER, NEVER, *steps)[-2:] for steps in crossings], np.int64).reshape(-1, 2)


def ranks(sizes: Ints) -> Ints:
    """0, 1, 2, ... for each of n groups of these sizes, group after group, (sum of sizes,)."""
    return np.arange(int(sizes.sum())) - np.repeat(np.cumsum(sizes) - sizes, sizes)


def _or_none(step: int) -> int | None:
    return None if step == NEVER else step


def most_recent_of_all(before: States, joined: Tokens, step: int, sinces: Ints, keep: int) -> tuple[Tokens, Ints]:
    """The members of each set at ``step``, latest first and at most ``keep``, and their last steps.

    As in :func:`members.most_recent`: first the tokens that joined at ``step``, smallest first; then the earlier
    members in their order, without those that joined again or joined last before ``sinces``, (n,).
    """
    sets = len(before)
    new = np.unique(joined.owners << _TOKEN_BITS | joined.tokens)
    old_owners = before.members.owners
    stays = (before.lasts >= sinces[old_owners]) & ~np.isin(old_owners << _TOKEN_BITS | before.members.tokens, new)
    new_owners, old_owners = new >> _TOKEN_BITS, old_owners[stays]
    added, stayed = np.bincount(new_owners, minlength=sets), np.bincount(old_owners, minlength=sets)
    # Within a set, members that joined now come before the earlier ones.
    new_places = np.arange(len(new)) + (np.cumsum(stayed) - stayed)[new_owners]
    old_places = np.arange(len(old_owners)) + np.cumsum(added)[old_owners]
    tokens, lasts = np.zeros(len(new) + len(old_owners), np.int64), np.full(len(new) + len(old_owners), step)
    tokens[new_places], tokens[old_places] = new & (2**_TOKEN_BITS - 1), before.members.tokens[stays]
    lasts[old_places] = before.lasts[stays]
    sizes = added + stayed
    kept = ranks(sizes) < keep
    return Tokens(np.minimum(sizes, keep), tokens[kept]), lasts[kept]
