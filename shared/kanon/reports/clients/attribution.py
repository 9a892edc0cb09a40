"""Attribution of triggers to sources on one device (Privacy Sandbox paper, Algorithms 2 and 4).

The unit of privacy is one source. Every trigger that asks for an aggregatable report gets one: of the newest matching
source with enough budget, or a null report if there is none. Otherwise the number of reports would reveal events on the
device. The event-level part of a trigger goes to the newest matching source that still has event-level reports left.
"""

import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import reduce
from operator import or_
from typing import NamedTuple

from kanon.reports.clients.encrypt import DAY, MAX_BUCKET, SECOND, ClientReport, contribution
from kanon.reports.clients.events import EPSILON, Events, EventSpec, EventTrigger, RandomBits, record, register
from kanon.reports.payload import Contribution
from kanon.reports.shared_info import CONTRIBUTION_BOUND

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
        reporting_origin: the origin that collects the reports.
        destination: where it happened.
        pieces: pieces of keys.
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
        source: as it was registered.
        events: its event-level state.
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


Device = tuple[Registered, ...]
"""The sources of a device, in the order of their registration."""


class Attributed(NamedTuple):
    """The result of a trigger.

    Attributes:
        device: the sources afterwards.
        report: the aggregatable report; None if the trigger asks for none.
        source: position of the source that the report belongs to; None if there is none. It stays on the device.
    """

    device: Device
    report: ClientReport | None
    source: int | None


def add_source(
    attribution: Attribution, device: Device, source: Source, random_bits: RandomBits = secrets.randbits
) -> Device:
    """Register a source. The randomised response of its event-level reports is drawn here, once."""
    events = None if source.events is None else register(source.events, attribution.epsilon, random_bits)
    return (*device, Registered(source, events))


def add_trigger(attribution: Attribution, device: Device, trigger: Trigger, delay: int = DELAY) -> Attributed:
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
    device: Device, newest_first: list[int], change: Callable[[Registered], Registered | None]
) -> tuple[Device, int | None]:
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
    if value == 0:
        return registered  # a null report, which is not counted
    if registered.used + value > attribution.contribution_bound or registered.reports == attribution.sparsity:
        return None
    return replace(registered, used=registered.used + value, reports=registered.reports + 1)


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
