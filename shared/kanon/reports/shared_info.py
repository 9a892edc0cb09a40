"""The clear fields of a report: JSON text that encryption authenticates."""

import json
import re
from collections.abc import Mapping
from decimal import Decimal
from functools import lru_cache
from typing import NamedTuple

from kanon.reports.errors import Counter, JobError, RefusedError
from kanon.strict_json import no_constant, without_duplicates

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
        fields = {
            "api": self.api,
            "attribution_destination": self.attribution_destination,
            "debug_mode": "enabled" if self.debug_mode else None,
            "report_id": self.report_id,
            "reporting_origin": self.reporting_origin,
            "scheduled_report_time": str(self.scheduled_report_time),
            "source_registration_time": None
            if self.source_registration_time is None
            else str(self.source_registration_time),
            "version": self.version,
        }
        present = {name: value for name, value in fields.items() if value is not None}
        return json.dumps(present, separators=(",", ":"), ensure_ascii=False)


def parse(text: str) -> SharedInfo:
    """Read shared_info. The checks are, in order: JSON, version, required fields, api, report id.

    Raises:
        RefusedError: with the counter of the first check that fails.
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
        raise RefusedError(Counter.UNSUPPORTED_REPORT_API_TYPE)
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
        raise RefusedError(Counter.REQUIRED_SHAREDINFO_FIELD_INVALID)
    return fields


# Decimal reads a time such as 1640995200.000000000 without floating point.
_DECODER = json.JSONDecoder(
    object_pairs_hook=without_duplicates, parse_float=Decimal, parse_constant=no_constant, strict=True
)


def _version(fields: Mapping[str, object]) -> str:
    version = fields.get("version")
    major = _major(version) if isinstance(version, str) else None
    if major is None:
        raise RefusedError(Counter.UNSUPPORTED_SHAREDINFO_VERSION)
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
        raise RefusedError(Counter.REQUIRED_SHAREDINFO_FIELD_INVALID)
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
        raise RefusedError(Counter.REQUIRED_SHAREDINFO_FIELD_INVALID)
    return seconds


def _report_id(fields: Mapping[str, object]) -> str:
    """A UUID in lower case: ids that differ only in case are equal."""
    value = fields.get("report_id")
    if not isinstance(value, str) or not _UUID.fullmatch(value):
        raise RefusedError(Counter.INVALID_REPORT_ID)
    return value.lower()


def host_of(origin: str) -> str | None:
    """The host of an https origin, or None."""
    match = _ORIGIN.fullmatch(origin)
    return match[1] if match else None
