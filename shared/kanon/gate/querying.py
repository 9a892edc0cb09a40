"""Use case: read the statuses of sets. It sees statuses and horizons, never a join."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from kanon.errors import StaleError
from kanon.gate.mechanism.above_threshold import is_above
from kanon.gate.mechanism.searches import Searches
from kanon.gate.names import set_key
from kanon.gate.publishing import Horizon, clock_step, next_tick
from kanon.gate.slots import Layout, Layouts
from kanon.gate.types import Type
from kanon.keys import Secret

if TYPE_CHECKING:  # it names columns of numpy, which `query` does not load
    from kanon.gate.storage.protocols import Statuses


@dataclass(frozen=True)
class Answer:
    """Whether each queried set is k-anonymous, at which step, and when the next update is (Unix s).

    ``step`` is the smallest step of the queried slots; None if one was never evaluated or no set was queried.
    """

    above: tuple[bool, ...]
    step: int | None
    next_update: int


class Visible(NamedTuple):
    """The step of the answers of some sets, and the object of those that are true then; None if there is none."""

    step: int
    shows: str | None = None


@dataclass
class Querying:
    """The use case with its table, types and key.

    It caches the horizons of all slots until the next tick, but no set. A cached set would answer faster, and the
    response time would show that another client had queried it.
    """

    types: dict[str, Type]
    pepper: Secret
    statuses: "Statuses"
    period: int
    layouts: Layouts
    publish_delay: int
    max_stale: int | None
    """The steps of :meth:`Parameters.stale_after`; None for answers however old they are."""
    load: Callable[[Sequence[str], float], None] | None = None
    """Told the objects of the visible steps and the time after each answer (:meth:`Memory.load`)."""
    _tick: int = 0
    _horizons: dict[int, Horizon | None] = field(default_factory=dict)

    def query(self, sets: Sequence[tuple[str, bytes]], now: float) -> Answer:
        """The status of each (type name, set id) at ``now``. Unknown sets read false; the types must be known.

        Raises:
            ThrottledError: the table did not answer for every set.
            StaleError: the visible step of a set is too old (:meth:`Parameters.stale_after`).
        """
        at = clock_step(now, self.period, self.publish_delay)
        tick = next_tick(now, self.period, self.publish_delay)
        if tick != self._tick:
            self._tick, self._horizons = tick, {}
        keys = [set_key(self.pepper, type_name, set_id) for type_name, set_id in sets]
        layouts = [layout for layout in self.layouts.entries if layout.from_step <= at]
        places = [tuple(layout.slot_of(key) for layout in layouts) for key in keys]
        if not keys:
            return Answer((), None, tick)
        crossings, visible = self._read(layouts, dict(zip(keys, places, strict=True)), at, now)
        for place, (type_name, _) in zip(places, sets, strict=True):
            self._refuse_stale(type_name, visible[place], at)
        above = tuple(
            self._is_above(type_name, key, crossings.get(key, ()), visible[place], at)
            for key, place, (type_name, _) in zip(keys, places, sets, strict=True)
        )
        steps = [through for through in visible.values() if through is not None]
        if self.load is not None:
            shown = (horizon.shown_at(now) for horizon in self._horizons.values() if horizon is not None)
            self.load([name for name in shown if name is not None], now)
        return Answer(above, min(steps) if len(steps) == len(visible) else None, tick)

    def _read(
        self, layouts: Sequence[Layout], places: Mapping[bytes, tuple[int, ...]], at: int, now: float
    ) -> tuple[dict[bytes, tuple[int, ...]], dict[tuple[int, ...], int | None]]:
        """The crossings of sets by their keys, and the visible step of each of their places.

        The first query after a tick also reads the horizons of all slots, in the same call, and every set of the table.
        """
        slots = range(max(layout.slots for layout in layouts)) if not self._horizons else range(0)
        known = {} if slots else {place: self._visible(layouts, place, at, now) for place in {*places.values()}}
        asked = {key: shown.shows if (shown := known.get(place)) else None for key, place in places.items()}
        crossings, horizons = self.statuses.read(asked, slots)
        self._horizons |= {slot: horizons.get(slot) for slot in slots}
        visible = known or {place: self._visible(layouts, place, at, now) for place in {*places.values()}}
        return crossings, {place: None if shown is None else shown.step for place, shown in visible.items()}

    def _visible(self, layouts: Sequence[Layout], slots: Sequence[int], at: int, now: float) -> Visible | None:
        """The step of the answers of the sets that these layouts put into these slots; None before the first one.

        A layout is used from its first visible step on. Until then the answers are those of the last step of the layout
        before. ``at`` is the largest step that may be visible. The object of a later step, perhaps of another layout,
        does not have the answers.
        """
        for layout, slot in zip(reversed(layouts), reversed(slots), strict=True):
            horizon = self._horizons[slot]
            through = None if horizon is None else horizon.at(now)
            if horizon is not None and through is not None and through >= layout.from_step:
                return Visible(min(at, through), horizon.shown_at(now) if through <= at else None)
            at = layout.from_step - 1
        return None

    def _refuse_stale(self, type_name: str, visible: int | None, at: int) -> None:
        if self.max_stale is None:
            return
        stale = self.types[type_name].parameters.stale_after(self.max_stale)
        if stale is not None and visible is not None and at >= visible + stale:
            raise StaleError("no step has become visible for MaxStale steps")

    def _is_above(self, type_name: str, key: bytes, crossings: Iterable[int], visible: int | None, at: int) -> bool:
        if visible is None:
            return False
        return is_above(Searches.of(self.types[type_name].parameters, key), crossings, visible, at)
