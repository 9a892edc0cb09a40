"""Contributions as encrypted reports. It needs the extra ``reports``."""

from __future__ import annotations

from kanon.client.connection import Reply
from kanon.client.waiting import ages

try:
    from kanon.reports.clients import devices, encrypt
    from kanon.reports.clients.encrypt import Outgoing, outgoing
except ImportError as missing:
    raise ImportError(f"{missing.name} is missing: pip install 'kanon-dp[reports]'", name=missing.name) from missing


def keys_of(reply: Reply, now: int) -> encrypt.CachedKeys:
    """The public keys of an answer at ``now``, in milliseconds.

    Raises:
        KeyDocumentError: the document is invalid. It is a ``ValueError``.
    """
    max_age, age = ages(reply.headers) or (0, 0)
    return encrypt.usable_keys(None, now, lambda: (reply.body.decode(), max(0, max_age - age)))


def contribution_of(
    parameters: devices.Windows, device: devices.Device[None] | None, now: int, bucket: int, amount: int
) -> tuple[devices.Device[None], encrypt.ClientReport]:
    """The state of the device afterwards, and the report: without a contribution if that exceeds the budget.

    Raises:
        ValueError: a number does not fit its field.
    """
    return devices.contribute(parameters, device or devices.Device(None), now, lambda memory: (memory, bucket, amount))


def sealed(report: encrypt.ClientReport, keys: encrypt.CachedKeys) -> Outgoing:
    """The encrypted report as a request, with an id of its own."""
    return outgoing(report, encrypt.encrypt(report, keys.keys))


def once(scheduled: int, path: str, body: bytes) -> Outgoing:
    """A request that is not sent again, because it may have arrived."""
    return Outgoing(scheduled, path, body, once=True)
