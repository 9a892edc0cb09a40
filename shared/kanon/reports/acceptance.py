"""Which reports count: the checks of one report, in a fixed order; the first that fails raises one counter.

Clear fields decide first, then the key, the decryption, the form, the operation and the sum of the values. Every
check but the last four is the same for a report and for a null report in its place.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from publicsuffixlist import PublicSuffixList

from kanon.reports.account import DAY
from kanon.reports.avro import Report
from kanon.reports.errors import Counter, RefusedError
from kanon.reports.hpke import DecryptionError, open_sealed
from kanon.reports.shared_info import SharedInfo, parse

MAX_AGE = 90 * DAY
MAX_AHEAD = DAY
CONTRIBUTION_BOUND = 65_536
"""The most that the values of one unit's reports sum to: the paper's Lambda_1."""

_LABEL = r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?"
_ORIGIN = re.compile(rf"https://((?:{_LABEL}\.)*[a-z]([a-z0-9-]{{0,61}}[a-z0-9])?)(?::[0-9]{{1,5}})?")
"""An https origin; the last label starts with a letter, so no IPv4 address is one."""


@dataclass(frozen=True)
class Rules:
    """What a job asks of its reports.

    Args:
        received_at: when the job was received, unix seconds. Ages are measured from it, so that a retry accepts
            the same reports.
        keys: private keys by id; ``None`` if payloads are cleartext (local tool only).
        attribution_report_to: the only reporting origin, ``None`` for any.
        reporting_site: the only site of reporting origins, such as ``https://example.com``, ``None`` for any.
        check_age: refuse reports older than 90 days or more than a day ahead.
        contribution_bound: the most that the values of one report sum to; ``None`` for no bound (local tool only).
    """

    received_at: int
    keys: Mapping[str, X25519PrivateKey] | None
    attribution_report_to: str | None = None
    reporting_site: str | None = None
    check_age: bool = True
    contribution_bound: int | None = CONTRIBUTION_BOUND


def accept_clear(text: str, rules: Rules) -> SharedInfo:
    """Check the clear fields of a report: form, version, api, report id, origin, age.

    Raises:
        RefusedError: with the counter of the first check that fails.
        JobError: the version needs a newer service.
    """
    info = parse(text)
    _check_origin(info.reporting_origin, rules)
    if rules.check_age:
        age = rules.received_at - info.scheduled_report_time
        if age > MAX_AGE:
            raise RefusedError(Counter.ORIGINAL_REPORT_TIME_TOO_OLD)
        if -age > MAX_AHEAD:
            raise RefusedError(Counter.REPORT_TIME_IN_FUTURE)
    return info


def opened(report: Report, rules: Rules) -> bytes:
    """The cleartext of a report whose clear fields were accepted.

    Raises:
        RefusedError: the key is unknown, or the payload does not open.
    """
    if rules.keys is None:
        return report.payload
    key = rules.keys.get(report.key_id)
    if key is None:
        raise RefusedError(Counter.DECRYPTION_KEY_NOT_FOUND)
    try:
        return open_sealed(report.payload, key, report.shared_info)
    except DecryptionError:
        raise RefusedError(Counter.DECRYPTION_ERROR) from None


@lru_cache(maxsize=4096)
def site_of(origin: str) -> str | None:
    """The site of an https origin: ``https://`` and its registrable domain; ``None`` if it has none.

    An unknown last label counts as a public suffix, so that ``https://report.test`` is a site.
    """
    match = _ORIGIN.fullmatch(origin)
    domain = _suffixes().privatesuffix(match[1]) if match else None
    return f"https://{domain}" if domain else None


def _check_origin(origin: str, rules: Rules) -> None:
    site = site_of(origin)
    if site is None:
        raise RefusedError(Counter.ATTRIBUTION_REPORT_TO_MALFORMED)
    if rules.attribution_report_to is not None and origin != rules.attribution_report_to:
        raise RefusedError(Counter.ATTRIBUTION_REPORT_TO_MISMATCH)
    if rules.reporting_site is not None and site != rules.reporting_site:
        raise RefusedError(Counter.REPORTING_SITE_MISMATCH)


@lru_cache(maxsize=1)
def _suffixes() -> PublicSuffixList:
    return PublicSuffixList(accept_unknown=True)
