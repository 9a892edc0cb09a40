"""Attribution of triggers to sources on one device (Privacy Sandbox paper, Algorithms 2 and 4).

The unit of privacy is one source. Every trigger that asks for an aggregatable report gets one. It is a null report if
no source matches, if the budget is spent, or if filters, window or deduplication exclude it. Otherwise the number of
reports would reveal events on the device.

Two policies decide which source a trigger belongs to:

* ``paper``: the newest matching source with enough budget.
* ``web``: one source, by priority and then by recency, as in browsers. Filters, window, deduplication and budget are
  checked afterwards; a trigger that fails them is **not** given to another source. An attributed trigger makes the
  other matching sources inactive.

Both keep the bound of every source, so the guarantees hold for both.
"""

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import reduce
from operator import or_
from typing import Literal, NamedTuple

from kanon.reports.clients.events import EPSILON, Events, EventSpec, EventTrigger, Kind, record, register
from kanon.reports.clients.filters import FilterData, Filters
from kanon.reports.clients.report import (
    DAY,
    LAYOUT,
    MAX_BUCKET,
    SECOND,
    Report,
    contribution,
    total,
)
from kanon.reports.clients.response import RandomBits
from kanon.reports.parameters import CONTRIBUTION_BOUND
from kanon.reports.payload import Contribution, Layout

DELAY = 600 * SECOND
"""The longest delay of an aggregatable report, in milliseconds (Chromium's value)."""

MAX_KEYS = 20
"""Keys of one source, and so contributions of one report."""

EVERY_SOURCE = Filters()


@dataclass(frozen=True)
class Source:
    """An impression. Times in milliseconds.

    Attributes:
        time: when it was registered.
        reporting_origin: the origin that collects the reports. Only its triggers match.
        destinations: where triggers may happen.
        keys: pieces of keys by name.
        kind: ``navigation`` (a click) or ``event`` (a view).
        event_id: the name of the source in event-level reports.
        expiry: the age from which no trigger matches.
        window: the largest age at which a trigger gets a non-null aggregatable report.
        priority: higher is taken first (``web``).
        filter_data: values by name; ``source_type`` is added to them.
        named_budgets: parts of the budget that triggers may name.
        events: the event-level reports it may have; None for none.
    """

    time: int
    reporting_origin: str
    destinations: frozenset[str]
    keys: Mapping[str, int] = field(default_factory=dict)
    kind: Kind = "navigation"
    event_id: int = 0
    expiry: int = 30 * DAY
    window: int = 30 * DAY
    priority: int = 0
    filter_data: FilterData = field(default_factory=dict)
    named_budgets: Mapping[str, int] = field(default_factory=dict)
    events: EventSpec | None = None

    def __post_init__(self) -> None:
        if len(self.keys) > MAX_KEYS:
            raise ValueError(f"a source has at most {MAX_KEYS} keys")
        if any(not 0 <= piece <= MAX_BUCKET for piece in self.keys.values()):
            raise ValueError("a piece of a key has at most 128 bits")

    @property
    def filterable(self) -> FilterData:
        """The filter data with ``source_type``, the kind of the source."""
        return {**self.filter_data, "source_type": frozenset({self.kind})}


class KeyPiece(NamedTuple):
    """A piece that a trigger combines (by OR) with the source's keys of these names, if the filters match."""

    piece: int
    names: frozenset[str]
    filters: Filters = EVERY_SOURCE


class Amount(NamedTuple):
    """What a trigger adds to one key."""

    value: int
    filtering_id: int = 0


class Values(NamedTuple):
    """Amounts by the name of the source's key, if the filters match."""

    amounts: Mapping[str, Amount]
    filters: Filters = EVERY_SOURCE


class Deduplication(NamedTuple):
    """A source gets one aggregatable report per deduplication key; None: any number."""

    key: int | None
    filters: Filters = EVERY_SOURCE


class NamedBudget(NamedTuple):
    """The part of a source's budget that a trigger takes from; None: the whole."""

    name: str | None
    filters: Filters = EVERY_SOURCE


class EventData(NamedTuple):
    """The event-level part of a trigger, if the filters match."""

    trigger: EventTrigger
    filters: Filters = EVERY_SOURCE


@dataclass(frozen=True)
class Trigger:
    """A conversion. Each list with filters uses the first entry that matches the source; ``pieces`` uses all matching
    entries.

    Attributes:
        time: when it happened, in milliseconds.
        reporting_origin: the origin that collects the reports.
        destination: where it happened.
        pieces: pieces of keys.
        values: the amounts to add; empty: the trigger asks for no aggregatable report.
        filters: the sources to which it may be attributed.
        deduplication: deduplication keys.
        named_budgets: which part of the budget it takes.
        events: its event-level part; empty for none.
        tells_source_day: whether reports show, in clear, the day of the first source that matches, whether or not it
            has budget left or is active; or the trigger's day if none matches.
        context_id: a text that is sent beside the report, which then has no delay.
        layout: how its report is encrypted, which decides the bytes of a filtering id.

    Raises:
        ValueError: a piece, a value or a filtering id does not fit its field. This is checked before any source is
            looked at: an error for some sources only would reveal them.
    """

    time: int
    reporting_origin: str
    destination: str
    pieces: tuple[KeyPiece, ...] = ()
    values: tuple[Values, ...] = ()
    filters: Filters = EVERY_SOURCE
    deduplication: tuple[Deduplication, ...] = ()
    named_budgets: tuple[NamedBudget, ...] = ()
    events: tuple[EventData, ...] = ()
    tells_source_day: bool = False
    context_id: str | None = None
    layout: Layout = LAYOUT

    def __post_init__(self) -> None:
        for piece in self.pieces:
            contribution(piece.piece, 0)
        for amount in (amount for values in self.values for amount in values.amounts.values()):
            contribution(0, amount.value, amount.filtering_id)
            if amount.filtering_id >= self.layout.id_limit:
                raise ValueError(f"a filtering id must be below {self.layout.id_limit} in this layout")

    @property
    def asks_for_report(self) -> bool:
        """Whether it gets an aggregatable report. This depends on the trigger alone."""
        return bool(self.pieces or self.values)


@dataclass(frozen=True)
class Stored:
    """A source and its used budget.

    Attributes:
        source: as it was registered.
        events: its event-level state.
        used: value of its aggregatable reports.
        reports: its aggregatable reports with a value above 0.
        used_by_name: value taken from its named budgets.
        deduplication: keys of its aggregatable reports.
        active: whether triggers may still be attributed to it. Its event-level reports are sent even if not.
    """

    source: Source
    events: Events | None = None
    used: int = 0
    reports: int = 0
    used_by_name: Mapping[str, int] = field(default_factory=dict)
    deduplication: frozenset[int] = field(default_factory=frozenset)
    active: bool = True


@dataclass(frozen=True)
class Attribution:
    """The parameters of the client.

    Attributes:
        policy: ``paper`` or ``web``.
        contribution_bound: Λ1, the largest sum of values in all reports of one source.
        sparsity: Λ0, the most reports with a value above 0 of one source; None: no bound.
        epsilon: of the event-level reports of one source.

    Privacy guarantee: the aggregatable reports of one source carry at most ``contribution_bound`` in all, and its
    event-level reports are ``epsilon``-DP.
    """

    policy: Literal["paper", "web"] = "web"
    contribution_bound: int = CONTRIBUTION_BOUND
    sparsity: int | None = None
    epsilon: Fraction = EPSILON

    def __post_init__(self) -> None:
        if self.policy not in {"paper", "web"}:
            raise ValueError("the policy must be `paper` or `web`")
        if self.contribution_bound < 1:
            raise ValueError("the contribution bound must be at least 1")


Device = tuple[Stored, ...]
"""The sources of a device, in the order of their registration."""


class Attributed(NamedTuple):
    """The result of a trigger.

    Attributes:
        device: the sources afterwards.
        report: the aggregatable report; None if the trigger asks for none.
        source: position of the source that the report belongs to; None if there is none. It stays on the device.
    """

    device: Device
    report: Report | None
    source: int | None


def add_source(
    attribution: Attribution, device: Device, source: Source, random_bits: RandomBits = secrets.randbits
) -> Device:
    """Register a source. A source whose event-level reports could tell too many bits is not registered."""
    events = None
    if source.events is not None:
        if not source.events.allowed(source.kind, attribution.epsilon):
            return device
        events = register(source.events, attribution.epsilon, random_bits)
    return (*device, Stored(source, events))


def add_trigger(attribution: Attribution, device: Device, trigger: Trigger, delay: int = DELAY) -> Attributed:
    """Attribute a trigger.

    Args:
        attribution: the parameters.
        device: the sources so far.
        trigger: not earlier than the triggers before.
        delay: milliseconds after which the aggregatable report is sent; drawn by the caller, 0 to ``DELAY``.
    """
    matching = [place for place, stored in enumerate(device) if _matches(stored.source, trigger)]
    matching.sort(key=lambda place: _rank(attribution, device, place), reverse=True)
    # Which sources are active, or have budget left, depends on earlier contributions: the clear fields must not.
    registered = device[matching[0]].source.time if matching else trigger.time
    attribute = _by_paper if attribution.policy == "paper" else _by_web
    active = [place for place in matching if device[place].active]
    device, pairs, found = attribute(attribution, device, trigger, active)
    return Attributed(device, _report(trigger, registered, pairs, delay), found)


def _matches(source: Source, trigger: Trigger) -> bool:
    return (
        source.reporting_origin == trigger.reporting_origin
        and trigger.destination in source.destinations
        and 0 <= trigger.time - source.time < source.expiry
    )


def _rank(attribution: Attribution, device: Device, place: int) -> tuple[int, int, int]:
    """The larger, the earlier it is tried: the newest of the sources, and with ``web`` of those with most priority."""
    source = device[place].source
    return source.priority if attribution.policy == "web" else 0, source.time, place


Choice = tuple[Device, tuple[Contribution, ...], int | None]
"""The sources afterwards, the contributions, and the position of the source that they belong to."""


def _by_paper(attribution: Attribution, device: Device, trigger: Trigger, newest_first: list[int]) -> Choice:
    """Algorithm 2: the newest source with enough budget. Algorithm 4: the newest that is not finished."""
    found: int | None = None
    pairs: tuple[Contribution, ...] = ()
    for place in newest_first:
        charged = _charge(attribution, device[place], trigger)
        if charged is not None:
            stored, pairs = charged
            device, found = _with(device, place, stored), place
            break
    for place in newest_first:
        events = device[place].events
        if events is not None and not events.finished and _filtered(device[place], trigger, trigger.filters):
            device = _with(device, place, _recorded(device[place], trigger))
            break
    return device, pairs, found


def _by_web(attribution: Attribution, device: Device, trigger: Trigger, best_first: list[int]) -> Choice:
    """One source, by priority, then recency. If its checks fail, no other source is tried."""
    if not best_first:
        return device, (), None
    place, *rest = best_first
    stored = device[place]
    pairs: tuple[Contribution, ...] = ()
    attributed = False
    if _filtered(stored, trigger, trigger.filters):
        charged = _charge(attribution, stored, trigger)
        if charged is not None:
            stored, pairs = charged
        recorded = _recorded(stored, trigger)
        attributed = bool(pairs) or recorded is not stored
        stored = recorded
    device = _with(device, place, stored)
    if attributed:
        device = tuple(replace(other, active=False) if n in rest else other for n, other in enumerate(device))
    return device, pairs, place


def _charge(
    attribution: Attribution, stored: Stored, trigger: Trigger
) -> tuple[Stored, tuple[Contribution, ...]] | None:
    """The source after the contributions are taken from its budget, and the contributions.

    None if the trigger asks for no report, or if they do not fit.
    """
    age = trigger.time - stored.source.time
    if not trigger.asks_for_report or age > stored.source.window or not _filtered(stored, trigger, trigger.filters):
        return None
    key = next((d.key for d in trigger.deduplication if _filtered(stored, trigger, d.filters)), None)
    if key is not None and key in stored.deduplication:
        return None
    pairs = contributions_of(stored.source, trigger)
    value = total(pairs)
    if value == 0:
        return stored, ()  # a null report, which is not counted
    if stored.used + value > attribution.contribution_bound or stored.reports == attribution.sparsity:
        return None
    name = next((b.name for b in trigger.named_budgets if _filtered(stored, trigger, b.filters)), None)
    by_name = stored.used_by_name
    if name is not None and name in stored.source.named_budgets:
        by_name = {**by_name, name: by_name.get(name, 0) + value}
        if by_name[name] > stored.source.named_budgets[name]:
            return None
    keys = stored.deduplication if key is None else stored.deduplication | {key}
    used, reports = stored.used + value, stored.reports + 1
    return replace(stored, used=used, reports=reports, used_by_name=by_name, deduplication=keys), pairs


def contributions_of(source: Source, trigger: Trigger) -> tuple[Contribution, ...]:
    """The contributions of a trigger for a source: one for every key of the source that has an amount.

    The key is the source's piece OR the pieces of the trigger that name it and whose filters match.
    """
    age = trigger.time - source.time
    amounts = next((v.amounts for v in trigger.values if v.filters.match(source.filterable, age)), {})
    pieces = [piece for piece in trigger.pieces if piece.filters.match(source.filterable, age)]
    pairs = []
    for name, key in source.keys.items():
        amount = amounts.get(name)
        if amount is None or amount.value == 0:
            continue
        bucket = reduce(or_, (piece.piece for piece in pieces if name in piece.names), key)
        pairs.append(contribution(bucket, amount.value, amount.filtering_id))
    return tuple(pairs)


def _filtered(stored: Stored, trigger: Trigger, filters: Filters) -> bool:
    return filters.match(stored.source.filterable, trigger.time - stored.source.time)


def _recorded(stored: Stored, trigger: Trigger) -> Stored:
    """The source with the event-level part of the trigger recorded, or unchanged if that is dropped."""
    chosen = next((e.trigger for e in trigger.events if _filtered(stored, trigger, e.filters)), None)
    if chosen is None or stored.events is None:
        return stored
    events = record(stored.events, chosen, trigger.time - stored.source.time)
    return stored if events is None else replace(stored, events=events)


def _report(trigger: Trigger, registered: int, pairs: tuple[Contribution, ...], delay: int) -> Report | None:
    """The report of the trigger; ``registered``: when the source that it shows was registered."""
    if not trigger.asks_for_report:
        return None
    scheduled = trigger.time if trigger.context_id is not None else trigger.time + delay
    return Report(
        pairs,
        scheduled,
        trigger.reporting_origin,
        "attribution-reporting",
        trigger.destination,
        registered // DAY * DAY if trigger.tells_source_day else None,
        trigger.context_id,
    )


def _with(device: Device, place: int, stored: Stored) -> Device:
    return (*device[:place], stored, *device[place + 1 :])
