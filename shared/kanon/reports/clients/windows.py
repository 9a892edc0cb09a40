"""Contributions of a device within a budget per window of time (Privacy Sandbox paper, Algorithm 3).

The unit of privacy is one (device, window). Windows are a fixed partition of time, ``[w L, (w+1) L)`` for the length L.
A stretch of L milliseconds may overlap two windows and carry 2 Λ1. Every event gives a report. An event that no longer
fits the budget gives a null report.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Generic, TypeVar

from kanon.reports.clients.encrypt import SECOND, ClientReport, contribution
from kanon.reports.shared_info import CONTRIBUTION_BOUND

WINDOW = 600 * SECOND

Memory = TypeVar("Memory")
Program = Callable[[Memory], tuple[Memory, int, int]]
"""The paper's π: from the memory of a device to its new memory, a key and a value. It has no other effect."""


@dataclass(frozen=True)
class Windows:
    """The parameters of the client.

    Attributes:
        reporting_origin: the origin that collects the reports.
        length: the length of a window, in milliseconds.
        contribution_bound: Λ1, the largest sum of values of a device in one window.
        sparsity: Λ0, the most reports with a value above 0 in one window; None: no bound.

    Privacy guarantee: the reports of one (device, window) carry at most ``contribution_bound`` in all.
    """

    reporting_origin: str
    length: int = WINDOW
    contribution_bound: int = CONTRIBUTION_BOUND
    sparsity: int | None = None

    def __post_init__(self) -> None:
        if self.length < 1 or self.contribution_bound < 1:
            raise ValueError("the length of a window and the contribution bound must be at least 1")

    def window_of(self, time: int) -> int:
        """The number of the window of ``time``."""
        return time // self.length

    def end_of(self, window: int) -> int:
        """The first millisecond after a window."""
        return (window + 1) * self.length


@dataclass(frozen=True)
class Device(Generic[Memory]):
    """The state of a device: the program's memory, and the budget used in its latest window.

    The budget starts again with each window; the memory does not.
    """

    memory: Memory
    window: int | None = None
    used: int = 0
    reports: int = 0


def contribute(
    windows: Windows, device: Device[Memory], time: int, program: Program[Memory]
) -> tuple[Device[Memory], ClientReport]:
    """Run the program once and report what it contributes, or nothing if that exceeds the budget.

    The report is scheduled for the end of its window, so its time shows only the window.

    Returns:
        The device afterwards and its report. A contribution that does not fit leaves the budget as it was.

    Raises:
        ValueError: ``time`` is in an earlier window than the device's last event, or the program's key or value does
            not fit its field.
    """
    window = windows.window_of(time)
    if device.window is not None and window < device.window:
        raise ValueError("the events of a device must come in the order of their windows: sort them by time")
    if window != device.window:
        device = replace(device, window=window, used=0, reports=0)
    memory, key, value = program(device.memory)
    pair = contribution(key, value)
    sent = (pair,) if _fits(windows, device, value) else ()
    if sent:
        device = replace(device, used=device.used + value, reports=device.reports + 1)
    report = ClientReport(sent, windows.end_of(window), windows.reporting_origin, "kanon")
    return replace(device, memory=memory), report


def _fits(windows: Windows, device: Device[Memory], value: int) -> bool:
    """Whether the value may be sent. A value of 0 is null and counts towards neither bound."""
    if value == 0 or device.used + value > windows.contribution_bound:
        return False
    return windows.sparsity is None or device.reports < windows.sparsity


def contributions(windows: Windows, events: Iterable[tuple[str, int, int, int]]) -> Iterator[ClientReport]:
    """One report for every event ``(device, time, key, value)``, in the order of the events.

    Raises:
        ValueError: the events of a device are not in the order of their windows.
    """
    devices: dict[str, Device[None]] = {}
    for name, time, key, value in events:
        device = devices.get(name, Device(None))
        devices[name], report = contribute(windows, device, time, partial(_always, key, value))
        yield report


def _always(key: int, value: int, memory: None) -> tuple[None, int, int]:
    """A program without memory that contributes the same pair every time."""
    return memory, key, value
