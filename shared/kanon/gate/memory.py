"""The true sets in the memory of ``query``, and the table for what is not there.

Each request reads the stamp of the suppressed sets from the table, in the same call as whatever it needs besides. So a
suppression counts from the next request on, and an answer from memory takes the same calls as one of the table.

A request loads at most one object, after its answer is known, whichever sets it asks about: the time of an answer tells
nothing about the requests of others but that there were few since the tick. After a tick an instance first waits for a
random time, so that not all instances read at once.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from random import SystemRandom
from typing import TYPE_CHECKING

from kanon.gate.publishing import Horizon
from kanon.gate.true_sets import TrueSets

if TYPE_CHECKING:
    from kanon.gate.storage.aws.statuses import Statuses

MOST_BYTES = 192 << 20
"""The objects that are held together: 8 million true sets. The function has 512 MB."""
SPREAD = 60.0
"""The longest random time before an instance loads objects, in seconds."""


@dataclass
class Memory:
    """The objects that an instance holds, beside the table.

    Attributes:
        table: the statuses.
        fetch: gets an object of true sets by its name; None if it cannot, and then the table answers.
        jitter: a random time from 0 to :data:`SPREAD`, in seconds.
    """

    table: "Statuses"
    fetch: Callable[[str], TrueSets | None]
    jitter: Callable[[], float] = lambda: SystemRandom().uniform(0, SPREAD)
    _held: dict[str, TrueSets] = field(default_factory=dict)
    _wanted: Sequence[str] = ()
    _left: list[str] = field(default_factory=list)
    _from: float = 0.0

    def read(
        self, set_keys: Mapping[bytes, str | None], slots: Sequence[int]
    ) -> tuple[dict[bytes, tuple[int, ...]], dict[int, Horizon]]:
        """The crossings of the sets that count now, and the horizons of the slots that have any.

        Args:
            set_keys: the sets, each with the name of the object that has all true sets of its slot at its visible step;
                None: only the table has them.
            slots: the slots whose horizons are needed.

        Raises:
            ThrottledError: the table did not answer; do not read what is missing as false.
        """
        held = {key: self._held[name] for key, name in set_keys.items() if name in self._held}
        crossings, horizons = self.table.read([key for key in set_keys if key not in held], slots)
        for key, sets in held.items():
            found = sets.crossings(key)
            crossings[key] = () if key in self.table.suppressed else found
        return crossings, horizons

    def load(self, names: Sequence[str], now: float) -> None:
        """Drop all objects but these, and get one that is not held yet. One that cannot be got is not tried again.

        Args:
            names: the objects of the visible steps of all slots.
            now: Unix s.
        """
        if names != self._wanted:
            self._held = {name: self._held[name] for name in names if name in self._held}
            self._left = [name for name in names if name not in self._held]
            self._wanted, self._from = names, now + self.jitter()
        if self._left and now >= self._from:
            name = self._left.pop()
            found = self.fetch(name)
            held = sum(len(sets.content) for sets in self._held.values())
            if found is not None and held + len(found.content) <= MOST_BYTES:
                self._held[name] = found
