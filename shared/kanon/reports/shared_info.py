"""The clear fields of a report: JSON text that encryption authenticates. They decide the units of account.

A report is checked in a fixed order, and the first check that fails names the error counter: clear fields, key,
decryption, form, operation, sum of the values. All checks but the last four have the same result for a report and for
a null report in its place.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from kanon.noise.words import length_prefixed
from kanon.reports.errors import Counter, JobError, ReportRefusedError
from kanon.strict_json import no_constant, without_duplicates

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
    from publicsuffixlist import PublicSuffixList


ATTRIBUTION_APIS = ("attribution-reporting", "attribution-reporting-debug")
APIS = (*ATTRIBUTION_APIS, "protected-audience", "shared-storage", "kanon")
_VERSION = re.compile(r"([0-9]{1,9})\.([0-9]{1,9})")
_H = "[0-9a-fA-F]"
_UUID = re.compile(f"{_H * 8}-{_H * 4}-{_H * 4}-{_H * 4}-{_H * 12}")
END_OF_TIME = 253_402_300_800
"""The year 10000: ``datetime`` has no later years."""
_LABEL = r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?"
_ORIGIN = re.compile(rf"https://((?:{_LABEL}\.)*[a-z]([a-z0-9-]{{0,61}}[a-z0-9])?)(?::[0-9]{{1,5}})?")
"""An https origin; the last label starts with a letter, which excludes IPv4 addresses."""


class SharedInfo(NamedTuple):
    """The clear fields of a report. Times are unix seconds."""

    api: str
    version: str
    report_id: str
    reporting_origin: str
    scheduled_report_time: int
    attribution_destination: str | None = None
    source_registration_time: int | None = None
    debug_mode: bool = False

    def text(self) -> str:
        """The JSON text as browsers write it: keys in order, no spaces, times as texts, absent fields left out."""
        fields = self._asdict() | {"debug_mode": "enabled" if self.debug_mode else None}
        present = {name: str(value) for name, value in fields.items() if value is not None}
        return json.dumps(present, separators=(",", ":"), ensure_ascii=False, sort_keys=True)


def parse(text: str) -> SharedInfo:
    """Read shared_info. The checks are, in order: JSON, version, required fields, api, report id.

    Raises:
        ReportRefusedError: with the counter of the first check that fails.
        JobError: the major version is above 1 (UNSUPPORTED_REPORT_VERSION).
    """
    fields = _object(text)
    version = _version(fields)
    api = _text(fields, "api")
    origin = _text(fields, "reporting_origin")
    scheduled = _seconds(fields, "scheduled_report_time")
    destination = registered = None
    if api in ATTRIBUTION_APIS:
        destination = _text(fields, "attribution_destination")
        if "source_registration_time" in fields:
            registered = _seconds(fields, "source_registration_time")
    elif api not in APIS:
        raise ReportRefusedError(Counter.UNSUPPORTED_REPORT_API_TYPE)
    report_id = _report_id(fields)
    debug = fields.get("debug_mode") == "enabled"
    return SharedInfo(api, version, report_id, origin, scheduled, destination, registered, debug)


def _object(text: str) -> Mapping[str, object]:
    try:
        fields, end = _DECODER.raw_decode(text) if text.startswith("{") else (None, -1)
        if end != len(text):  # white space around it, or more than one value: ``decode`` decides
            fields = _DECODER.decode(text)
    except (ValueError, RecursionError, ArithmeticError):  # also numbers of thousands of digits, exponents of 19
        fields = None
    if not isinstance(fields, dict):
        raise ReportRefusedError(Counter.REQUIRED_SHAREDINFO_FIELD_INVALID)
    return fields


# Decimal reads a time such as 1640995200.000000000 without floating point.
_DECODER = json.JSONDecoder(
    object_pairs_hook=without_duplicates, parse_float=Decimal, parse_constant=no_constant, strict=True
)


def _version(fields: Mapping[str, object]) -> str:
    version = fields.get("version")
    major = _major(version) if isinstance(version, str) else None
    if major is None:
        raise ReportRefusedError(Counter.UNSUPPORTED_SHAREDINFO_VERSION)
    if major > 1:
        raise JobError("UNSUPPORTED_REPORT_VERSION", "a report has a version above 1: leave its file out, or upgrade")
    return str(version)


@lru_cache(maxsize=64)
def _major(version: str) -> int | None:
    """The major version; ``None`` for 0.0 and for text that is no version."""
    match = _VERSION.fullmatch(version)
    return int(match[1]) if match and any(int(number) for number in match.groups()) else None


def _text(fields: Mapping[str, object], name: str) -> str:
    value = fields.get(name)
    if not isinstance(value, str) or not value or not value.isprintable():
        raise ReportRefusedError(Counter.REQUIRED_SHAREDINFO_FIELD_INVALID)
    return value


def _seconds(fields: Mapping[str, object], name: str) -> int:
    """Unix seconds, written as text, as an integer or as a decimal; parts of a second are dropped."""
    value = fields.get(name)
    seconds = -1
    if isinstance(value, str):
        if value.isdecimal() and value.isascii() and len(value) <= 12:
            seconds = int(value)
    elif isinstance(value, int) and not isinstance(value, bool):
        seconds = value
    elif isinstance(value, Decimal) and value >= 0 and value.adjusted() < 12:
        seconds = int(value)
    if not 0 <= seconds < END_OF_TIME:
        raise ReportRefusedError(Counter.REQUIRED_SHAREDINFO_FIELD_INVALID)
    return seconds


def _report_id(fields: Mapping[str, object]) -> str:
    """A UUID in lower case: ids that differ only in case are equal."""
    value = fields.get("report_id")
    if not isinstance(value, str) or not _UUID.fullmatch(value):
        raise ReportRefusedError(Counter.INVALID_REPORT_ID)
    return value.lower()


def host_of(origin: str) -> str | None:
    """The host of an https origin, or None."""
    match = _ORIGIN.fullmatch(origin)
    return match[1] if match else None


HOUR, DAY = 3600, 86_400
MAX_AGE, MAX_AHEAD = 90 * DAY, DAY
"""The largest age of a report when a job is received, and how far ahead its time may be. Budgets are kept as long."""


class ReportSource(NamedTuple):
    """The clear fields that a unit is made of."""

    api: str
    version: str
    reporting_origin: str
    attribution_destination: str | None
    source_registration_time: int | None
    hour: int


Clear = tuple[bytes, ReportSource]
"""What a job keeps of the clear fields of a report: its id, 16 bytes, and its source."""
CONTRIBUTION_BOUND = 65_536
"""The largest sum of the values in one unit's reports: the paper's Lambda_1."""


class Unit(NamedTuple):
    """One budget: a budget key, an origin, and an hour of the scheduled report time (hours since 1970)."""

    key: str
    origin: str
    hour: int

    @property
    def row(self) -> bytes:
        """SHA-256 of key, origin and day: the row with the 24 hours of that day."""
        day = self.hour // 24
        return hashlib.sha256(
            length_prefixed(b"kanon/reports/row/1", self.key.encode(), self.origin.encode(), day.to_bytes(8, "big"))
        ).digest()


def moment(seconds: float) -> str:
    """A time as RFC 3339, UTC, such as ``2026-01-31T23:59:59Z``."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def source_of(info: SharedInfo) -> ReportSource:
    """The fields of a report that decide its units."""
    return ReportSource(
        info.api,
        info.version,
        info.reporting_origin,
        info.attribution_destination,
        info.source_registration_time,
        info.scheduled_report_time // HOUR,
    )


@lru_cache(maxsize=4096)
def budget_key(
    api: str, version: str, origin: str, destination: str | None, registered: int | None, filtering_id: int
) -> str:
    """SHA-256 of the joined fields, in hexadecimal, as the aggregation service computes it.

    The filtering id is left out for version 0.x with id 0: old units keep their names.
    """
    parts = [api, version, origin]
    if api in ATTRIBUTION_APIS:
        parts.append(destination or "")
        if registered is not None:
            parts.append(moment(registered))
    if filtering_id or not version.startswith("0."):
        parts.append(str(filtering_id))
    return hashlib.sha256("-".join(parts).encode()).hexdigest()


def units(sources: Iterable[ReportSource], filtering_ids: Iterable[int]) -> list[Unit]:
    """The units that a job charges, in order: one for each source and each *requested* filtering id.

    The contents of reports have no influence: a null report in place of a report gives the same units.
    """
    requested = tuple(filtering_ids)
    charged = {
        Unit(budget_key(*source[:5], filtering_id), source.reporting_origin, source.hour)
        for source in sources
        for filtering_id in requested
    }
    return sorted(charged)


@dataclass(frozen=True)
class Rules:
    """The acceptance rules of a job.

    Args:
        received_at: when the job was received, unix seconds. Ages are measured from it, so that a retry accepts
            the same reports.
        keys: private keys by id.
        attribution_report_to: the only reporting origin, ``None`` for any.
        reporting_site: the only site of reporting origins, such as ``https://example.com``, ``None`` for any.
        check_age: refuse reports older than 90 days or more than a day ahead.
        contribution_bound: the largest sum of one report's values; ``None`` for no bound (local tool only).
        destinations: the only attribution destinations, ``None`` for any.
        hours: the only hours of ``scheduled_report_time``, since 1970; ``None`` for any.
        without: sources whose reports are left out.
    """

    received_at: int
    keys: "Mapping[str, X25519PrivateKey]"
    attribution_report_to: str | None = None
    reporting_site: str | None = None
    check_age: bool = True
    contribution_bound: int | None = CONTRIBUTION_BOUND
    destinations: frozenset[str] | None = None
    hours: range | None = None
    without: frozenset[ReportSource] = frozenset()

    def key(self, key_id: str) -> "X25519PrivateKey":
        """A private key.

        Raises:
            ReportRefusedError: it is unknown.
        """
        key = self.keys.get(key_id)
        if key is None:
            raise ReportRefusedError(Counter.DECRYPTION_KEY_NOT_FOUND)
        return key

    def take(self, source: ReportSource) -> bool:
        """Whether reports with these clear fields count. Anybody can send others, so those are no errors."""
        of_origin = self.attribution_report_to in (None, source.reporting_origin)
        asked = self.destinations is None or source.attribution_destination in self.destinations
        timely = self.hours is None or source.hour in self.hours
        of_site = self.reporting_site is None or site_of(source.reporting_origin) == self.reporting_site
        return of_origin and asked and timely and source not in self.without and of_site


def accept_clear(text: str, rules: Rules) -> Clear | None:
    """Check the clear fields of a report: form, version, api, report id, origin, age.

    Returns:
        Its id and source; None for a report of another origin, or that is not asked for, however old it is.

    Raises:
        ReportRefusedError: with the counter of the first check that fails.
        JobError: the version is newer than this service supports.
    """
    info = parse(text)
    source = source_of(info)
    if not rules.take(source):
        return None
    if site_of(info.reporting_origin) is None:
        raise ReportRefusedError(Counter.ATTRIBUTION_REPORT_TO_MALFORMED)
    if rules.check_age:
        age = rules.received_at - info.scheduled_report_time
        if age > MAX_AGE:
            raise ReportRefusedError(Counter.ORIGINAL_REPORT_TIME_TOO_OLD)
        if -age > MAX_AHEAD:
            raise ReportRefusedError(Counter.REPORT_TIME_IN_FUTURE)
    return bytes.fromhex(info.report_id.replace("-", "")), source


@lru_cache(maxsize=4096)
def site_of(origin: str) -> str | None:
    """The site of an https origin: ``https://`` and its registrable domain, or ``None``.

    An unknown last label counts as a public suffix, so that ``https://report.test`` is a site.
    """
    host = host_of(origin)
    domain = _suffixes().privatesuffix(host) if host else None
    return f"https://{domain}" if domain else None


@lru_cache(maxsize=1)
def _suffixes() -> "PublicSuffixList":
    from publicsuffixlist import PublicSuffixList  # large; the collector and the function jobs never need it

    return PublicSuffixList(accept_unknown=True)
