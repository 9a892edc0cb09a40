"""Ticks: the only moments at which answers change.

The tick of a step is ``publish_delay`` seconds after its end. Between two ticks no answer changes.
"""

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
