"""A second, plain implementation of the published algorithm: the oracle of the equality tests.

Keeps every join, recounts the distinct client tokens of the window at every step, and runs the paper's
Algorithms 1 and 2 with the same tape. Nothing here is shared with the service but laws and tape.
"""

from collections import defaultdict
from collections.abc import Iterable

from kanon.gate.mechanism.parameters import Parameters
from kanon.gate.mechanism.tape import Tapes


class Naive:
    """All sets of one type: feed joins of a step, then step."""

    def __init__(self, parameters: Parameters, tapes: Tapes) -> None:
        self.parameters = parameters
        self.tapes = tapes
        self.joins: dict[bytes, dict[int, set[int]]] = defaultdict(lambda: defaultdict(set))
        self.instance: dict[bytes, tuple[int, int, tuple[int, ...]]] = {}
        self.already_above: dict[bytes, bool] = {}

    def join(self, set_key: bytes, token: int, step: int) -> None:
        """A client joins."""
        self.joins[set_key][step].add(token)

    def count(self, set_key: bytes, step: int) -> int:
        """Distinct tokens in ``(step - w, step]``."""
        by_step = self.joins[set_key]
        return len(set().union(*(by_step[at] for at in by_step if step - self.parameters.window < at <= step)))

    def step(self, set_key: bytes, step: int) -> bool:
        """The output ``o_t`` of this set; steps must be given in order, each once."""
        p = self.parameters
        phase = int.from_bytes(set_key[-8:], "big") % p.window if p.phase == "hash" else 0
        q, i = divmod(step - phase, p.window)
        if self.instance.get(set_key, (None,))[0] != q:  # a new instance of AboveThreshold
            self._draw(set_key, q)
            self.already_above[set_key] = False
        _, threshold, nu_words = self.instance[set_key]
        if not self.already_above[set_key]:
            nu = p.query_law.draw(nu_words[i])
            self.already_above[set_key] = self.count(set_key, step) + nu >= threshold
        return self.already_above[set_key]

    def begin_generation(self, tapes: Tapes) -> None:
        """From the next step on all noise is read from other tapes; what is true stays true."""
        self.tapes = tapes
        for set_key, (q, _, _) in list(self.instance.items()):
            self._draw(set_key, q)

    def _draw(self, set_key: bytes, q: int) -> None:
        p = self.parameters
        tape = self.tapes.words(set_key, q, 1 + p.window)
        words = [int.from_bytes(tape[at : at + 8], "big") for at in range(0, len(tape), 8)]
        self.instance[set_key] = (q, p.k + p.threshold_law.draw(words[0]), tuple(words[1:]))

    def statuses(self, set_keys: Iterable[bytes], step: int) -> dict[bytes, bool]:
        """The outputs of many sets at one step."""
        return {set_key: self.step(set_key, step) for set_key in set_keys}
