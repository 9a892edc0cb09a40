"""AboveThreshold with periodic restart (the paper's Algorithms 1 and 2) for one set, one step at a time.

A set *crosses* in the step in which its noisy count reaches its noisy threshold. From then on it is true, until
the end of its *instance* of ``window`` steps; then the algorithm restarts.

:func:`evaluate` is a pure function of (state, joins of the step, noise): no clock, no input or output, no
randomness. The state replaces the whole log: it holds the most recent members and the last crossings.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from kanon.gate.mechanism.members import Member, count_at, most_recent
from kanon.gate.mechanism.parameters import Parameters
from kanon.gate.mechanism.steps import first_step, instance_of, phase_of
from kanon.gate.mechanism.tape import Noise

NoiseOf = Callable[[int], Noise]
"""Gives the noise of one set in an instance."""


@dataclass(frozen=True)
class SetState:
    """The state of a set after a step.

    Attributes:
        members: the M most recent distinct clients, latest first.
        crossings: the steps of the last two crossings, oldest first; an instance has at most one crossing.
        evaluated: the last step at which the set was evaluated.
        wake_up: the first later step at which the set crosses if nobody joins, or None.
    """

    members: tuple[Member, ...] = ()
    crossings: tuple[int, ...] = ()
    evaluated: int | None = None
    wake_up: int | None = None


def crosses(count: int, nu: int, k: int, mu: int) -> bool:
    """Algorithm 2's test ``c_t + nu_t >= k + mu``.

    The paper has ``>=`` too. The public explainer prints ``<=``, which gives the opposite answer.
    """
    return count + nu >= k + mu


def evaluate(
    parameters: Parameters, set_key: bytes, state: SetState, joined: Iterable[int], step: int, noise_of: NoiseOf
) -> SetState:
    """Evaluate a set at ``step``, in which the tokens ``joined`` joined.

    Args:
        parameters: the constants of the type.
        set_key: 32 bytes; determines the phase.
        state: the state after the last evaluated step. Later steps without joins and without a wake-up need
            no evaluation, because the set cannot cross in them.
        joined: client tokens, in any order, repetitions allowed.
        step: later than ``state.evaluated``.
        noise_of: gives the noise of this set in an instance.

    Returns:
        The state after ``step``; ``step`` is its last crossing if the set crossed now.
    """
    members = most_recent(state.members, joined, step, parameters.window, parameters.members_kept)
    phase = phase_of(set_key, parameters.window, parameters.phase)
    instance = instance_of(step, phase, parameters.window)
    crossings = state.crossings
    above = bool(crossings) and instance_of(crossings[-1], phase, parameters.window) == instance
    if not above:
        noise = noise_of(instance)
        i = step - first_step(instance, phase, parameters.window)
        count = count_at(members, step, parameters.window)
        # Draw the query noise only if the count and the threshold noise leave the result open.
        if _reachable(count, parameters, noise) and crosses(count, noise.nu(i), parameters.k, noise.mu):
            crossings = (*crossings[-1:], step)
            above = True
    wake_up = next_crossing(parameters, phase, members, step, above, noise_of)
    return SetState(members, crossings, step, wake_up)


def next_crossing(
    parameters: Parameters, phase: int, members: tuple[Member, ...], step: int, above: bool, noise_of: NoiseOf
) -> int | None:
    """The first step after ``step`` at which the set crosses if nobody joins, or None.

    ``above`` says whether the set has crossed in the instance of ``step``; if so, only the next instance
    matters. If nobody joins, all members leave within one window. So the set is empty, and false, from the
    instance after the next one.
    """
    if not members:
        return None
    window = parameters.window
    empty_from = members[0].last + window
    instance = instance_of(step, phase, window)
    for q in (instance + 1,) if above else (instance, instance + 1):
        first = first_step(q, phase, window)
        noise = noise_of(q)
        for at in range(max(step + 1, first), min(first + window, empty_from)):
            count = count_at(members, at, window)
            if not _reachable(count, parameters, noise):
                break  # counts only fall while nobody joins
            if crosses(count, noise.nu(at - first), parameters.k, noise.mu):
                return at
    return None


def _reachable(count: int, parameters: Parameters, noise: Noise) -> bool:
    """Whether ``count`` crosses with the largest query noise; deciding this draws no query noise."""
    return count >= parameters.never_true_below and crosses(count, parameters.query_law.max, parameters.k, noise.mu)


def is_above(crossings: Iterable[int], visible: int, step: int, phase: int, window: int) -> bool:
    """The answer at ``step`` for a reader who may see the crossings up to step ``visible``.

    True if the set crossed at some step ``x <= visible`` in the instance of ``step``: a status stays true to
    the end of its instance (Algorithm 2) and reads false in the next one until it crosses again.
    """
    instance = instance_of(step, phase, window)
    # Test every crossing, even one that is not visible yet: the response time must not reveal it.
    counts = [(x <= visible) & (instance_of(x, phase, window) == instance) for x in crossings]
    return any(counts)
