"""Output distributions of the product's own code, by walking through every outcome of its tables."""

from fractions import Fraction
from functools import reduce
from itertools import combinations_with_replacement, pairwise, product

from kanon.noise.exact import exp_bounds
from kanon.noise.words import TOTAL


def words(cumulative):
    """One word for each outcome of a table, with the outcome's weight."""
    return [(after - 1, after - before) for before, after in pairwise([0, *cumulative])]


def distribution(draw, cumulative):
    """Weights of everything that ``draw(word)`` returns."""
    found = {}
    for word, weight in words(cumulative):
        outcome = draw(word)
        found[outcome] = found.get(outcome, 0) + weight
    return found


def selected(rule, users):
    """The outcomes of a selection rule for a group."""
    cumulative = rule.law.cumulative if hasattr(rule, "law") else _kept(rule, users)
    return distribution(lambda word: rule.released(users, word), cumulative)


def _kept(rule, users):
    m = min(max(0, users - rule.floor + 1), len(rule.weights) - 1)
    return [weight for weight in (rule.weights[m], TOTAL) if weight]


def joint(*distributions):
    """Independent outcomes together."""
    return reduce(
        lambda a, b: {(*x, y): p * q for (x, p), (y, q) in product(a.items(), b.items())}, distributions, {(): 1}
    )


def delta(here, there, epsilon):
    """The hockey-stick of two weighted outcomes, each normalised by its own total; the larger of both directions."""
    totals = sum(here.values()), sum(there.values())
    low, _ = exp_bounds(epsilon)
    top, bottom = low.numerator * totals[0], low.denominator * totals[1]
    top_back, bottom_back = low.numerator * totals[1], low.denominator * totals[0]
    forth = back = 0
    for outcome in here.keys() | there.keys():
        p, q = here.get(outcome, 0), there.get(outcome, 0)
        forth += max(0, p * bottom - q * top)
        back += max(0, q * bottom_back - p * top_back)
    return Fraction(max(forth, back), low.denominator * totals[0] * totals[1])


def neighbours(points, users=4):
    """(fewer, more): all data sets of fewer than ``users`` values, and each with one value added."""
    for number in range(users):
        for fewer in combinations_with_replacement(points, number):
            for value in points:
                yield fewer, (*fewer, value)
