"""The proved bounds of a type: (epsilon, delta) for one join, for all joins of a client, for many sets.

Every bound is computed in exact arithmetic from the integer tables that the service draws from. It is rounded
up when it becomes a float. Proofs and limits: docs/proofs/privacy.md.

In the formulas, e1 and e2 are the epsilons of the threshold law and of the query law, and w is the window.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction

from kanon.gate.mechanism.parameters import Parameters, instances_in_a_year, interval_delta
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
        paper: the paper's bound for one join; None where it does not apply (one-sided laws).
        interval_aware: our bound for one join, whose step is fixed beforehand.
        watched: our bound for one join whose step depends on a year of the set's answers.
        rejoining: (days, bound) for a client that keeps joining one set for so many days.
    """

    paper: Bound | None
    interval_aware: Bound
    watched: Bound
    rejoining: tuple[tuple[int, Bound], ...]

    @property
    def posterior(self) -> Fraction:
        """The upper limit of an observer's belief in one join that was :data:`PRIOR` before the answers."""
        return posterior(PRIOR, self.interval_aware.epsilon)


def guarantee(parameters: Parameters) -> Guarantee:
    """Everything proved about a type.

    Privacy guarantee: :func:`interval_aware` for one join; see :class:`Guarantee` for the rest.
    """
    return Guarantee(
        paper=paper(parameters),
        interval_aware=interval_aware(parameters),
        watched=watching(parameters, instances_in_a_year(parameters.window, parameters.period)),
        rejoining=tuple((days, rejoining(parameters, max(1, days * DAY // parameters.period))) for days in SPANS),
    )


def paper(parameters: Parameters) -> Bound | None:
    """The paper's bound for one join, Theorem 4.2 with Corollary 3.1: ``2 (e1+e2)``, ``2 (d1+d2) (w+1)``.

    d1 and d2 are :attr:`Law.two_way_shift_delta` of the two laws. The theorem requires that both laws satisfy
    Definition 4.1 under a shift by one in *both* directions. A one-sided law does so only with a delta of the
    order of its first probability; then the result is None.
    """
    first, second = parameters.threshold_law, parameters.query_law
    d1, d2 = first.two_way_shift_delta, second.two_way_shift_delta
    if d1 is None or d2 is None:
        return None
    return Bound(2 * (first.epsilon + second.epsilon), 2 * (parameters.window + 1) * (d1 + d2))


def interval_aware(parameters: Parameters) -> Bound:
    """Our bound for one join: ``max(2 e1 + e2, 2 e2)``, ``max(2 d1 + (w-1) d2, w d2)``.

    d1 is :attr:`Law.shift_delta` of the threshold law, d2 :attr:`Law.tail_delta` of the query law. The step
    of this join must not depend on the set's answers (see :func:`watching`); the steps of other joins may.
    """
    return watching(parameters, 1)


def watching(parameters: Parameters, instances: int) -> Bound:
    """The bound for one join whose step depends on the set's answers during ``instances`` instances.

    Before the join, the answers can reveal the threshold noise, because it is truncated; the probability is d1 per
    instance. So delta grows by d1 for each further instance in which the join could happen. ``instances = 1``
    gives :func:`interval_aware`.
    """
    first, second = parameters.threshold_law, parameters.query_law
    return Bound(
        max(2 * first.epsilon + second.epsilon, 2 * second.epsilon),
        interval_delta(first, second, parameters.window, instances),
    )


def over_generations(parameters: Parameters, changes: int, forgotten: int = 0) -> Bound:
    """The bound for one join in whose window ``changes`` log generations begin. Each one cuts an instance in two.

    For ``forgotten`` of them Members was replaced too. Then later joins of the same client may be lost, so one run of
    steps that the join affects ends and another one begins. ``changes = 0`` gives :func:`interval_aware`.

    Proof: docs/proofs/privacy.md, "A change of the log".
    """
    w = parameters.window
    first, second = parameters.threshold_law, parameters.query_law
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
    """
    w = parameters.window
    first, second = parameters.threshold_law, parameters.query_law
    present = sorted({t for s in joined for t in range(s, s + w)})
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
    instances = 1 + -(-(length - 1) // w)
    return _larger_direction(parameters.threshold_law, parameters.query_law, instances, [w - 1], length)


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
