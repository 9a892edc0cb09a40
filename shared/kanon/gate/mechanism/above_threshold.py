"""AboveThreshold with restarts (the paper's Algorithms 1 and 2) for one set, one step at a time.

A set *crosses* in the step in which its noisy count reaches its noisy threshold. From then on it is true: on the
paper's grid until the end of its *instance* of ``window`` steps, with restart after the crossing for ``hold`` steps.
Then the algorithm restarts. :mod:`searches` says at which steps a set is tested; all else is the same for both rules.

:func:`evaluate` is a pure function of (state, joins of the step, noise): no clock, no input or output, no
randomness. The state replaces the whole log: it holds the most recent members and the last crossings.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from kanon.gate.mechanism.members import Member, count_since, most_recent
from kanon.gate.mechanism.parameters import Parameters
from kanon.gate.mechanism.searches import Searches
from kanon.gate.mechanism.tape import Noise

NoiseOf = Callable[[int], Noise]
"""Gives the noise of one set in the search of a place (:class:`searches.Search`)."""


@dataclass(frozen=True)
class SetState:
    """The state of a set after a step.

    Attributes:
        members: the M most recent distinct clients, latest first.
        crossings: the steps of the last two crossings, oldest first. Evaluation needs the last one; a reader whose
            visible step is before it needs the other.
        evaluated: the last step at which the set was evaluated.
        wake_up: the first later step at which the set crosses if nobody joins, or None.
    """

    members: tuple[Member, ...] = ()
    crossings: tuple[int, ...] = ()
    evaluated: int | None = None
    wake_up: int | None = None

    @property
    def newest(self) -> int | None:
        """The last crossing."""
        return self.crossings[-1] if self.crossings else None


def crosses(count: int, nu: int, k: int, mu: int) -> bool:
    """Algorithm 2's test ``c_t + nu_t >= k + mu``.

    The paper has ``>=`` too. The public explainer prints ``<=``, which gives the opposite answer.
    """
    return count + nu >= k + mu


def evaluate(
    parameters: Parameters,
    set_key: bytes,
    state: SetState,
    joined: Iterable[int],
    step: int,
    noise_of: NoiseOf,
    begun: int | None = None,
) -> SetState:
    """Evaluate a set at ``step``, in which the tokens ``joined`` joined.

    Args:
        parameters: the constants of the type.
        set_key: 32 bytes; determines the phase.
        state: the state after the last evaluated step. Later steps without joins and without a wake-up need
            no evaluation, because the set cannot cross in them.
        joined: client tokens, in any order, repetitions allowed.
        step: later than ``state.evaluated``.
        noise_of: gives the noise of this set in a search.
        begun: the first step of the log generation; None for the first one.

    Returns:
        The state after ``step``; ``step`` is its last crossing if the set crossed now.
    """
    searches = Searches.of(parameters, set_key, begun)
    search = searches.at(step, state.newest)
    since = searches.counts_from(search, step)
    members = most_recent(state.members, joined, step, since, parameters.members_kept)
    crossings = state.crossings
    if search.first <= step:
        noise = noise_of(search.place)
        count = len(members)
        # Draw the query noise only if the count and the threshold noise leave the result open.
        if _reachable(count, parameters, noise) and crosses(
            count, noise.nu(step - search.first), parameters.k, noise.mu
        ):
            crossings = (*crossings[-1:], step)
    wake_up = next_crossing(searches, members, step, crossings[-1] if crossings else None, noise_of)
    return SetState(members, crossings, step, wake_up)


def next_crossing(
    searches: Searches, members: tuple[Member, ...], step: int, crossing: int | None, noise_of: NoiseOf
) -> int | None:
    """The first step after ``step`` at which the set crosses if nobody joins, or None.

    ``crossing`` is the last crossing up to ``step``. If nobody joins, all members leave within one window. So the set
    is empty, and false, from then on: at most two searches matter on a grid. With restart after the crossing it is one:
    the members do not count in the next.
    """
    if not members:
        return None
    parameters = searches.parameters
    empty_from = members[0].last + parameters.window
    search = searches.at(step + 1, crossing)
    while search.first < empty_from:
        noise = noise_of(search.place)
        for at in range(max(step + 1, search.first), min(search.last + 1, empty_from)):
            count = count_since(members, searches.counts_from(search, at))
            if not _reachable(count, parameters, noise):
                break  # counts only fall while nobody joins
            if crosses(count, noise.nu(at - search.first), parameters.k, noise.mu):
                return at
        search = searches.at(search.last + 1, crossing)
    return None


def _reachable(count: int, parameters: Parameters, noise: Noise) -> bool:
    """Whether ``count`` crosses with the largest query noise; deciding this draws no query noise."""
    return count >= parameters.never_true_below and crosses(count, parameters.query_law.max, parameters.k, noise.mu)


def is_above(searches: Searches, crossings: Iterable[int], visible: int, step: int) -> bool:
    """The answer at ``step`` for a reader who may see the crossings up to step ``visible``.

    On a grid the set is true if it crossed at some step ``x <= visible`` in the instance of ``step``: a status stays
    true to the end of its instance (Algorithm 2) and reads false in the next one until it crosses again. With restart
    after the crossing it is true if ``x <= visible < x + hold``: the answer is that of the visible step.
    """
    asked = step if searches.parameters.restart is None else visible
    # Test every crossing, even one that is not visible yet: the response time must not reveal it.
    counts = [(x <= visible) & searches.is_true(x, asked) for x in crossings]
    return any(counts)
