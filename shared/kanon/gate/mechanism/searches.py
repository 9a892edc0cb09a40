"""When a set is tested, and how long it stays true: its searches.

A *search* is a run of steps with one threshold noise, in which a set is tested until it crosses. There are two rules:

- *Grid* (the paper's Algorithm 2). Each instance of ``window`` steps is a search. After a crossing the set is true to
  the end of the instance.
- *Crossing* (``parameters.restart``). After a crossing at step j the set is true for exactly the steps ``j .. j+L-1``
  (L is the *hold*), and the next search begins at ``j+L``. The steps are also cut into *epochs* of Y steps. A search
  that has not crossed by the last step b of the epoch in which it began ends there. The next one begins at ``b+w``;
  the set is false in the *dark* steps between.

The privacy of the crossing rule needs one property: *at most one search is active in any w consecutive steps*. A join
changes the counts of such a run only, so it meets one search (docs/proofs/crossing.md). The steps between two searches
follow from it, also in the edge cases:

- After a crossing the next search begins at ``j+L`` wherever that is, because ``L >= w``: in the dark steps after a
  boundary, in a later epoch, or (``L > Y``) several epochs later. It ends with the epoch in which it begins.
- A boundary that a status outlasts has no dark steps: no search ended there. If ``j+L`` is the first step of an epoch,
  the search begins there.
- A set without a crossing searches in each epoch from its w-th step on. So does a set of which nothing is known.
- A log generation that begins at step g has noise of its own. It is like the beginning of an epoch: every search that
  began before g ends at g-1, and the next one begins at ``g-1+w``, or if an epoch begins before that, w-1 steps after
  it. True statuses stay. This holds even if the crossings of that time were lost.

All of this is a public function of the set, its last crossing and the step: it depends on no count.
"""

from dataclasses import dataclass
from typing import NamedTuple, Self

from kanon.gate.mechanism.parameters import Parameters
from kanon.gate.mechanism.steps import first_step, instance_of, phase_of


class Search(NamedTuple):
    """The steps ``first`` to ``last``, both included, in which a set is tested until it crosses.

    ``place`` names its noise among the searches of the set: the number of the instance on a grid, else the first step.
    """

    place: int
    first: int
    last: int


@dataclass(frozen=True)
class Searches:
    """The searches of one set.

    Attributes:
        parameters: the constants of the type.
        phase: the phase of the set (:func:`phase_of` with ``parameters.cycle``).
        begun: the first step of the log generation, None for the first one. A grid ignores it.
    """

    parameters: Parameters
    phase: int
    begun: int | None = None

    @classmethod
    def of(cls, parameters: Parameters, set_key: bytes, begun: int | None = None) -> Self:
        """The searches of the set with this key."""
        return cls(parameters, phase_of(set_key, parameters.cycle, parameters.phase), begun)

    def at(self, step: int, crossing: int | None) -> Search:
        """The search that covers ``step``, or the next one if none does.

        ``crossing`` is the last crossing at or before ``step``. If nothing crosses in the search that is returned, the
        one after it is ``at(search.last + 1, crossing)``.
        """
        if self.parameters.restart is not None:
            return self._after_crossing(step, crossing, self.parameters.restart.hold)
        instance = self._cycle(step)
        if crossing is not None and self._cycle(crossing) == instance:
            instance += 1
        first = first_step(instance, self.phase, self.parameters.window)
        return Search(instance, first, first + self.parameters.window - 1)

    def _after_crossing(self, step: int, crossing: int | None, hold: int) -> Search:
        ended = self._first_of_cycle(step)  # every search that began before this step has ended before it
        if self.begun is not None:
            ended = max(ended, self.begun)
        if crossing is not None and crossing + hold >= ended:
            first = crossing + hold
        else:
            first = ended + self.parameters.window - 1
            if self._first_of_cycle(first) > ended:  # the generation began just before the end of an epoch
                first = self._first_of_cycle(first) + self.parameters.window - 1
        return Search(first, first, self._first_of_cycle(first) + self.parameters.cycle - 1)

    def is_true(self, crossing: int, step: int) -> bool:
        """Whether ``crossing``, if it happened at or before ``step``, makes the set true at ``step``."""
        if self.parameters.restart is not None:
            return step < crossing + self.parameters.restart.hold
        return self._cycle(crossing) == self._cycle(step)

    def last_true(self, crossing: int) -> int:
        """The last step at which a set is true because of ``crossing``."""
        if self.parameters.restart is not None:
            return crossing + self.parameters.restart.hold - 1
        return self._first_of_cycle(crossing) + self.parameters.window - 1

    def _cycle(self, step: int) -> int:
        return instance_of(step, self.phase, self.parameters.cycle)

    def _first_of_cycle(self, step: int) -> int:
        return first_step(self._cycle(step), self.phase, self.parameters.cycle)
