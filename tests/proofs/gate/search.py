"""How tight is the theorem? A search for the counts that leak most, at the size the service runs at.

Removing a join is the direction that costs most. The search changes the counts of two instances, and where
between them the join falls, so that the epsilon needed at the claimed delta grows.
"""

import math
import random
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from kanon.gate.mechanism.bounds import interval_aware
from kanon.gate.mechanism.exact_law import first_crossing
from kanon.gate.mechanism.parameters import Parameters
from tests.divergence import hockey_stick

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Pair:
    """Two instances: the counts without the join, which shows on the last w - r and then the first r steps."""

    first: Ints
    second: Ints
    r: int

    def laws(self, parameters: Parameters) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """The joint law without the join and with it, each flattened."""
        steps = np.arange(parameters.window)
        many = np.stack([self.first, self.first + (steps >= self.r), self.second, self.second + (steps < self.r)])
        one, one_more, two, two_more = first_crossing(parameters, many)
        return np.multiply.outer(one, two).ravel(), np.multiply.outer(one_more, two_more).ravel()


def needed_epsilon(parameters: Parameters, pair: Pair, delta: float) -> float:
    """The least epsilon with which removing the join from ``pair`` stays within ``delta``."""
    p, q = pair.laws(parameters)
    kept = p > 1e-18
    p, q = p[kept], q[kept]
    low, high = 0.0, 40.0
    while high - low > 1e-4:
        middle = (low + high) / 2
        low, high = (middle, high) if hockey_stick(p, q, middle) > delta else (low, middle)
    return low


def blocks(parameters: Parameters, levels: tuple[int, int, int, int], r: int) -> Pair:
    """Constant counts before the join, with it, with it in the second instance, and after it."""
    w = parameters.window
    a, b, c, d = levels
    steps = np.arange(w)
    return Pair(np.where(steps < r, a, b), np.where(steps < r, c, d), r)


@dataclass(frozen=True)
class Found:
    """The worst pair found, the epsilon it needs and the one the theorem claims, both at the claimed delta."""

    pair: Pair
    epsilon: float
    claimed: float
    delta: float
    evaluations: int


def search(parameters: Parameters, seed: int, sweeps: int, anneals: int) -> Found:
    """Coordinate descent over block-wise constant counts, then simulated annealing over single stretches."""
    draw = random.Random(seed)
    claim = interval_aware(parameters)
    delta = float(claim.delta)
    low, high = parameters.never_true_below - 2, parameters.surely_true_from
    w = parameters.window
    evaluations = 0

    def value(pair: Pair) -> float:
        nonlocal evaluations
        evaluations += 1
        return needed_epsilon(parameters, pair, delta)

    best: tuple[float, Pair] | None = None
    for _ in range(sweeps):
        levels = [draw.randint(parameters.k - 15, parameters.k + 15) for _ in range(4)]
        r = draw.randint(1, w - 1)
        current = value(blocks(parameters, (levels[0], levels[1], levels[2], levels[3]), r))
        improved = True
        while improved:
            improved = False
            for i in range(5):
                for move in (-8, -3, -1, 1, 3, 8):
                    tried, at = list(levels), r
                    if i < 4:
                        tried[i] = min(max(levels[i] + move, low), high)
                    else:
                        at = min(max(r + 4 * move, 1), w - 1)
                    reached = value(blocks(parameters, (tried[0], tried[1], tried[2], tried[3]), at))
                    if reached > current + 1e-4:
                        levels, r, current, improved = tried, at, reached, True
        if best is None or current > best[0]:
            best = current, blocks(parameters, (levels[0], levels[1], levels[2], levels[3]), r)
    assert best is not None
    current, pair = best
    for n in range(anneals):
        begin = draw.randrange(w)
        end = min(w, begin + 1 + int(draw.expovariate(1 / 20)))
        changed = (pair.first if draw.random() < 0.5 else pair.second).copy()
        which = "first" if np.array_equal(changed, pair.first) else "second"
        changed[begin:end] = np.clip(changed[begin:end] + draw.choice((-2, -1, 1, 2)), low, high)
        tried_pair = replace(pair, **{which: changed})
        reached = value(tried_pair)
        temperature = 0.005 * (1 - n / anneals) + 1e-6
        if reached > current or draw.random() < math.exp((reached - current) / temperature):
            current, pair = reached, tried_pair
            if current > best[0]:
                best = current, pair
    return Found(best[1], best[0], float(claim.epsilon), delta, evaluations)
