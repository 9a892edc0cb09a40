"""What is proved about a type: (epsilon, delta) for one join, for all joins of a client, for many sets.

Every figure is computed from the integer tables the service draws from, in exact arithmetic, and rounded up
where it becomes a float. Proofs and limits: docs/privacy.md.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction

from kanon.gate.mechanism.parameters import Parameters, interval_delta
from kanon.gate.mechanism.steps import first_step, instance_of
from kanon.noise.bound import Bound, posterior
from kanon.noise.laws import Law

UNIT = "one join more or less: one client, one set, one step"
DAY = 86_400
SPANS = (7, 30, 365)
"""Days of joining again and again for which :func:`guarantee` reports a figure."""
PRIOR = Fraction(1, 10)


@dataclass(frozen=True)
class Guarantee:
    """What the service tells of a type.

    Attributes:
        unit: what the bounds protect.
        paper: the paper's bound for one join; None where it does not apply (one-sided laws).
        interval_aware: our bound for one join.
        rejoining: (days, bound) for a client that keeps joining one set for so many days.
        never_true_below: the count below which a set cannot become true.
        surely_true_from: the count from which a set becomes true with certainty.
    """

    unit: str
    paper: Bound | None
    interval_aware: Bound
    rejoining: tuple[tuple[int, Bound], ...]
    never_true_below: int
    surely_true_from: int

    @property
    def posterior(self) -> Fraction:
        """What a belief of :data:`PRIOR` becomes at most, by the answers that one join changes."""
        return posterior(PRIOR, self.interval_aware.epsilon)


def guarantee(parameters: Parameters) -> Guarantee:
    """Everything proved about a type.

    Privacy guarantee: :func:`interval_aware` for one join; see :class:`Guarantee` for the rest.
    """
    return Guarantee(
        unit=UNIT,
        paper=paper(parameters),
        interval_aware=interval_aware(parameters),
        rejoining=tuple((days, rejoining(parameters, max(1, days * DAY // parameters.period))) for days in SPANS),
        never_true_below=parameters.never_true_below,
        surely_true_from=parameters.surely_true_from,
    )


def paper(parameters: Parameters) -> Bound | None:
    """The paper's bound for one join, Theorem 4.2 with Corollary 3.1: ``2 (e1+e2)``, ``2 (d1+d2) (w+1)``.

    It asks both laws to satisfy Definition 4.1 under shifts by one *both* ways. A law with a one-sided shape
    does so only with a delta of the order of its first probability: None.
    """
    first, second = parameters.threshold_law, parameters.query_law
    d1, d2 = first.two_way_shift_delta, second.two_way_shift_delta
    if d1 is None or d2 is None:
        return None
    return Bound(2 * (first.epsilon + second.epsilon), 2 * (parameters.window + 1) * (d1 + d2))


def interval_aware(parameters: Parameters) -> Bound:
    """Our bound for one join: ``max(2 e1 + e2, 2 e2)``, ``max(2 d1 + (w-1) d2, w d2)``.

    d1 is :attr:`Law.shift_delta` of the threshold law, d2 :attr:`Law.tail_delta` of the query law. The join's
    own step must not depend on the set's answers (:func:`watching`); all other joins may.
    """
    first, second = parameters.threshold_law, parameters.query_law
    return Bound(
        max(2 * first.epsilon + second.epsilon, 2 * second.epsilon),
        interval_delta(first, second, parameters.window),
    )


def watching(parameters: Parameters, instances: int) -> Bound:
    """One join whose step is chosen by looking at the set's answers over ``instances`` instances.

    A truncated threshold noise can show itself, with probability d1 an instance, before the join is made; so
    delta grows by d1 for every instance more in which the join could have come. ``instances = 1`` is
    :func:`interval_aware`.
    """
    one = interval_aware(parameters)
    d1, d2 = parameters.threshold_law.shift_delta, parameters.query_law.tail_delta
    w = parameters.window
    return Bound(one.epsilon, max((instances + 1) * d1 + (w - 1) * d2, w * d2))


def all_joins(parameters: Parameters, joined: Iterable[int], phase: int) -> Bound:
    """All joins of one client in one set with phase ``phase``, made at the steps ``joined``.

    With D the steps at which the client counts: in an instance that D meets, removing it costs e1, and e2 and
    d2 a step if steps outside D follow its begin there; adding it costs e2, and d2 a step of D. The client's
    token must be its own in the set: another client with the same token can cut D into more pieces, and then
    every instance may cost ``e1 + e2``.
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
    """A client that joins one set at every step (or at least once a window) for ``steps`` steps: worst phase.

    It counts at ``steps + w - 1`` steps on end, in at most ``1 + ceil((steps + w - 2) / w)`` instances; only
    in the last one do steps without it follow, at most ``w - 1``.
    """
    w = parameters.window
    length = steps + w - 1
    instances = 1 + -(-(length - 1) // w)
    return _larger_direction(parameters.threshold_law, parameters.query_law, instances, [w - 1], length)


def _larger_direction(first: Law, second: Law, instances: int, outside: list[int], present: int) -> Bound:
    """The larger of removing and adding.

    ``outside`` holds, for the instances met, how many steps without the client follow its first one.
    """
    d1, d2 = first.shift_delta, second.tail_delta
    interrupted = sum(n > 0 for n in outside)
    return Bound(
        max(instances * first.epsilon + interrupted * second.epsilon, instances * second.epsilon),
        max(instances * d1 + sum(outside) * d2, present * d2),
    )


def distinct_tokens(clients: int, client_bits: int) -> Fraction:
    """The expected number of distinct tokens of ``clients`` clients: what a count sees of them."""
    tokens = 1 << client_bits
    return tokens * (1 - Fraction(tokens - 1, tokens) ** clients)
