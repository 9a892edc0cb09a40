"""A heavy-tailed workload: a few sets get most joins, most sets get one or two."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

from kanon.client import encoded

TAIL = 1.1
"""Exponent of the Pareto distribution of a set's popularity. Near 1, few sets have most of the weight."""


@dataclass(frozen=True)
class Joined:
    """One client joins one set."""

    type_name: str
    set_id: bytes
    client: str

    @property
    def encoded_set(self) -> str:
        """The set id in the form of a path: base64url without padding."""
        return encoded(self.set_id)


def joins(type_name: str, sets: int, seed: int) -> Iterator[Joined]:
    """An endless stream of joins of different clients in ``sets`` sets."""
    chance = random.Random(seed)
    weights = [1 / (rank + 1) ** TAIL for rank in range(sets)]
    names = [chance.randbytes(32) for _ in range(sets)]
    number = 0
    while True:
        for name in chance.choices(names, weights, k=1000):
            number += 1
            yield Joined(type_name, name, f"client-{seed}-{number}")
