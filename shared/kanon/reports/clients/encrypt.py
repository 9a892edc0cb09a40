"""Encrypts reports on the device, once: a repeated report has the same bytes.

Every payload is padded to the same number of slots, so its length reveals nothing. It is encrypted to a random public
key, so the key reveals nothing about the device.
"""

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from uuid import UUID, uuid4

from kanon.reports import avro
from kanon.reports.clients.report import LAYOUT, SECOND, Report
from kanon.reports.hpke import seal
from kanon.reports.keys import PublicKey, public_keys
from kanon.reports.payload import Layout, encode
from kanon.reports.shared_info import SharedInfo

MAX_KEY_AGE = 86_400 * SECOND
"""The longest time for which fetched public keys are used, in milliseconds. It limits the server's ``max-age``."""

Choose = Callable[[Sequence[PublicKey]], PublicKey]


def encrypt(
    report: Report,
    keys: Sequence[PublicKey],
    layout: Layout = LAYOUT,
    choose: Choose = secrets.choice,
    new_id: Callable[[], UUID] = uuid4,
) -> avro.Report:
    """Encrypt a report. Do this once for each report and keep the result until it has been accepted.

    Args:
        report: the report; a null report gives the same length.
        keys: public keys that may be used now.
        layout: slots and filtering ids of the payload, the same for all reports of a client.
        choose: picks the key; the system's randomness by default.
        new_id: makes the id of the report, by which the service recognises copies.

    Raises:
        PayloadError: more contributions than slots, or a number does not fit the layout.
    """
    day = report.source_registration
    shared_info = SharedInfo(
        report.api,
        "0.1" if layout.id_bytes is None else "1.0",
        str(new_id()),
        report.reporting_origin,
        report.scheduled // SECOND,
        report.destination,
        None if day is None else day // SECOND,
    ).text()
    key = choose(keys)
    return avro.Report(seal(encode(report.contributions, layout), key.key, shared_info), key.id, shared_info)


@dataclass(frozen=True)
class CachedKeys:
    """Public keys as fetched, usable up to ``until`` (milliseconds)."""

    keys: tuple[PublicKey, ...]
    until: int


Fetch = Callable[[], tuple[str, int]]
"""Returns the document of public keys and its ``max-age`` in seconds."""


def usable_keys(cached: CachedKeys | None, now: int, fetch: Fetch) -> CachedKeys:
    """The cached keys, or newly fetched ones if the cached ones have expired.

    An expired key is never used. Exceptions of ``fetch`` are passed on.

    Raises:
        KeyDocumentError: the document is invalid.
    """
    if cached is not None and now < cached.until:
        return cached
    document, max_age = fetch()
    return CachedKeys(tuple(public_keys(document)), now + min(max_age * SECOND, MAX_KEY_AGE))
