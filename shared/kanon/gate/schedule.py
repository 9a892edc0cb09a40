"""The clock of a deployment: when a step is closed, how far back the log reaches, when a step becomes visible."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Self

from kanon.gate.mechanism.steps import end_of, step_at
from kanon.gate.publishing import clock_step, next_tick, tick_of
from kanon.gate.settings import EvaluateSettings

DAY = 86_400
MANIFESTS_KEPT = 3


@dataclass(frozen=True)
class Schedule:
    """The durations of a deployment, all in seconds (docs/architecture.md, rules 2, 3, 8 and 9)."""

    period: int
    grace: int
    lease: int
    publish_delay: int
    publish_margin: int
    outage_allowance: int

    @classmethod
    def of(cls, settings: EvaluateSettings) -> Self:
        """The durations in the settings of a function."""
        return cls(**{duration.name: getattr(settings, duration.name) for duration in fields(cls)})

    def last_closed(self, now: float) -> int:
        """The last step that no join can enter any more."""
        return step_at(now - self.grace, self.period) - 1

    def oldest_in_log(self, now: float) -> int:
        """The oldest step whose rows cannot have expired."""
        return step_at(now - self.outage_allowance, self.period)

    def oldest_allowed(self, now: float) -> int:
        """The oldest step from which a late evaluation may continue, with a reserve before its rows expire."""
        return step_at(now - self.outage_allowance + self._reserve, self.period)

    def allowed_until(self, step: int) -> int:
        """The Unix time (seconds) until which a late evaluation may continue from ``step``."""
        return end_of(step, self.period) + self.outage_allowance - self._reserve

    def manifests_kept(self, steps: Sequence[int], now: float) -> set[int]:
        """Which manifests are kept: the last three, and one a day for the outage allowance. ``steps``: oldest first."""
        oldest, days = self.oldest_in_log(now), dict[int, int]()
        for step in steps:
            if step >= oldest:
                days.setdefault(step * self.period // DAY, step)
        return {*steps[-MANIFESTS_KEPT:], *days.values()}

    @property
    def _reserve(self) -> int:
        return min(DAY, self.outage_allowance // 7)

    def first_after_skip(self, now: float) -> int:
        """The first step of a slot after a skip: the oldest one that will still be allowed in two periods."""
        return min(self.oldest_allowed(now + 2 * self.period), self.last_closed(now))

    def expiry(self, step: int) -> int:
        """The Unix time (seconds) at which a row that is needed up to ``step`` may expire."""
        return end_of(step, self.period) + self.outage_allowance

    def due(self, now: float) -> int:
        """The last step whose tick has passed."""
        return clock_step(now, self.period, self.publish_delay)

    def visible_from(self, now: float) -> int:
        """The first tick late enough for every reader to see what is written at ``now``."""
        return next_tick(now + self.publish_margin, self.period, self.publish_delay)

    def tick_of(self, step: int) -> int:
        """The Unix time (seconds) at which ``step`` may become visible."""
        return tick_of(step, self.period, self.publish_delay)
