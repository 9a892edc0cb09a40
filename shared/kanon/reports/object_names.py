"""Names of stored reports: api, hour of storing, bucket of the origin, first and last scheduled hour, content.

``reports/kanon/2026/02/01/07/2a/2026013122-2026020106-<sha256>.avro``: the first five parts spread a day's reports, the
others let a plan skip objects that can hold no report of a job. Objects of earlier versions lack the bucket and the
scheduled hours; nothing is known of them, so no plan skips one.
"""

import re
from collections.abc import Iterable
from datetime import UTC, datetime
from hashlib import sha256

from kanon.reports.account import HOUR

BUCKETS = 64
_NAME = re.compile(r"reports/[a-z-]+/\d{4}/\d\d/\d\d/\d\d/([0-9a-f]{2})/(\d{10})-(\d{10})-[0-9a-f]{64}\.avro")


def bucket_of(origin: str) -> str:
    """One of 64 buckets, as two hexadecimal digits. So strangers' reports share no object with most origins."""
    return f"{sha256(origin.encode()).digest()[0] % BUCKETS:02x}"


def name_of(api: str, stored_at: float, bucket: str, scheduled: Iterable[int], body: bytes) -> str:
    """The name of an object.

    Args:
        api: of its reports.
        stored_at: unix seconds.
        bucket: of their origins.
        scheduled: their scheduled times, unix seconds.
        body: its content.
    """
    hours = sorted(scheduled)
    span = f"{_hour(hours[0])}-{_hour(hours[-1])}"
    folder = datetime.fromtimestamp(stored_at, UTC).strftime("%Y/%m/%d/%H")
    return f"reports/{api}/{folder}/{bucket}/{span}-{sha256(body).hexdigest()}.avro"


def may_hold(name: str, report_to: str | None, hours: range) -> bool:
    """Whether an object may hold a report of an origin (None for any) that is scheduled in one of these hours."""
    match = _NAME.fullmatch(name)
    if match is None:
        return True
    bucket, first, last = match.groups()
    timely = last >= _hour(hours[0] * HOUR) and first <= _hour(hours[-1] * HOUR)
    return timely and (report_to is None or bucket == bucket_of(report_to))


def _hour(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y%m%d%H")
