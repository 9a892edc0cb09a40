"""The checks of one report, in a fixed order. The first that fails names the error counter.

The order is: clear fields, key, decryption, form, operation, sum of the values. All checks but the last four have the
same result for a report and for a null report in its place.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from publicsuffixlist import PublicSuffixList

from kanon.reports.account import MAX_AGE, MAX_AHEAD
from kanon.reports.errors import Counter, RefusedError
from kanon.reports.parameters import CONTRIBUTION_BOUND
from kanon.reports.shared_info import SharedInfo, host_of, parse

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey


@dataclass(frozen=True)
class Rules:
    """The acceptance rules of a job.

    Args:
        received_at: when the job was received, unix seconds. Ages are measured from it, so that a retry accepts
            the same reports.
        keys: private keys by id; ``None`` if payloads are cleartext (local tool only).
        attribution_report_to: the only reporting origin, ``None`` for any.
        reporting_site: the only site of reporting origins, such as ``https://example.com``, ``None`` for any.
        check_age: refuse reports older than 90 days or more than a day ahead.
        contribution_bound: the largest sum of one report's values; ``None`` for no bound (local tool only).
    """

    received_at: int
    keys: "Mapping[str, X25519PrivateKey] | None"
    attribution_report_to: str | None = None
    reporting_site: str | None = None
    check_age: bool = True
    contribution_bound: int | None = CONTRIBUTION_BOUND


def accept_clear(text: str, rules: Rules) -> SharedInfo:
    """Check the clear fields of a report: form, version, api, report id, origin, age.

    Raises:
        RefusedError: with the counter of the first check that fails.
        JobError: the version is newer than this service supports.
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


@lru_cache(maxsize=4096)
def site_of(origin: str) -> str | None:
    """The site of an https origin: ``https://`` and its registrable domain, or ``None``.

    An unknown last label counts as a public suffix, so that ``https://report.test`` is a site.
    """
    host = host_of(origin)
    domain = _suffixes().privatesuffix(host) if host else None
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
