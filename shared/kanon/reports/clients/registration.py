"""Registrations of sources and triggers as browsers receive them (WICG attribution reporting, JSON).

Numbers may be JSON numbers or decimal texts, keys are hexadecimal texts. What is out of scope (debug reports,
attribution scopes, app destinations) is ignored.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from kanon.errors import Error
from kanon.reports.clients.attribution import (
    Amount,
    Deduplication,
    EventData,
    KeyPiece,
    NamedBudget,
    Source,
    Trigger,
    Values,
)
from kanon.reports.clients.events import EventSpec, EventTrigger, Kind, TriggerSpec, default_spec
from kanon.reports.clients.filters import Filters, FilterSet
from kanon.reports.clients.report import DAY, HOUR, LAYOUT, SECOND
from kanon.reports.payload import Layout

Json = Mapping[str, Any]
Read = TypeVar("Read")


class RegistrationError(Error, ValueError):
    """A registration is invalid; the message says which field to change."""


@dataclass(frozen=True)
class Rules:
    """The parameters in which browsers differ.

    Attributes:
        least_window: the shortest report window, in milliseconds; shorter ones are lengthened.
        event_delay: milliseconds between the end of a window and the sending of its event-level reports.
    """

    least_window: int = HOUR
    event_delay: int = 0


def source(
    registration: Json, *, time: int, kind: Kind, reporting_origin: str, destinations: frozenset[str], rules: Rules
) -> Source:
    """Read the registration of a source.

    Raises:
        RegistrationError: a field is invalid.
    """
    with _checked():
        expiry = _expiry(registration, kind)
        return Source(
            time=time,
            reporting_origin=reporting_origin,
            destinations=destinations,
            keys={name: _key(piece) for name, piece in registration.get("aggregation_keys", {}).items()},
            kind=kind,
            event_id=_number(registration, "source_event_id", 0),
            expiry=expiry,
            window=_window(registration, "aggregatable_report_window", expiry, rules),
            priority=_number(registration, "priority", 0),
            filter_data={name: frozenset(values) for name, values in registration.get("filter_data", {}).items()},
            named_budgets={
                name: _whole(part, "named_budgets") for name, part in registration.get("named_budgets", {}).items()
            },
            events=_event_spec(registration, kind, expiry, rules),
        )


def trigger(
    registration: Json, *, time: int, reporting_origin: str, destination: str, layout: Layout = LAYOUT
) -> Trigger:
    """Read the registration of a trigger, for a client that encrypts with this layout.

    Raises:
        RegistrationError: a field is invalid, or a number does not fit the layout.
    """
    with _checked():
        mode = registration.get("aggregatable_source_registration_time", "exclude")
        return Trigger(
            time=time,
            reporting_origin=reporting_origin,
            destination=destination,
            pieces=_list(registration, "aggregatable_trigger_data", _piece),
            values=_values(registration.get("aggregatable_values", {})),
            filters=_filters(registration),
            deduplication=_list(registration, "aggregatable_deduplication_keys", _deduplication),
            named_budgets=_list(registration, "named_budgets", lambda b: NamedBudget(b.get("name"), _filters(b))),
            events=_list(registration, "event_trigger_data", _event_data),
            tells_source_day=str(mode).lower() == "include",
            context_id=registration.get("trigger_context_id"),
            layout=layout,
        )


def _expiry(registration: Json, kind: Kind) -> int:
    """Between 1 and 30 days; for views rounded to whole days."""
    seconds = min(max(_number(registration, "expiry", 30 * DAY // SECOND), DAY // SECOND), 30 * DAY // SECOND)
    days = (seconds * SECOND + DAY // 2) // DAY
    return days * DAY if kind == "event" else seconds * SECOND


def _window(registration: Json, field: str, expiry: int, rules: Rules) -> int:
    """Between the least window and the expiry, which is also the default."""
    return min(max(_number(registration, field, expiry // SECOND) * SECOND, rules.least_window), expiry)


def _event_spec(registration: Json, kind: Kind, expiry: int, rules: Rules) -> EventSpec:
    """From ``trigger_specs``, ``event_report_windows`` or ``event_report_window``, whichever is present."""
    default = default_spec(kind, _window(registration, "event_report_window", expiry, rules), rules.event_delay)
    most = _number(registration, "max_event_level_reports", default.max_reports)
    matching = registration.get("trigger_data_matching", "modulus")
    windows = registration.get("event_report_windows", {})
    specs = registration.get("trigger_specs")
    if specs is None:
        (own,) = default.specs
        specs = [{"trigger_data": own.data, "summary_buckets": range(1, max(most, 1) + 1)}]
    inherited = windows or {"end_times": [end // SECOND for end in default.ends]}
    read = tuple(_trigger_spec(spec, inherited, expiry) for spec in specs)
    return EventSpec(read, most, matching, rules.event_delay, tells_bucket="trigger_specs" in registration)


def _trigger_spec(spec: Json, inherited: Json, expiry: int) -> TriggerSpec:
    windows = spec.get("event_report_windows", inherited)
    ends = [_whole(end, "end_times") * SECOND for end in windows["end_times"]]
    return TriggerSpec(
        data=tuple(_whole(datum, "trigger_data") for datum in spec["trigger_data"]),
        ends=tuple(dict.fromkeys(min(end, expiry) for end in ends)),
        buckets=tuple(_whole(bucket, "summary_buckets") for bucket in spec.get("summary_buckets", (1,))),
        operator=spec.get("summary_operator", "count"),
        start=_number(windows, "start_time", 0) * SECOND,
    )


def _piece(entry: Json) -> KeyPiece:
    return KeyPiece(_key(entry.get("key_piece", "0x0")), frozenset(entry.get("source_keys", ())), _filters(entry))


def _values(field: Json | Sequence[Json]) -> tuple[Values, ...]:
    """One mapping of amounts, or a list of mappings with filters."""
    if isinstance(field, Mapping):
        field = [{"values": field}] if field else []
    return tuple(
        Values({name: _amount(amount) for name, amount in entry["values"].items()}, _filters(entry)) for entry in field
    )


def _amount(amount: Any) -> Amount:
    if isinstance(amount, Mapping):
        return Amount(_whole(amount["value"], "value"), _number(amount, "filtering_id", 0))
    return Amount(_whole(amount, "aggregatable_values"))


def _deduplication(entry: Json) -> Deduplication:
    return Deduplication(_deduplication_key(entry), _filters(entry))


def _deduplication_key(entry: Json) -> int | None:
    key = entry.get("deduplication_key")
    return None if key is None else _whole(key, "deduplication_key")


def _event_data(entry: Json) -> EventData:
    event = EventTrigger(
        data=_number(entry, "trigger_data", 0),
        priority=_number(entry, "priority", 0),
        value=_number(entry, "value", 1),
        deduplication_key=_deduplication_key(entry),
    )
    return EventData(event, _filters(entry))


def _filters(entry: Json) -> Filters:
    return Filters(_filter_sets(entry.get("filters", [])), _filter_sets(entry.get("not_filters", [])))


def _filter_sets(field: Json | Sequence[Json]) -> tuple[FilterSet, ...]:
    """One set, or a list of sets of which one must match."""
    sets = [field] if isinstance(field, Mapping) else field
    return tuple(
        FilterSet(
            {name: frozenset(values) for name, values in one.items() if name != "_lookback_window"},
            _whole(one["_lookback_window"], "_lookback_window") * SECOND if "_lookback_window" in one else None,
        )
        for one in sets
    )


def _list(registration: Json, field: str, read: Callable[[Json], Read]) -> tuple[Read, ...]:
    return tuple(read(entry) for entry in registration.get(field, ()))


def _number(entry: Json, field: str, default: int) -> int:
    return _whole(entry.get(field, default), field)


def _whole(value: str | int, field: str) -> int:
    """A whole number, as a JSON number or as text."""
    try:
        if isinstance(value, float):
            raise TypeError
        return int(value)
    except (TypeError, ValueError) as error:
        raise RegistrationError(f"`{field}` must be a whole number") from error


def _key(text: str) -> int:
    try:
        return int(text, 16)
    except (TypeError, ValueError) as error:
        raise RegistrationError("a piece of a key must be a hexadecimal text such as 0x159") from error


@contextmanager
def _checked() -> Iterator[None]:
    """Turn the exceptions of a malformed registration into RegistrationError."""
    try:
        yield
    except RegistrationError:
        raise
    except (KeyError, TypeError, AttributeError) as error:
        raise RegistrationError("a field is missing or has the wrong JSON type") from error
    except ValueError as error:
        raise RegistrationError(str(error)) from error
