"""``kanon operate new-report-keys``: ends every key of reports and begins a new epoch on the budget table as it is.

It is the way out when the table was replaced: what was encrypted to the old keys can no longer be opened, so nothing is
charged to a table that may have forgotten what was spent before.
"""

from kanon.errors import KanonError
from kanon.operate.running_reports import RunningReports
from kanon.reports.service.epoch import Epoch
from kanon.reports.storage.key_ring import Keys


class ReportKeysKeptError(KanonError):
    """Nothing was changed; the message says why."""


def keys_to_end(reports: RunningReports) -> Keys:
    """The key ring whose keys would end.

    Raises:
        ReportKeysKeptError: there is none.
    """
    keys = reports.key_ring.read()
    if keys is None:
        raise ReportKeysKeptError("nothing was changed: rotate has not issued a key yet, it does within five minutes")
    return keys


def is_replaced(reports: RunningReports, keys: Keys) -> bool:
    """Whether the budget table is another one than that of the keys."""
    return not _epoch(reports).is_of(keys)


def end_keys(reports: RunningReports, seen: Keys) -> None:
    """End the keys and begin a new epoch; ``rotate`` then destroys the private keys and issues a new one.

    Raises:
        ReportKeysKeptError: the ring or the table has changed since it was read.
    """
    if not _epoch(reports).renew(seen):
        raise ReportKeysKeptError("nothing was changed: the keys or the table changed meanwhile; run the command again")


def _epoch(reports: RunningReports) -> Epoch:
    return Epoch(reports.client("dynamodb"), reports.key_ring, reports.budgets)
