"""R4 in rationals: every joint transcript of a small gate and of a job whose keys are what the gate has released.

One unit joins the set of a value, and reports an amount for it. Its neighbour does not join, and its report is null.
An observer sees every answer of the gate and the summary. The gate's distributions, the sums and the release are the
product's own code. The noise of the summary has a rational ratio q, so that every probability is a rational number:
an amount V costs the factor ``q**-V``, which is ``e**(epsilon V / bound)``.
"""

from collections import defaultdict
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from itertools import pairwise, product

import numpy as np
import pytest

from kanon.gate.mechanism.bounds import interval_aware
from kanon.noise.bound import Bound
from kanon.noise.exact import exp_bounds
from kanon.noise.laws import one_sided, two_sided
from kanon.reports.histogram import Histogram, exact_sums
from kanon.reports.job import with_gate
from kanon.reports.noise import Noised
from tests.exact_law import first_crossing_exact
from tests.proofs.gate.enumeration import SPLITS, Claim, Small

Q, AMOUNT = Fraction(1, 2), 2
SPENT = Q**-AMOUNT
KEY, OTHER = (np.frombuffer(bytes(15) + bytes([n]), "S16") for n in (1, 2))
"""The key of the unit's value, and one that is always listed."""
TENTH_LESS = Fraction(9, 10)


def mass(x):
    """The probability of a noise; of the outermost ones with everything beyond."""
    return (1 - Q) / (1 + Q) * Q ** abs(x) / ((1 - Q) if abs(x) == AMOUNT + 1 else 1)


@cache
def summary(listed, amount):
    """What a job shows of the key, with its probability: None if it is not listed.

    Below 0 and above the amount the ratio of the two worlds is constant: the outputs of a side are one outcome.
    """
    domain = np.concatenate([KEY, OTHER]) if listed else OTHER
    sums = exact_sums([Histogram(KEY, np.array([amount]))] if amount else [], domain)
    found = defaultdict(Fraction)
    for x in range(-AMOUNT - 1, AMOUNT + 2):
        released = Noised(sums, np.full(len(sums.keys), x), None).release()
        shown = dict(zip(released.keys.tolist(), released.metrics.tolist(), strict=True)).get(KEY.item())
        found[None if shown is None else min(max(shown, 0), AMOUNT)] += mass(x)
    return dict(found)


def pinned(listed, at, amount):
    """The summary of a job that was received at the visible step ``at``; ``listed`` says at which steps the value is.

    The other functions of this form are mistakes.
    """
    return summary(listed(at), amount)


def transcripts(gate, at, amount, job=pinned):
    """The joint distribution of all answers and of what the job shows.

    Args:
        gate: the probability of each answer, with the steps at which the value is listed then.
        at: the visible step at which the job was received.
        amount: what the unit reports.
        job: which keys it has.
    """
    return {
        (answer, shown): p * chance
        for answer, (p, listed) in gate.items()
        if p
        for shown, chance in job(listed, at, amount).items()
    }


def needed(here, there, factor):
    """The delta that this factor needs."""
    return sum((max(Fraction(0), p - factor * there.get(each, 0)) for each, p in here.items()), Fraction(0))


@cache
def law(case, place):
    """The distribution of the first crossing for a sequence of counts."""
    return tuple(first_crossing_exact(case.parameters, [int(c) + case.parameters.k for c in case.counts[place]]))


def small(shape, epsilons, truncation):
    return Small(shape(epsilons[0], truncation), shape(epsilons[1], truncation), 2)


# One instance: the claim of the proof for each set of steps at which a join counts


@dataclass(frozen=True)
class Pair:
    """An instance without the join and with it, and what is claimed for the two directions."""

    low: dict
    high: dict
    removing: Claim
    adding: Claim


def one_instance(case, place):
    """The answers of an instance: once it has crossed, its value is listed."""
    return {step: (p, lambda at, step=step: step <= at) for step, p in enumerate(law(case, int(place)))}


def pairs(case):
    """Every sequence of counts, and every set of steps of the instance at which one join can count."""
    for counted in case.patterns:
        if all(b == a + 1 for a, b in pairwise(counted)):
            for places in zip(case.without, case.with_join(counted), strict=True):
                low, high = (one_instance(case, place) for place in places)
                yield Pair(low, high, case.removing(counted), case.adding(counted))


def largest(case, job=pinned, spent=SPENT, part=Fraction(1)):
    """The largest share of the claimed delta that a pair needs, at any step, in both directions.

    Args:
        case: the gate.
        job: which keys the job has.
        spent: the factor that the summary may cost.
        part: of the epsilons that the gate may cost.
    """
    worst = Fraction(0)
    for pair, at in product(pairs(case), range(case.window)):
        without, with_it = transcripts(pair.low, at, 0, job), transcripts(pair.high, at, AMOUNT, job)
        for claim, p, q in ((pair.removing, without, with_it), (pair.adding, with_it, without)):
            gate = Claim(tuple(part * each for each in claim.parts), claim.delta)
            worst = max(worst, needed(p, q, gate.factor * spent) / claim.delta)
    return worst


CASES = [
    pytest.param(small(shape, epsilons, truncation), id=f"{shape.__name__}-{n}-{truncation}")
    for shape in (one_sided, two_sided)
    for n, epsilons in enumerate(SPLITS)
    for truncation in (1, 2)
]


@pytest.mark.parametrize("case", CASES)
def test_answers_and_summary_together_need_no_more_than_the_sum(case):
    assert 0 < largest(case) <= 1


@pytest.mark.parametrize("epsilons", SPLITS)
def test_the_sum_is_reached(epsilons):
    """With nine tenths of either part delta is exceeded twice: no epsilon that is much smaller would hold."""
    case = small(one_sided, epsilons, 4)
    assert largest(case) <= 1
    assert largest(case, part=TENTH_LESS) > 2
    assert largest(case, spent=SPENT * TENTH_LESS) > 2


def read_again(listed, at, amount):
    """A retry reads a newer list and draws again, and both summaries are published."""
    first, second = (summary(listed(step), amount) for step in (at, at + 1))
    return {(a, b): p * q for (a, p), (b, q) in product(first.items(), second.items())}


def keys_with_reports(listed, at, amount):
    """The listed keys, without those that no report has."""
    return summary(listed(at) and bool(amount), amount)


def only_if_listed(listed, at, amount):
    """A client that has something to report asks first, and sends no report for a value that is not listed."""
    reports = 1 if listed(at) or not amount else 0
    return {(reports, shown): p for shown, p in summary(listed(at), amount).items()}


def keys_of_reports(listed, at, amount):
    """The keys of the reports, listed or not."""
    return summary(bool(amount), amount)


@pytest.mark.parametrize("mistake", [read_again, keys_with_reports, only_if_listed, keys_of_reports])
@pytest.mark.parametrize("epsilons", SPLITS[:2])
def test_a_mistake_exceeds_the_sum(mistake, epsilons):
    case = small(one_sided, epsilons, 4)
    assert largest(case) <= 1
    assert largest(case, mistake) > 2


# Two instances: all that one join of a whole window can meet


def two_instances(case, first, second):
    """The answers of two consecutive instances. After a crossing the value is listed for a window."""
    w = case.window
    found = {}
    for (one, p), (two, q) in product(enumerate(law(case, int(first))), enumerate(law(case, int(second)))):
        crossed = [step for step, is_one in ((one, one < w), (w + two, two < w)) if is_one]
        found[one, two] = (p * q, lambda at, crossed=crossed: any(step <= at < step + w for step in crossed))
    return found


def over_two_instances(case, units, claim, only=None):
    """The largest share of delta that R4 with a bound of the gate needs, over all counts of two instances.

    Args:
        case: the gate.
        units: for each instance the steps at which the client counts with the unit, and those without it.
        claim: the gate's bound.
        only: the numbers of the two counts, instead of all.
    """
    both = with_gate(Bound(Fraction(0), Fraction(0)), claim)  # the factor of the summary is SPENT
    factor = exp_bounds(both.epsilon)[0] * SPENT
    firsts, seconds = (list(zip(*map(case.with_join, steps), strict=True)) for steps in units)
    worst = Fraction(0)
    for n, m in [only] if only else product(range(len(firsts)), range(len(seconds))):
        (first, other_first), (second, other_second) = firsts[n], seconds[m]
        with_it, without = two_instances(case, first, second), two_instances(case, other_first, other_second)
        for at in range(2 * case.window):
            p, q = transcripts(with_it, at, AMOUNT), transcripts(without, at, 0)
            worst = max(worst, needed(p, q, factor) / both.delta, needed(q, p, factor) / both.delta)
    return worst


# Steps of an instance of two. A join counts for two steps.
FIRST, SECOND = 0, 1
ONE_JOIN = (((FIRST, SECOND), ()), ((), ())), (((SECOND,), ()), ((FIRST,), ()))
"""A join at either step."""
EACH_ITS_OWN = ((FIRST, SECOND), (SECOND,)), ((FIRST,), (FIRST,))
"""Two units of a client have the value, one step apart. Each joins, whatever the other one does."""
SINCE_THE_LAST = ((FIRST, SECOND), (SECOND,)), ((), (FIRST,))
"""The mistake: the second unit does not join so soon after the first. Without the first one, it does."""


@pytest.mark.parametrize("units", [*ONE_JOIN, EACH_ITS_OWN])
def test_a_join_at_the_end_of_a_units_own_window_costs_one_join(units):
    case = small(one_sided, SPLITS[0], 1)
    assert 0 < over_two_instances(case, units, interval_aware(case.parameters)) <= 1


def test_a_join_that_depends_on_the_clients_last_one_costs_two():
    case, worst = small(one_sided, (Fraction(1, 2), Fraction(2)), 8), (171, 181)
    one = interval_aware(case.parameters)
    assert over_two_instances(case, EACH_ITS_OWN, one, worst) <= 1
    assert over_two_instances(case, SINCE_THE_LAST, one, worst) > 2
    assert over_two_instances(case, SINCE_THE_LAST, one.times(2), worst) <= 1


@pytest.mark.parametrize("epsilons", SPLITS)
def test_two_joins_cost_the_gate_twice_and_the_summary_once(epsilons):
    """A unit that joins the sets of two values, and reports a half of its amount for each."""
    case, counted, worst = small(one_sided, epsilons, 3), (FIRST, SECOND), Fraction(0)
    for places in zip(case.without, case.with_join(counted), strict=True):
        without, with_it = (
            of_two(transcripts(one_instance(case, place), FIRST, amount))
            for place, amount in zip(places, (0, AMOUNT // 2), strict=True)
        )
        for claim, p, q in (
            (case.removing(counted), without, with_it),
            (case.adding(counted), with_it, without),
        ):
            worst = max(worst, needed(p, q, claim.factor**2 * SPENT) / (2 * claim.delta))
    assert 0 < worst <= 1


def of_two(one):
    """The transcript of two sets of the same distribution: their noise is independent."""
    return {(a, b): p * q for (a, p), (b, q) in product(one.items(), repeat=2)}
