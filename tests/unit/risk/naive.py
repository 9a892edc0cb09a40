"""A sketch of dictionaries and sets, written from the definition and not from the code."""

from collections import defaultdict
from collections.abc import Iterable

Row = tuple[int, int]
"""The hash of the value and that of the user."""


def naive_sketch(rows: Iterable[Row], size: int) -> dict[int, tuple[int, set[int]]]:
    """Rows and users of each of the ``size`` values with the smallest hashes."""
    number: dict[int, int] = defaultdict(int)
    users: dict[int, set[int]] = defaultdict(set)
    for value, user in rows:
        number[value] += 1
        users[value].add(user)
    return {value: (number[value], users[value]) for value in sorted(users)[:size]}
