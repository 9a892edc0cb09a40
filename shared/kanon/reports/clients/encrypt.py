"""Encrypts reports on the device, once, and makes the requests that send them: a repeated one has the same bytes.

Every payload is padded to the same number of slots, so its length reveals nothing. It is encrypted to a random public
key, so the key reveals nothing about the device. ``kanon.client`` sends the requests, one POST per report.
"""

import base64
import json
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple
from uuid import UUID, uuid4

from kanon.reports import avro
from kanon.reports.payload import Contribution, EncryptionKey, PayloadLayout, encode, public_keys, seal
from kanon.reports.shared_info import SharedInfo

SECOND = 1000
HOUR = 3600 * SECOND
DAY = 24 * HOUR

MAX_BUCKET = 2**128 - 1
MAX_FILTERING_ID = 2**64 - 1

LAYOUT = PayloadLayout(slots=20)
"""The default layout: filtering ids of one byte. A client must use one layout for all its reports."""

Api = Literal["attribution-reporting", "kanon"]


def contribution(bucket: int, value: int, filtering_id: int = 0) -> Contribution:
    """A contribution whose numbers fit their fields.

    Raises:
        ValueError: a number does not fit. A negative value would give budget back.
    """
    if not 0 <= bucket <= MAX_BUCKET:
        raise ValueError("a key must have at most 128 bits")
    if not 0 <= value < 2**32:
        raise ValueError("a value must be from 0 to 4294967295")
    if not 0 <= filtering_id <= MAX_FILTERING_ID:
        raise ValueError("a filtering id must have at most 64 bits")
    return Contribution(bucket, value, filtering_id)


@dataclass(frozen=True)
class ClientReport:
    """A report before encryption. Only the contributions are secret; the other fields are sent in clear.

    Attributes:
        contributions: the pairs; empty in a null report.
        scheduled: its send time, in milliseconds.
        reporting_origin: the origin that collects it, ``https://host``.
        api: the api of the client.
        destination: the site of the trigger; attribution only.
    """

    contributions: tuple[Contribution, ...]
    scheduled: int
    reporting_origin: str
    api: Api
    destination: str | None = None

    @property
    def is_null(self) -> bool:
        """Whether the report has no contribution."""
        return not self.contributions


MAX_KEY_AGE = 86_400 * SECOND
"""The longest time for which fetched public keys are used, in milliseconds. It limits the server's ``max-age``."""

Choose = Callable[[Sequence[EncryptionKey]], EncryptionKey]


def encrypt(
    report: ClientReport,
    keys: Sequence[EncryptionKey],
    layout: PayloadLayout = LAYOUT,
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
    shared_info = SharedInfo(
        report.api,
        "0.1" if layout.id_bytes is None else "1.0",
        str(new_id()),
        report.reporting_origin,
        report.scheduled // SECOND,
        report.destination,
    ).text()
    key = choose(keys)
    return avro.Report(seal(encode(report.contributions, layout), key.key, shared_info), key.id, shared_info)


@dataclass(frozen=True)
class CachedKeys:
    """Public keys as fetched, usable up to ``until`` (milliseconds)."""

    keys: tuple[EncryptionKey, ...]
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


PATHS: dict[Api, str] = {
    "attribution-reporting": "/.well-known/attribution-reporting/report-aggregate-attribution",
    "kanon": "/v1/reports",
}


class Outgoing(NamedTuple):
    """An encrypted report as a request. Every attempt sends the same bytes.

    Attributes:
        scheduled: the time of the first attempt, in milliseconds.
        path: of the collector.
        body: JSON.
        once: whether it is not sent again unless the service has refused it as too much. A join that is sent in two
            steps counts as two.
    """

    scheduled: int
    path: str
    body: bytes
    once: bool = False


def outgoing(report: ClientReport, encrypted: avro.Report) -> Outgoing:
    """The request of a report. Keep it, and send it until the collector accepts it."""
    return Outgoing(report.scheduled, PATHS[report.api], body_of(encrypted))


def body_of(encrypted: avro.Report) -> bytes:
    """The JSON of an encrypted report, as collectors accept it."""
    payload = {"payload": base64.b64encode(encrypted.payload).decode(), "key_id": encrypted.key_id}
    body = {"shared_info": encrypted.shared_info, "aggregation_service_payloads": [payload]}
    return json.dumps(body, separators=(",", ":")).encode()
