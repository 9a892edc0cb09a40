"""The proved bounds of a type: (epsilon, delta) for one join, for all joins of a client, for many sets.

Every bound is computed in exact arithmetic from the integer tables that the service draws from. It is rounded
up when it becomes a float. Proofs and limits: docs/proofs/privacy.md for the grid, docs/proofs/crossing.md for
restart after the crossing.

In the formulas, e1 and e2 are the epsilons of the threshold law and of the query law, and w is the window. With restart
after the crossing, L is the hold, Y the epoch.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise

from kanon.gate.mechanism.parameters import (
    WATCHED_SETS,
    CrossingRestart,
    Losses,
    Parameters,
    losses,
    most_searches,
    steps_in_a_year,
)
from kanon.gate.mechanism.steps import first_step, instance_of
from kanon.noise.bound import Bound, posterior
from kanon.noise.laws import Law

UNIT = "one join more or less: one client, one set, one step"
"""What the bounds protect."""
DAY = 86_400
SPANS = (7, 30, 365)
"""Days of repeated joining for which :func:`guarantee` reports a bound."""
PRIOR = Fraction(1, 10)


@dataclass(frozen=True)
class Guarantee:
    """The proved bounds of a type.

    Attributes:
        paper: the paper's bound for one join; None for one-sided laws and with restart after the crossing.
        interval_aware: our bound for one join, whose step is fixed beforehand.
        watched: our bound for one join in one set, whose step depends on a year of the set's answers.
        watched_sets: the same for one join whose set too depends on a year of answers, of :data:`WATCHED_SETS` sets.
        rejoining: (days, bound) for a client that keeps joining one set for so many days.
    """

    paper: Bound | None
    interval_aware: Bound
    watched: Bound
    watched_sets: Bound
    rejoining: tuple[tuple[int, Bound], ...]

    @property
    def posterior(self) -> Fraction:
        """The upper limit of an observer's belief in one join that was :data:`PRIOR` before the answers."""
        return posterior(PRIOR, self.interval_aware.epsilon)


def guarantee(parameters: Parameters) -> Guarantee:
    """Everything proved about a type.

    Privacy guarantee: :func:`interval_aware` for one join; see :class:`Guarantee` for the rest.
    """
    year = steps_in_a_year(parameters.period)
    many = watching(parameters, year, WATCHED_SETS)
    return Guarantee(
        paper=paper(parameters),
        interval_aware=interval_aware(parameters),
        watched=watching(parameters, year),
        watched_sets=Bound(many.epsilon, min(Fraction(1), many.delta)),
        rejoining=tuple((days, rejoining(parameters, max(1, days * DAY // parameters.period))) for days in SPANS),
    )


def paper(parameters: Parameters) -> Bound | None:
    """The paper's bound for one join, Theorem 4.2 with Corollary 3.1: ``2 (e1+e2)``, ``2 (d1+d2) (w+1)``.

    d1 and d2 are :attr:`Law.two_way_shift_delta` of the two laws. The theorem requires that both laws satisfy
    Definition 4.1 under a shift by one in *both* directions. A one-sided law does so only with a delta of the
    order of its first probability; then the result is None. It is also None with restart after the crossing, which is
    not the paper's.
    """
    if parameters.restart is not None:
        return None
    first, second = parameters.threshold_law, parameters.query_law
    d1, d2 = first.two_way_shift_delta, second.two_way_shift_delta
    if d1 is None or d2 is None:
        return None
    return Bound(2 * (first.epsilon + second.epsilon), 2 * (parameters.window + 1) * (d1 + d2))


def interval_aware(parameters: Parameters) -> Bound:
    """Our bound for one join whose set and step do not depend on the set's answers; those of other joins may.

    Grid: ``max(2 e1 + e2, 2 e2)``, ``max(2 d1 + (w-1) d2, w d2)``. Restart after the crossing: ``e1 + e2``,
    ``I d1 + (Y-1) d2``, I the most searches that could be the one that the join meets (:func:`losses`).

    d1 is :attr:`Law.shift_delta` of the threshold law, d2 :attr:`Law.tail_delta` of the query law.
    """
    return watching(parameters, 1)


def watching(parameters: Parameters, steps: int, sets: int = 1) -> Bound:
    """The bound for one join that may be at any of ``steps`` steps in any of ``sets`` sets, chosen by their answers.

    Before the join, the answers can reveal a threshold noise, because it is truncated; the probability is d1 for each
    instance or search. So delta grows with all that are watched. One step of one set gives :func:`interval_aware`.
    """
    first, second = parameters.threshold_law, parameters.query_law
    if parameters.restart is None:
        epsilon = max(2 * first.epsilon + second.epsilon, 2 * second.epsilon)
    else:
        epsilon = first.epsilon + second.epsilon
    return Bound(epsilon, losses(parameters.window, parameters.restart, steps, sets).delta(first, second))


def over_generations(parameters: Parameters, changes: int, forgotten: int = 0) -> Bound:
    """The bound for one join in whose window ``changes`` log generations begin. Each one cuts an instance in two.

    For ``forgotten`` of them the states were lost too. Then later joins of the same client may be lost, so one run of
    steps that the join affects ends and another one begins. ``changes = 0`` gives :func:`interval_aware`.

    With restart after the crossing a generation is an epoch's end. It costs no epsilon, and d1 if it lets one search
    more begin.

    Proof: docs/proofs/privacy.md, "A change of the log"; docs/proofs/crossing.md, "Noise keys and log generations".
    """
    w, restart = parameters.window, parameters.restart
    first, second = parameters.threshold_law, parameters.query_law
    if restart is not None:
        searches = most_searches(restart, restart.epoch + w - 1, changes)
        return Bound(first.epsilon + second.epsilon, Losses(searches, restart.epoch - 1, w).delta(first, second))
    pieces, runs = 2 + changes, 1 + forgotten
    d1, d2 = first.shift_delta, second.tail_delta
    return Bound(
        max(pieces * first.epsilon + runs * second.epsilon, pieces * second.epsilon),
        max(pieces * d1 + runs * (w - 1) * d2, w * d2),
    )


def met_by_one_join(from_steps: Iterable[int], window: int) -> list[frozenset[int]]:
    """The sets of generations that one join can meet in its window, for generations that begin at ``from_steps``.

    A join at s affects the steps ``[s, s + w - 1]``. A generation that begins at s itself does not cut them.
    """
    steps = frozenset(from_steps)
    return [frozenset(g for g in steps if 0 <= g - begin <= window - 2) for begin in sorted(steps)]


def all_joins(parameters: Parameters, joined: Iterable[int], phase: int) -> Bound:
    """The bound for all joins of one client in one set with phase ``phase``, made at the steps ``joined``.

    Let D be the steps at which the client counts. Consider each instance that contains steps of D. Removing
    the client costs e1 and d1 there; if later steps of the instance are outside D, it also costs e2, and d2
    for each of them. Adding the client costs e2, and d2 for each step of D. No other client may have the same
    token in the set: it could cut D into more pieces, and then every instance could cost ``e1 + e2``.

    With restart after the crossing see :func:`of_runs`; it holds for every phase.
    """
    w = parameters.window
    first, second = parameters.threshold_law, parameters.query_law
    present = sorted({t for s in joined for t in range(s, s + w)})
    if parameters.restart is not None:
        begins = [n for n, t in enumerate(present) if n == 0 or present[n - 1] < t - 1]
        lengths = [end - begin for begin, end in pairwise([*begins, len(present)])]
        return of_runs(parameters, parameters.restart, lengths)
    met: dict[int, list[int]] = {}
    for t in present:
        met.setdefault(instance_of(t, phase, w), []).append(t)
    outside = [first_step(q, phase, w) + w - steps[0] - len(steps) for q, steps in met.items()]
    return _larger_direction(first, second, len(met), outside, len(present))


def rejoining(parameters: Parameters, steps: int) -> Bound:
    """The bound for a client that joins one set at every step (or once per window) for ``steps`` steps.

    The phase is the worst one. The client counts at ``steps + w - 1`` consecutive steps, in at most
    ``1 + ceil((steps + w - 2) / w)`` instances. Only the last instance continues without it, for at most
    ``w - 1`` steps.
    """
    w = parameters.window
    length = steps + w - 1
    if parameters.restart is not None:
        return of_runs(parameters, parameters.restart, [length])
    instances = 1 + -(-(length - 1) // w)
    return _larger_direction(parameters.threshold_law, parameters.query_law, instances, [w - 1], length)


def of_runs(parameters: Parameters, restart: CrossingRestart, lengths: Iterable[int]) -> Bound:
    """The bound for a client that counts in one set in runs of so many steps, with restart after the crossing.

    ``max(I e1 + g e2, I e2)``, ``max(I+ d1 + g (Y-1) d2, |D| d2)``: g runs of |D| steps in all, I the most searches
    that count one of its joins, I+ the most that could. The joins of a run of n steps lie within ``n - w + 1`` steps;
    they are counted by one search, and by one more for each that ends before the last of them.
    """
    first, second = parameters.threshold_law, parameters.query_law
    d1, d2 = first.shift_delta, second.tail_delta
    lengths = list(lengths)
    w, y = parameters.window, restart.epoch
    met = sum(1 + most_searches(restart, n - w) for n in lengths)
    possible = sum(most_searches(restart, n + y - 1) for n in lengths)
    return Bound(
        max(met * first.epsilon + len(lengths) * second.epsilon, met * second.epsilon),
        max(possible * d1 + len(lengths) * (y - 1) * d2, sum(lengths) * d2),
    )


def _larger_direction(first: Law, second: Law, instances: int, outside: list[int], present: int) -> Bound:
    """The larger bound of removing and adding the client.

    ``outside`` has one entry per instance: the number of steps without the client after its first step there.
    """
    d1, d2 = first.shift_delta, second.tail_delta
    interrupted = sum(n > 0 for n in outside)
    return Bound(
        max(instances * first.epsilon + interrupted * second.epsilon, instances * second.epsilon),
        max(instances * d1 + sum(outside) * d2, present * d2),
    )


def distinct_tokens(clients: int, client_bits: int) -> Fraction:
    """The expected number of distinct tokens of ``clients`` clients. The count of a set is one of tokens."""
    tokens = 1 << client_bits
    return tokens * (1 - Fraction(tokens - 1, tokens) ** clients)
