"""A second, plain implementation of both algorithms: the oracle of the equality tests.

Keeps every join, recounts the distinct client tokens of the window at every step, and runs the paper's Algorithms 1
and 2, or the restart after the crossing, with the same tape. Nothing here is shared with the service but laws and tape.
"""

from collections import defaultdict
from collections.abc import Iterable

from kanon.gate.mechanism.parameters import Parameters
from kanon.gate.mechanism.tape import Tapes


class NaiveSearches:
    """Which step belongs to which search, step after step. It remembers the search that runs.

    ``crossing`` is a crossing at or before step ``since``; without one, the set never crossed.
    """

    def __init__(
        self,
        parameters: Parameters,
        set_key: bytes,
        crossing: int | None = None,
        since: int = -1_000,
        begun: int | None = None,
    ) -> None:
        self.parameters = parameters
        cycle = parameters.window if parameters.restart is None else parameters.restart.epoch
        self.phase = int.from_bytes(set_key[-8:], "big") % cycle if parameters.phase == "hash" else 0
        self.cycle = cycle
        self.begun = begun  # the first step of a log generation
        self.true_through = -1_000_000  # true until this step because of a crossing
        self.crossings: list[int] = []
        self.first: int | None = None  # of the running search
        self.begins: int | None = None  # the next search, after a crossing
        self.counted_from = -1_000_000  # joins before this step were counted by earlier searches
        self.seen = (since if crossing is None else crossing) - 3 * cycle
        if crossing is not None:
            self.search_at(crossing)
            self.crossed(crossing)
        self.search_at(since)

    def search_at(self, step: int) -> tuple[int, int] | None:
        """The place of the search that tests ``step`` and the number of the step in it; None if none does.

        Steps must be given in order; those left out are passed without a crossing.
        """
        if self.parameters.restart is None:
            instance, i = divmod(step - self.phase, self.cycle)
            return None if step <= self.true_through else (instance, i)
        while self.seen < step:
            self.seen += 1
            self._enter(self.seen)
        return None if self.first is None else (self.first, step - self.first)

    def _enter(self, step: int) -> None:
        boundary = (step - self.phase) % self.cycle == 0 or step == self.begun
        if boundary and step > self.true_through + 1:
            self.first = self.counted_from = step
        if step == self.begins:
            self.first, self.begins = step, None

    def crossed(self, step: int) -> None:
        """The set crosses at ``step``."""
        self.crossings.append(step)
        if self.parameters.restart is None:
            self.true_through = step + self.cycle - 1 - (step - self.phase) % self.cycle
            return
        self.true_through = step + self.parameters.restart.hold - 1
        self.first, self.begins, self.counted_from = None, self.true_through + 1, step + 1


class Naive:
    """All sets of one type: feed joins of a step, then step."""

    def __init__(self, parameters: Parameters, tapes: Tapes) -> None:
        self.parameters = parameters
        self.tapes = tapes
        self.joins: dict[bytes, dict[int, set[int]]] = defaultdict(lambda: defaultdict(set))
        self.searches: dict[bytes, NaiveSearches] = {}
        self.begun: int | None = None  # the first step of a log generation

    def join(self, set_key: bytes, token: int, step: int) -> None:
        """A client joins."""
        self.joins[set_key][step].add(token)

    def count(self, set_key: bytes, step: int) -> int:
        """Distinct tokens in ``(step - w, step]``, of joins that no earlier search counted."""
        by_step = self.joins[set_key]
        begin = max(step - self.parameters.window + 1, self.searches[set_key].counted_from)
        return len(set().union(*(by_step[at] for at in by_step if begin <= at <= step)))

    def step(self, set_key: bytes, step: int) -> bool:
        """The output ``o_t`` of this set; steps must be given in order, each once."""
        if set_key not in self.searches:
            self.searches[set_key] = NaiveSearches(self.parameters, set_key, since=step - 1, begun=self.begun)
        searches = self.searches[set_key]
        search = searches.search_at(step)
        if search is not None and self._crosses(set_key, step, *search):
            searches.crossed(step)
        return step <= searches.true_through

    def _crosses(self, set_key: bytes, step: int, place: int, i: int) -> bool:
        p, w = self.parameters, self.parameters.window
        page, at = (0, i) if p.restart is None else divmod(i, w)
        mu = int.from_bytes(self.tapes.words(set_key, place, 1), "big")
        nu = int.from_bytes(self.tapes.words(set_key, place, 2 + at, page)[-8:], "big")
        return self.count(set_key, step) + p.query_law.draw(nu) >= p.k + p.threshold_law.draw(mu)

    def begin_generation(self, tapes: Tapes, step: int) -> None:
        """From ``step``, the next one, on all noise is read from other tapes; what is true stays true."""
        self.tapes, self.begun = tapes, step
        for searches in self.searches.values():
            searches.begun = step

    def statuses(self, set_keys: Iterable[bytes], step: int) -> dict[bytes, bool]:
        """The outputs of many sets at one step."""
        return {set_key: self.step(set_key, step) for set_key in set_keys}
