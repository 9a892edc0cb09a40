"""The checks of one report, in a fixed order. The first that fails names the error counter.

The order is: clear fields, key, decryption, form, operation, sum of the values. All checks but the last four have the
same result for a report and for a null report in its place.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from kanon.reports.account import EVERY, MAX_AGE, MAX_AHEAD, Wanted, source_of
from kanon.reports.errors import Counter, RefusedError
from kanon.reports.parameters import CONTRIBUTION_BOUND
from kanon.reports.shared_info import SharedInfo, host_of, parse

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
    from publicsuffixlist import PublicSuffixList


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


def accept_clear(text: str, rules: Rules, wanted: Wanted = EVERY) -> SharedInfo | None:
    """Check the clear fields of a report: form, version, api, report id, origin, age.

    Returns:
        The fields; None for a report of another origin, or that is not wanted. Anybody can send such a report, so it is
        no error, however old it is.

    Raises:
        RefusedError: with the counter of the first check that fails.
        JobError: the version is newer than this service supports.
    """
    info = parse(text)
    if not _is_of_origin(info.reporting_origin, rules) or not wanted.takes(source_of(info)):
        return None
    if site_of(info.reporting_origin) is None:
        raise RefusedError(Counter.ATTRIBUTION_REPORT_TO_MALFORMED)
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


def _is_of_origin(origin: str, rules: Rules) -> bool:
    if rules.attribution_report_to is not None and origin != rules.attribution_report_to:
        return False
    return rules.reporting_site is None or site_of(origin) == rules.reporting_site


@lru_cache(maxsize=1)
def _suffixes() -> "PublicSuffixList":
    from publicsuffixlist import PublicSuffixList  # large; the collector and the function jobs never need it

    return PublicSuffixList(accept_unknown=True)
