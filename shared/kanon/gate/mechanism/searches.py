"""When a set is tested, what is counted, and how long it stays true: its searches.

A *search* is a run of steps with one threshold noise, in which a set is tested until it crosses. There are two rules:

- *Grid* (the paper's Algorithm 2). Each instance of ``window`` steps is a search. After a crossing the set is true to
  the end of the instance.
- *Crossing* (``parameters.restart``). After a crossing at step j the set is true for exactly the steps ``j .. j+L-1``
  (L is the *hold*), and the next search begins at ``j+L``. The steps are also cut into *epochs* of Y steps. A search
  that has not crossed by the last step b of the epoch in which it began ends there, and the next one begins at ``b+1``.
  A search counts the joins that were made *after the search before it ended* (after j, or after b), and no others.

The privacy of the crossing rule follows from the last sentence: every join is counted in one search only
(docs/proofs/crossing.md). Some cases:

- The search after a crossing begins at ``j+L`` wherever that is, if need be several epochs later, and ends with the
  epoch in which it begins. Its windows lie after j, because ``L >= w``: it misses no join.
- A search that begins with its epoch counts from 0. So does the first search of a set of which nothing is known.
- A log generation that begins at step g has noise of its own. It is like the beginning of an epoch: every search that
  began before g ends at g-1, and the next one begins at g. True statuses stay. This holds even if the crossings of that
  time were lost.

All of this is a public function of the set, its last crossing and the step: it depends on no count.
"""

from dataclasses import dataclass
from typing import NamedTuple, Self

from kanon.gate.mechanism.parameters import Parameters
from kanon.gate.mechanism.steps import first_step, instance_of, phase_of


class Search(NamedTuple):
    """The steps ``first`` to ``last``, both included, in which a set is tested until it crosses.

    ``place`` names its noise among the searches of the set: the number of the instance on a grid, else the first step.
    Joins before the step ``since`` never count in it; on a grid, that is before all that could.
    """

    place: int
    first: int
    last: int
    since: int


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
        window = self.parameters.window
        first = first_step(instance, self.phase, window)
        return Search(instance, first, first + window - 1, first - 2 * window)

    def _after_crossing(self, step: int, crossing: int | None, hold: int) -> Search:
        first = self._first_of_cycle(step)  # every search that began before this step has ended before it
        if self.begun is not None:
            first = max(first, self.begun)
        since = first
        if crossing is not None and crossing + hold >= first:
            first, since = crossing + hold, crossing + 1
        return Search(first, first, self._first_of_cycle(first) + self.parameters.cycle - 1, since)

    def counts_from(self, search: Search, step: int) -> int:
        """The first step whose joins count at ``step`` in a search, or would count in it if it began by then."""
        return max(step - self.parameters.window + 1, search.since)

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
