"""Ticks: the only moments at which answers change.

The tick of a step is ``publish_delay`` seconds after its end. Between two ticks no answer changes.
"""

from dataclasses import dataclass, replace

from kanon.gate.mechanism.steps import end_of, step_at


def clock_step(now: float, period: int, publish_delay: int) -> int:
    """The step with the latest tick at or before ``now``."""
    return step_at(now - publish_delay, period) - 1


def tick_of(step: int, period: int, publish_delay: int) -> int:
    """The Unix time (seconds) at which ``step`` may become visible."""
    return end_of(step, period) + publish_delay


def next_tick(now: float, period: int, publish_delay: int) -> int:
    """The first tick after ``now`` (Unix seconds)."""
    return tick_of(clock_step(now, period, publish_delay) + 1, period, publish_delay)


@dataclass(frozen=True)
class Horizon:
    """The visible step of a slot over time.

    It is ``earliest`` until ``earlier_from`` (Unix s), ``earlier`` from then until ``visible_from`` (Unix s),
    and ``through`` from then on. Two steps are not enough: when a step is completed near the tick of the step
    before it, some readers have passed that tick and others have not.

    Each of the three steps has the name of the object of the sets that are true then (``shows``, ``earlier_shows``,
    ``earliest_shows``); None: there is none, and only the crossings say which sets are true.
    """

    through: int
    visible_from: int
    earlier: int | None = None
    earlier_from: int = 0
    earliest: int | None = None
    shows: str | None = None
    earlier_shows: str | None = None
    earliest_shows: str | None = None

    def at(self, now: float) -> int | None:
        """The visible step at ``now``, None before the first one."""
        if now >= self.visible_from:
            return self.through
        return self.earlier if now >= self.earlier_from else self.earliest

    def shown_at(self, now: float) -> str | None:
        """The object of the visible step at ``now``."""
        if now >= self.visible_from:
            return self.shows
        return self.earlier_shows if now >= self.earlier_from else self.earliest_shows

    @property
    def named(self) -> set[str]:
        """The objects of all three steps."""
        return {name for name in (self.shows, self.earlier_shows, self.earliest_shows) if name is not None}


def moved_horizon(horizon: Horizon | None, step: int, visible_from: int, shows: str | None = None) -> Horizon:
    """The horizon when ``step`` is complete and becomes visible at the tick ``visible_from``.

    What readers see before that tick does not change. If the horizon becomes visible at the same or a later tick,
    ``step`` becomes visible with it. ``shows`` is the object of the sets that are true at ``step``.
    """
    if horizon is None:
        return Horizon(step, visible_from, shows=shows)
    if step <= horizon.through:
        return horizon
    if horizon.visible_from < visible_from:
        before = horizon.through, horizon.visible_from, horizon.earlier
        return Horizon(step, visible_from, *before, shows, horizon.shows, horizon.earlier_shows)
    return replace(horizon, through=step, shows=shows)
