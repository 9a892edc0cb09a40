"""R3, the filter: jobs chosen after seeing earlier summaries, within one budget for each report, enumerated.

A unit has two reports. Jobs may include both, one or none of them, and the choice may depend on every earlier
output. The budget of a report is a number of *shares*: a job of one share uses the ratio q, one of two shares q^2.
"""

from fractions import Fraction
from itertools import product

import pytest

from kanon.reports.job import sharp
from tests.proofs.reports.test_threshold import Outcomes, powers

Q = Fraction(1, 2)
BOUND = 2
DELTA = Fraction(1, 20)
"""Of one job."""
BASE = 3
"""What others contribute to the key."""

OUTCOMES = {
    shares: Outcomes(Q**shares, sharp(powers(Q**shares), DELTA, BOUND)) for shares in (1, 2)
}  # fmt: skip


def job(shares, included, values, present):
    """The distribution of one job's output: a share of its noise's weights for each thing that can be shown."""
    total = BASE + sum(values[report] for report in included) * present
    outcomes = OUTCOMES[shares]
    return {shown: Fraction(w, outcomes.noise.total) for shown, w in outcomes.of(total).items() if w}


def transcripts(strategy, values, present, seen=()):
    """The distribution of all releases, for an analyst that follows ``strategy`` until it stops."""
    asked = strategy(seen)
    if asked is None:
        return {seen: Fraction(1)}
    found = {}
    for shown, probability in job(*asked, values, present).items():
        for transcript, rest in transcripts(strategy, values, present, (*seen, shown)).items():
            found[transcript] = found.get(transcript, Fraction(0)) + probability * rest
    return found


def spent(strategy, seen=()):
    """The most shares, and the most jobs, that any report is asked for on any path."""
    asked = strategy(seen)
    if asked is None:
        return [(0, 0), (0, 0)]
    paths = [spent(strategy, (*seen, shown)) for shown in (None, 2, 3, 4, 5)]
    return [
        tuple(max(path[report][i] for path in paths) + (asked[0], 1)[i] * (report in asked[1]) for i in (0, 1))
        for report in (0, 1)
    ]


def needed(strategy, values, shares):
    """The delta that epsilon* needs, both ways round; ``e**(epsilon* / bound)`` is ``q**-shares``."""
    with_it, without = (transcripts(strategy, values, present) for present in (1, 0))
    factor = Q ** -(shares * BOUND)
    return max(
        sum((max(Fraction(0), p - factor * there.get(o, Fraction(0))) for o, p in here.items()), Fraction(0))
        for here, there in ((with_it, without), (without, with_it))
    )


BOTH, FIRST, SECOND = (0, 1), (0,), (1,)


def one_after_the_other(seen):
    """The second job asks for the report that the first output points at."""
    if not seen:
        return 1, BOTH
    return (1, FIRST if seen[0] is None else SECOND) if len(seen) == 1 else None


def shares_after_silence(seen):
    """Both shares at once if nothing was shown; else one report each."""
    plans = [(1, FIRST), (1, SECOND), (1, BOTH)]
    if len(seen) == 1 and seen[0] is None:
        return 1, BOTH
    return plans[len(seen)] if len(seen) < 3 and (len(seen) < 2 or seen[0] is not None) else None


def separate_budgets(seen):
    """Two jobs for one report and two for the other: four jobs, but each report is in two."""
    return ((1, FIRST), (1, SECOND), (1, FIRST), (1, SECOND), None)[len(seen)]


STRATEGIES = [one_after_the_other, shares_after_silence, separate_budgets]
VALUES = [values for values in product(range(3), repeat=2) if 0 < sum(values) <= BOUND]


@pytest.mark.parametrize("values", VALUES)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_adaptive_jobs_together_stay_within_the_budget_of_each_report(strategy, values):
    shares = max(share for share, _ in spent(strategy))
    jobs = max(count for _, count in spent(strategy))
    assert (shares, jobs) == (2, 2)
    assert needed(strategy, values, shares) <= jobs * DELTA


def beyond(seen):
    """A third job that the filter would refuse."""
    return (1, BOTH) if len(seen) < 3 else None


def test_a_job_beyond_the_budget_breaks_it():
    assert needed(beyond, (2, 0), 2) > 2 * DELTA


def test_delta_is_spent_too():
    """Two jobs need more than the delta of one: a filter that forgets delta is refuted."""
    assert needed(one_after_the_other, (2, 0), 2) > 0
    both = lambda seen: (1, BOTH) if len(seen) < 2 else None  # noqa: E731
    assert needed(both, (2, 0), 2) > DELTA
