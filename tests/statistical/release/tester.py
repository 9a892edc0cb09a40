"""A stochastic tester of (epsilon, delta): a mechanism as a black box, run often on neighbouring datasets.

It follows Algorithm 1 of Desfontaines (2020), section 4.1.4 of "Lowering the cost of anonymization", with its errata
mended: both directions are tested, the excesses of the outcomes add up, and delta is counted in runs. The outcomes
whose excess counts are chosen on one half of the runs and tested on the other half. So one Hoeffding bound covers each
test, however many outcomes there are.

For an event E chosen beforehand, ``count1(E) - e**epsilon count2(E)`` is a sum of n independent differences, each
within an interval of length ``1 + e**epsilon``, and its mean is at most ``delta n`` for a mechanism that keeps its
promise. It exceeds ``delta n + (1 + e**epsilon) sqrt(n ln(1 / alpha) / 2)`` with probability at most alpha.
"""

import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count

FALSE_ALARM = 1e-6
"""The probability that the tester refuses a right mechanism, over all datasets and both directions."""

Dataset = tuple[tuple[int, ...], ...]
"""The values of each user."""
Mechanism = Callable[[Dataset], Hashable]
"""Draws one output, with fresh randomness for each call."""


@dataclass(frozen=True)
class Violation:
    """Two neighbours that an output tells apart too well."""

    more: Dataset
    fewer: Dataset
    excess: float
    allowed: float


def halton(index: int, base: int) -> float:
    """The ``index``-th number of the Halton sequence: in [0, 1), spread evenly."""
    result, digit = 0.0, 1.0
    while index:
        digit /= base
        result += digit * (index % base)
        index //= base
    return result


def datasets(values: Sequence[int], most_users: int, number: int, first: int = 0) -> Iterator[Dataset]:
    """Edge cases first (nobody's neighbours, all at one end), then datasets spread by the Halton sequence.

    Args:
        values: the points a value may take, the ends of the range included.
        most_users: users in a dataset, at most.
        number: how many datasets.
        first: where the Halton sequence begins.
    """
    edges = [tuple((value,) for _ in range(users)) for users in (1, most_users) for value in (values[0], values[-1])]
    yield from edges[:number]
    for index in count(first + 1):
        if index > first + number - len(edges):
            return
        users = 1 + int(halton(index, 2) * most_users)
        bases = (3, 5, 7, 11, 13, 17, 19, 23)
        yield tuple((values[int(halton(index, bases[user % 8]) * len(values))],) for user in range(users))


def find_violation(
    mechanism: Mechanism, tried: Sequence[Dataset], epsilon: float, delta: float, runs: int, tests: int
) -> Violation | None:
    """Compare each dataset with itself less its last user; the first violation found, or None.

    Args:
        mechanism: what to test.
        tried: the larger datasets.
        epsilon: the promise.
        delta: the promise.
        runs: runs of the mechanism on each dataset.
        tests: how many tests share the false alarms: two for each pair, over everything that is tested.
    """
    for more in tried:
        if violation := _compare(mechanism, more, more[:-1], epsilon, delta, runs, FALSE_ALARM / tests):
            return violation
    return None


def _compare(
    mechanism: Mechanism, more: Dataset, fewer: Dataset, epsilon: float, delta: float, runs: int, alpha: float
) -> Violation | None:
    half = runs // 2
    chosen = [Counter(mechanism(data) for _ in range(half)) for data in (more, fewer)]
    tested = [Counter(mechanism(data) for _ in range(half)) for data in (more, fewer)]
    growth = math.exp(epsilon)
    allowed = delta * half + (1 + growth) * math.sqrt(half * math.log(1 / alpha) / 2)
    for one, other in ((0, 1), (1, 0)):
        event = [o for o, seen in chosen[one].items() if seen > growth * chosen[other][o]]
        excess = sum(tested[one][o] - growth * tested[other][o] for o in event)
        if excess > allowed:
            return Violation(more, fewer, excess / half, allowed / half)
    return None
