"""Use case: read the released bit of sets. Sees statuses and horizons, never a join."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from kanon.keys import Secret, set_key, slot_of
from kanon.mechanism.above_threshold import is_above
from kanon.mechanism.steps import phase_of
from kanon.publishing import clock_step, next_tick
from kanon.storage.statuses import Horizon, Statuses
from kanon.types import Type

MOST_CACHED = 100_000


@dataclass(frozen=True)
class Answer:
    """Which of the sets asked are k-anonymous, at which step, and until when (Unix s) that stands.

    ``step`` is the least step over the slots asked, None if a slot was never evaluated.
    """

    above: tuple[bool, ...]
    step: int | None
    next_update: int


@dataclass
class Querying:
    """Everything a query needs, and what was read since the last tick: it cannot change before the next."""

    types: dict[str, Type]
    pepper: Secret
    statuses: Statuses
    period: int
    slots: int
    publish_delay: int
    _tick: int = 0
    _above: dict[bytes, bool] = field(default_factory=dict)
    _horizons: dict[int, Horizon | None] = field(default_factory=dict)

    def query(self, sets: Sequence[tuple[str, bytes]], now: float) -> Answer:
        """The status of each (type name, set id) at ``now``. Unknown sets and types read false.

        Raises:
            ThrottledError: the table did not answer for every set.
        """
        at = clock_step(now, self.period, self.publish_delay)
        tick = next_tick(now, self.period, self.publish_delay)
        if tick != self._tick or len(self._above) > MOST_CACHED:
            self._tick, self._above, self._horizons = tick, {}, {}
        keys = [set_key(self.pepper, type_name, set_id) for type_name, set_id in sets]
        slots = {slot_of(key, self.slots) for key in keys}
        new = {key: type_name for key, (type_name, _) in zip(keys, sets, strict=True) if key not in self._above}
        if new:
            self._read(new, slots, at, now)
        seen = [self._visible(slot, at, now) for slot in slots]
        step = None if None in seen else min((at, *(s for s in seen if s is not None)))
        return Answer(tuple(self._above[key] for key in keys), step, tick)

    def _read(self, new: dict[bytes, str], slots: set[int], at: int, now: float) -> None:
        crossings, horizons = self.statuses.read(new, slots - self._horizons.keys())
        for slot in slots - self._horizons.keys():
            self._horizons[slot] = horizons.get(slot)
        for key, type_name in new.items():
            visible = self._visible(slot_of(key, self.slots), at, now)
            known = self.types.get(type_name)
            self._above[key] = (
                known is not None
                and visible is not None
                and is_above(
                    crossings.get(key, ()),
                    visible,
                    at,
                    phase_of(key, known.parameters.window, known.parameters.phase),
                    known.parameters.window,
                )
            )

    def _visible(self, slot: int, at: int, now: float) -> int | None:
        """The step at which a slot answers, None before its first."""
        horizon = self._horizons[slot]
        through = None if horizon is None else horizon.at(now)
        return None if through is None else min(at, through)
