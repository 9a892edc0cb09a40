"""What the gate releases of a join log whose clients also report, and how three kinds of keys compare on it.

The gate is computed as ``kanon simulate`` does it: the statuses are those that a service would give.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from statistics import median

import numpy as np
from numpy.typing import NDArray

from kanon.demo.reported_log import JOINS, VALUE, WINDOW, ReportedLog, Summary, key_of
from kanon.gate.mechanism.bounds import guarantee
from kanon.gate.types import Type, read_types
from kanon.joinlog.numbered import Texts
from kanon.noise.bound import Bound
from kanon.reports.job import DELTA_STEPS, PrivacyParameters, with_gate
from kanon.simulate.part import KeysAndTokens, LogPart, PartKeys, noisy_crossings
from kanon.simulate.presence import runs_of

PERIOD = 3600
TYPE = '{"terms": {"k": 50, "window": 720, "profile": "crossing", "listed": true}}'


@dataclass(frozen=True)
class ReleasedLog:
    """A log whose reports are joined: the counted joins of each client and window, at the end of the window."""

    reported: ReportedLog
    seed: int  # of the gate's noise

    @cached_property
    def type_(self) -> Type:
        """The listed type."""
        return read_types(TYPE, PERIOD)["terms"]

    @property
    def join(self) -> Bound:
        """What a join costs in the gate."""
        return guarantee(self.type_.parameters).watched

    def parameters(self, epsilon: Fraction) -> tuple[PrivacyParameters, ...]:
        """Declared, discovered and released keys with the same epsilon and delta in all.

        The job of released keys spends ``epsilon``; the others spend also what the gate costs.

        Raises:
            ParameterError: epsilon is out of range.
        """
        both = with_gate(Bound(epsilon, Fraction(0)), self.join, JOINS)
        delta = Fraction(int(both.delta * DELTA_STEPS), DELTA_STEPS)
        return (
            PrivacyParameters("declared", both.epsilon),
            PrivacyParameters("discover", both.epsilon, delta),
            PrivacyParameters("kanon", epsilon),
        )

    @cached_property
    def joins(self) -> list[tuple[int, str, str]]:
        """Step, set and client of each join."""
        counted: Counter[tuple[str, int]] = Counter()
        found: dict[tuple[int, str, str], None] = {}
        for join in self.reported.log.joins:
            window = int(join.time) // (WINDOW * PERIOD)
            counted[join.client, window] += 1
            if counted[join.client, window] <= JOINS:
                found[(window + 1) * WINDOW, join.set, join.client] = None
        return list(found)

    @cached_property
    def last(self) -> int:
        """The step of the last joins, whose list is released."""
        return max(step for step, _, _ in self.joins)

    @cached_property
    def clients(self) -> dict[bytes, int]:
        """The number of clients of each key that joined within the type's window."""
        found: dict[bytes, set[str]] = defaultdict(set)
        for step, name, client in self.joins:
            if step > self.last - self.type_.parameters.window:
                found[key_of(name)].add(client)
        return {key: len(clients) for key, clients in found.items()}

    @cached_property
    def released(self) -> NDArray[np.bytes_]:
        """The keys of the sets that are true at the last step, sorted."""
        steps = np.array([step for step, _, _ in self.joins], np.int64)
        sets = _texts([name for _, name, _ in self.joins])
        clients = _texts([client for _, _, client in self.joins])
        part, keys = LogPart.of(steps, sets, clients), PartKeys.from_seed(self.seed)
        keyed, runs = KeysAndTokens(part, self.type_.name, keys), runs_of(part.joins, self.type_.parameters.window)
        crossings = noisy_crossings(part, keyed, self.type_, keys, runs, self.last + 1)
        true = crossings.sets[(crossings.begins <= self.last) & (self.last < crossings.ends)]
        return np.array(sorted({key_of(part.sets[number].decode()) for number in true.tolist()}), "S16")

    def compared(self, summaries: list[Summary]) -> Iterator[str]:
        """A table: keys found, keys wrongly shown, and the error of a shown key, in joins."""
        k = self.type_.parameters.k
        shared = {key for key, clients in self.clients.items() if clients >= k}
        yield f"{'keys':<10}{f'of {len(shared):,} shared by {k}':>20}{'shared by fewer':>17}{'median error':>14}"
        for each in summaries:
            found = shared & each.metrics.keys()
            errors = [abs(metric - self.reported.exact.get(key, 0)) / VALUE for key, metric in each.metrics.items()]
            error = f"{median(errors):.2f} joins" if errors else "-"
            yield f"{each.parameters.mode:<10}{len(found):>20,}{len(each.metrics) - len(found):>17,}{error:>14}"


def _texts(column: list[str]) -> Texts:
    return Texts(np.arange(len(column)), [text.encode() for text in column])
