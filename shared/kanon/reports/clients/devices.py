"""What a device contributes within its budget: of one window of time, or of one source.

* *Windows* (Privacy Sandbox paper, Algorithm 3): the unit of privacy is one (device, window). Windows are a fixed
  partition of time, ``[w L, (w+1) L)`` for the length L. A stretch of L milliseconds may overlap two windows and carry
  2 Λ1. Every event gives a report. An event that no longer fits the budget gives a null report.
* *Attribution* of triggers to sources (Algorithms 2 and 4): the unit of privacy is one source. Every trigger that asks
  for an aggregatable report gets one: of the newest matching source with enough budget, or a null report if there is
  none. Otherwise the number of reports would reveal events on the device. The event-level part of a trigger goes to the
  newest matching source that still has event-level reports left.
"""

import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import partial, reduce
from operator import or_
from typing import Any, Generic, NamedTuple, TypeVar

from kanon.reports.clients.encrypt import DAY, MAX_BUCKET, SECOND, ClientReport, contribution
from kanon.reports.clients.events import EPSILON, Events, EventSpec, EventTrigger, RandomBits, record, register
from kanon.reports.payload import Contribution
from kanon.reports.shared_info import CONTRIBUTION_BOUND

# ---------------------------------------------------------------------------------------------------- windows
WINDOW = 600 * SECOND

ProgramMemory = TypeVar("ProgramMemory")
Program = Callable[[ProgramMemory], tuple[ProgramMemory, int, int]]
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
class Device(Generic[ProgramMemory]):
    """The state of a device: the program's memory, and the budget used in its latest window.

    The budget starts again with each window; the memory does not.
    """

    memory: ProgramMemory
    window: int | None = None
    used: int = 0
    reports: int = 0


def contribute(
    windows: Windows, device: Device[ProgramMemory], time: int, program: Program[ProgramMemory]
) -> tuple[Device[ProgramMemory], ClientReport]:
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
    pair, charged = contribution(key, value), _charged(windows, device, value)
    device = device if charged is None else charged
    sent = () if charged is None or value == 0 else (pair,)
    report = ClientReport(sent, windows.end_of(window), windows.reporting_origin, "kanon")
    return replace(device, memory=memory), report


_Unit = TypeVar("_Unit", Device[Any], "Registered")


def _charged(bounds: "Windows | Attribution", unit: _Unit, value: int) -> _Unit | None:
    """A unit of privacy after a value is taken from its budget; None if it does not fit.

    A value of 0 is null and counts towards neither bound.
    """
    if value == 0:
        return unit
    has_all = bounds.sparsity is not None and unit.reports >= bounds.sparsity
    if has_all or unit.used + value > bounds.contribution_bound:
        return None
    return replace(unit, used=unit.used + value, reports=unit.reports + 1)


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


# ------------------------------------------------------------------------------------------------ attribution
DELAY = 600 * SECOND
"""The longest delay of an aggregatable report, in milliseconds (Chromium's value)."""

MAX_KEYS = 20
"""Keys of one source, and so contributions of one report."""


@dataclass(frozen=True)
class Source:
    """An impression. Times in milliseconds.

    Attributes:
        time: when it was registered.
        reporting_origin: the origin that collects the reports. Only its triggers match.
        destinations: where triggers may happen.
        keys: pieces of keys by name.
        expiry: the age from which no trigger matches.
        events: the event-level reports it may have; None for none.
    """

    time: int
    reporting_origin: str
    destinations: frozenset[str]
    keys: Mapping[str, int] = field(default_factory=dict)
    expiry: int = 30 * DAY
    events: EventSpec | None = None

    def __post_init__(self) -> None:
        if len(self.keys) > MAX_KEYS:
            raise ValueError(f"a source has at most {MAX_KEYS} keys")
        if any(not 0 <= piece <= MAX_BUCKET for piece in self.keys.values()):
            raise ValueError("a piece of a key has at most 128 bits")


class KeyPiece(NamedTuple):
    """A piece that a trigger combines (by OR) with the source's keys of these names."""

    piece: int
    names: frozenset[str]


@dataclass(frozen=True)
class Trigger:
    """A conversion.

    Attributes:
        time: when it happened, in milliseconds.
        destination: where it happened.
        amounts: what it adds, by the name of the source's key.
        event: its event-level part; None for none.

    Raises:
        ValueError: a piece or a value does not fit its field. This is checked before any source is looked at: an error
            for some sources only would reveal them.
    """

    time: int
    reporting_origin: str
    destination: str
    pieces: tuple[KeyPiece, ...] = ()
    amounts: Mapping[str, int] = field(default_factory=dict)
    event: EventTrigger | None = None

    def __post_init__(self) -> None:
        for piece in self.pieces:
            contribution(piece.piece, 0)
        for amount in self.amounts.values():
            contribution(0, amount)

    @property
    def asks_for_report(self) -> bool:
        """Whether it gets an aggregatable report. This depends on the trigger alone."""
        return bool(self.pieces or self.amounts)


@dataclass(frozen=True)
class Registered:
    """A source and its used budget.

    Attributes:
        used: value of its aggregatable reports.
        reports: its aggregatable reports with a value above 0.
    """

    source: Source
    events: Events | None = None
    used: int = 0
    reports: int = 0


@dataclass(frozen=True)
class Attribution:
    """The parameters of the client.

    Attributes:
        contribution_bound: Λ1, the largest sum of values in all reports of one source.
        sparsity: Λ0, the most reports with a value above 0 of one source; None: no bound.
        epsilon: of the event-level reports of one source.

    Privacy guarantee: the aggregatable reports of one source carry at most ``contribution_bound`` in all, and its
    event-level reports are ``epsilon``-DP.
    """

    contribution_bound: int = CONTRIBUTION_BOUND
    sparsity: int | None = None
    epsilon: Fraction = EPSILON

    def __post_init__(self) -> None:
        if self.contribution_bound < 1:
            raise ValueError("the contribution bound must be at least 1")


Sources = tuple[Registered, ...]
"""The sources of a device, in the order of their registration."""


class Attributed(NamedTuple):
    """The result of a trigger.

    Attributes:
        device: the sources afterwards.
        report: the aggregatable report; None if the trigger asks for none.
        source: position of the source that the report belongs to; None if there is none. It stays on the device.
    """

    device: Sources
    report: ClientReport | None
    source: int | None


def add_source(
    attribution: Attribution, device: Sources, source: Source, random_bits: RandomBits = secrets.randbits
) -> Sources:
    """Register a source. The randomised response of its event-level reports is drawn here, once."""
    events = None if source.events is None else register(source.events, attribution.epsilon, random_bits)
    return (*device, Registered(source, events))


def add_trigger(attribution: Attribution, device: Sources, trigger: Trigger, delay: int = DELAY) -> Attributed:
    """Attribute a trigger.

    Args:
        attribution: the parameters.
        device: the sources so far.
        trigger: not earlier than the triggers before.
        delay: milliseconds after which the aggregatable report is sent; drawn by the caller, 0 to ``DELAY``.
    """
    matching = [place for place, registered in enumerate(device) if _matches(registered.source, trigger)]
    matching.sort(key=lambda place: (device[place].source.time, place), reverse=True)
    pairs: tuple[Contribution, ...] = ()
    device, found = _first(device, matching, lambda registered: _charge(attribution, registered, trigger))
    if found is not None:
        pairs = contributions_of(device[found].source, trigger)
    device, _ = _first(device, matching, lambda registered: _record(registered, trigger))
    return Attributed(device, _report(trigger, pairs, delay), found)


def _matches(source: Source, trigger: Trigger) -> bool:
    return (
        source.reporting_origin == trigger.reporting_origin
        and trigger.destination in source.destinations
        and 0 <= trigger.time - source.time < source.expiry
    )


def _first(
    device: Sources, newest_first: list[int], change: Callable[[Registered], Registered | None]
) -> tuple[Sources, int | None]:
    """Change the first source that can be changed, and return its position; None if there is none."""
    for place in newest_first:
        if (after := change(device[place])) is not None:
            return (*device[:place], after, *device[place + 1 :]), place
    return device, None


def _charge(attribution: Attribution, registered: Registered, trigger: Trigger) -> Registered | None:
    """The source after the contributions are taken from its budget (Algorithm 2).

    None if the trigger asks for no report, or if they do not fit.
    """
    if not trigger.asks_for_report:
        return None
    value = sum(pair.value for pair in contributions_of(registered.source, trigger))
    return _charged(attribution, registered, value)


def contributions_of(source: Source, trigger: Trigger) -> tuple[Contribution, ...]:
    """The contributions of a trigger for a source: one for every key of the source that has an amount above 0.

    The key is the source's piece OR the pieces of the trigger that name it.
    """
    pairs = []
    for name, key in source.keys.items():
        if amount := trigger.amounts.get(name, 0):
            bucket = reduce(or_, (piece.piece for piece in trigger.pieces if name in piece.names), key)
            pairs.append(contribution(bucket, amount))
    return tuple(pairs)


def _record(registered: Registered, trigger: Trigger) -> Registered | None:
    """The source with the event-level part of the trigger; None if it has no event-level reports left (Algorithm 4)."""
    if trigger.event is None or registered.events is None or registered.events.finished:
        return None
    return replace(registered, events=record(registered.events, trigger.event, trigger.time - registered.source.time))


def _report(trigger: Trigger, pairs: tuple[Contribution, ...], delay: int) -> ClientReport | None:
    """The report of the trigger. Its clear fields do not depend on a source, nor on earlier contributions."""
    if not trigger.asks_for_report:
        return None
    return ClientReport(
        pairs, trigger.time + delay, trigger.reporting_origin, "attribution-reporting", trigger.destination
    )
