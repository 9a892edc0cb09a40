"""Time: steps of one period, instances of one window of steps, and the phase of a set.

A step is ``floor(unix_time / period)``. Instance ``q`` of a set with phase ``f`` covers the steps ``t`` with
``floor((t - f) / w) == q`` (the paper's Algorithm 1, which prints a ceiling instead of the floor). Epochs
(``searches.py``) are numbered in the same way; their length takes the place of the window.
"""

from typing import Literal

PhaseRule = Literal["hash", "zero"]


def step_at(time: float, period: int) -> int:
    """The step that contains the Unix time ``time`` (seconds)."""
    return int(time // period)


def end_of(step: int, period: int) -> int:
    """The Unix time (seconds) at which ``step`` ends."""
    return (step + 1) * period


def phase_of(set_key: bytes, window: int, rule: PhaseRule) -> int:
    """The phase of a set, ``0..window-1``: a public hash of the set, so it cannot depend on the joins.

    The set key is uniform. The phase uses its last 8 bytes, because its first bits choose the slot.
    """
    return int.from_bytes(set_key[-8:], "big") % window if rule == "hash" else 0


def instance_of(step: int, phase: int, window: int) -> int:
    """The instance that covers ``step``."""
    return (step - phase) // window


def first_step(instance: int, phase: int, window: int) -> int:
    """The first of the ``window`` steps of ``instance``."""
    return instance * window + phase
