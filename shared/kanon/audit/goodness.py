"""Tests of observed outcomes against a distribution (law) that is known exactly; no parameter is estimated.

Pearson's chi-square test merges cells until each expects at least :data:`LEAST_EXPECTED` observations; it has one
degree of freedom less than cells. An exact binomial test checks how often two outcomes are equal. With few expected
observations, Pearson's statistic has a far heavier tail than chi-square. So a p-value below :data:`SUSPICIOUS` is never
an approximation, but an upper bound (:func:`pearson_tail`).
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

LEAST_EXPECTED = 5.0
SUSPICIOUS = 1e-3
GRID = 4000


@dataclass(frozen=True)
class FitResult:
    """The result of a test.

    Attributes:
        trials: number of observations.
        statistic: Pearson's statistic, or the number of successes of a binomial test.
        p_value: of the binomial test, two-sided; or (a bound of) the upper tail of Pearson's statistic.
        cells: of Pearson's test, after merging; None for a binomial test.
    """

    trials: int
    statistic: float
    p_value: float
    cells: int | None = None


def marginal(observed: Ints, law: Floats) -> FitResult:
    """Test outcomes ``observed`` (n,) of ``0..len(law)-1`` against their law."""
    groups = merged(law * observed.size, LEAST_EXPECTED)
    expected = np.asarray(np.bincount(groups, law), np.float64) * observed.size
    return pearson(np.bincount(groups[observed], minlength=expected.size), expected, _impossible(observed, law))


def joint(first: Ints, second: Ints, first_law: Floats, second_law: Floats) -> FitResult:
    """Test pairs of outcomes, both (n,), against the product of their laws: they must be independent."""
    n = first.size
    # Rows and columns of probability sqrt(5/n) each, so that every product expects 5 of n.
    least = math.sqrt(LEAST_EXPECTED / n) if n else 1.0
    rows, columns = merged(first_law, least), merged(second_law, least)
    grouped = [np.asarray(np.bincount(*axis), np.float64) for axis in ((rows, first_law), (columns, second_law))]
    expected = np.outer(*grouped) * n
    width = expected.shape[1]
    cells = np.bincount(rows[first] * width + columns[second], minlength=expected.size)
    impossible = _impossible(first, first_law) or _impossible(second, second_law)
    return pearson(cells, expected.ravel(), impossible)


def dependent(first: Ints, second: Ints, law: Floats) -> FitResult:
    """Test pairs of outcomes, both (n,), against their joint law, (outcomes, outcomes), in at most sixteen cells.

    Few cells show a weak dependence that the many cells of :func:`marginal` hide.
    """
    rows, columns = merged(law.sum(axis=1), 0.25), merged(law.sum(axis=0), 0.25)
    width = int(columns[-1]) + 1
    cells = rows[:, None] * width + columns
    expected = np.asarray(np.bincount(cells.ravel(), law.ravel()), np.float64) * first.size
    kept = expected > 0
    observed = np.bincount(cells[first, second], minlength=expected.size)
    return pearson(observed[kept], expected[kept], bool((law[first, second] == 0).any()))


def crossings(observed: Ints, law: Floats) -> FitResult:
    """Test how many outcomes, (n,), are not the last one (never)."""
    return binomial(int((observed < law.size - 1).sum()), observed.size, 1 - float(law[-1]))


def coincidences(first: Ints, second: Ints, first_law: Floats, second_law: Floats) -> FitResult:
    """Test how often two independent outcomes, both (n,), are equal; the last one (never) does not count.

    Reused noise makes equal outcomes frequent; the merged cells of :func:`joint` can hide that.
    """
    equal = int(((first == second) & (first < first_law.size - 1)).sum())
    return binomial(equal, first.size, float((first_law * second_law)[:-1].sum()))


def binomial(number: int, trials: int, probability: float) -> FitResult:
    """Twice the smaller tail of the binomial distribution."""
    at_most, at_least = binomial_tails(trials, probability)
    return FitResult(trials, number, min(1.0, 2 * float(min(at_most[number], at_least[number]))))


def binomial_tails(trials: int, probability: float) -> tuple[Floats, Floats]:
    """``P(X <= x)`` and ``P(X >= x)`` for x in ``0..trials``; both sum from their small end."""
    x = np.arange(trials + 1)
    factorials = np.concatenate(([0.0], np.cumsum(np.log(np.arange(1, trials + 1)))))
    choices = factorials[-1] - factorials - factorials[::-1]
    weights = np.exp(choices + x * math.log(probability) + (trials - x) * math.log1p(-probability))
    return np.cumsum(weights), np.cumsum(weights[::-1])[::-1]


def merged(expected: Floats, least: float) -> Ints:
    """The group of each outcome: neighbours are merged until a group expects at least ``least``."""
    groups = np.zeros(expected.size, np.int64)
    group, total = 0, 0.0
    for i, value in enumerate(expected):
        if total >= least:
            group, total = group + 1, 0.0
        groups[i] = group
        total += value
    if total < least and group:
        groups[groups == group] = group - 1
    return groups


def pearson(observed: Ints, expected: Floats, impossible: bool = False) -> FitResult:
    """Pearson's test of the counts of cells; the statistic is infinite if an outcome of probability zero was seen."""
    statistic = math.inf if impossible else float(((observed - expected) ** 2 / expected).sum())
    p_value = tail(statistic, expected.size - 1)
    if 0 < p_value < SUSPICIOUS or (p_value == 0 and statistic < math.inf):
        p_value = pearson_tail(statistic, expected)
    return FitResult(int(observed.sum()), statistic, p_value, int(expected.size))


def pearson_tail(statistic: float, expected: Floats) -> float:
    """An upper bound of the probability that Pearson's statistic reaches ``statistic`` if the law is right.

    The counts of the cells are independent Poisson variables, conditioned on their sum n. Without the condition,
    the distribution of the statistic is a convolution; every contribution is rounded up to a multiple of
    ``statistic / GRID``. The condition costs a factor ``1 / P(Poisson(n) = n) <= sqrt(2 pi n) e^(1/12n)`` (Stirling).
    """
    alive, reached = np.zeros(GRID), 0.0
    alive[0] = 1.0
    for mean in expected.tolist():
        reach = math.sqrt(mean * statistic)
        low, high = max(0, math.floor(mean - reach)), math.ceil(mean + reach)
        counts = np.arange(low, high + 1)
        weights = np.exp([x * math.log(mean) - mean - math.lgamma(x + 1) for x in counts.tolist()])
        # Beyond each end, Poisson weights fall at least as fast as a geometric series.
        outside = weights[-1] * mean / (high + 1 - mean)
        outside += weights[0] * low / (mean - low + 1)
        places = np.ceil((counts - mean) ** 2 / mean * (GRID / statistic)).astype(np.int64)
        law = np.bincount(np.minimum(places, GRID), weights, GRID + 1)
        at_least = np.cumsum(law[::-1])[::-1]
        reached += float(alive @ at_least[GRID - np.arange(GRID)]) + float(alive.sum()) * outside
        moved = np.zeros(GRID)
        for place in np.flatnonzero(law[:GRID]).tolist():
            moved[place:] += law[place] * alive[: GRID - place]
        alive = moved
    n = float(expected.sum())
    return float(min(1.0, reached * math.sqrt(2 * math.pi * n) * math.exp(1 / (12 * n))))


def tail(statistic: float, degrees: int) -> float:
    """``P(X >= statistic)`` of a chi-square variable: the regularised incomplete gamma function Q.

    Its series below the mean, its continued fraction (Lentz) above (Abramowitz and Stegun 6.5.29, 6.5.31).
    """
    a, x = degrees / 2, statistic / 2
    if degrees == 0 or x <= 0:
        return float(statistic < math.inf)
    if x == math.inf:
        return 0.0
    scale = math.exp(a * math.log(x) - x - math.lgamma(a))
    if x < a + 1:
        term = total = 1 / a
        n = a
        while term > total * 1e-16:
            n += 1
            term *= x / n
            total += term
        return 1 - total * scale
    tiny = 1e-300
    b = x + 1 - a
    c, d = 1 / tiny, 1 / b
    fraction, i, change = d, 0, 0.0
    while abs(change - 1) > 1e-15:
        i += 1
        factor = -i * (i - a)
        b += 2
        d = 1 / (factor * d + b or tiny)
        c = b + factor / c or tiny
        change = d * c
        fraction *= change
    return scale * fraction


def _impossible(observed: Ints, law: Floats) -> bool:
    return bool((law[observed] == 0).any())
