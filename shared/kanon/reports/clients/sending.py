"""Sends encrypted reports to a collector, one POST per report. Only this module uses the network."""

import base64
import json
from collections.abc import Callable, Iterable
from http import HTTPStatus
from http.client import HTTPException
from typing import NamedTuple
from urllib.request import Request, urlopen

from kanon.reports import avro
from kanon.reports.clients.encrypt import Api, ClientReport

PATHS: dict[Api, str] = {
    "attribution-reporting": "/.well-known/attribution-reporting/report-aggregate-attribution",
    "kanon": "/v1/reports",
}
TIMEOUT = 10
"""Seconds."""


class Outgoing(NamedTuple):
    """An encrypted report as a request. Every attempt sends the same bytes.

    Attributes:
        scheduled: the time of the first attempt, in milliseconds.
        path: of the collector.
        body: JSON.
    """

    scheduled: int
    path: str
    body: bytes


Post = Callable[[str, bytes], bool]
"""Sends a body to a path and returns whether the collector accepted it."""


def outgoing(report: ClientReport, encrypted: avro.Report) -> Outgoing:
    """The request of a report. Keep it, and send it until the collector accepts it."""
    return Outgoing(report.scheduled, PATHS[report.api], body_of(encrypted))


def body_of(encrypted: avro.Report) -> bytes:
    """The JSON of an encrypted report, as collectors accept it."""
    payload = {"payload": base64.b64encode(encrypted.payload).decode(), "key_id": encrypted.key_id}
    body = {"shared_info": encrypted.shared_info, "aggregation_service_payloads": [payload]}
    return json.dumps(body, separators=(",", ":")).encode()


def send(pending: Iterable[Outgoing], now: int, post: Post) -> list[Outgoing]:
    """Send the due reports.

    Returns:
        The reports to keep, unchanged: those not due, and those not accepted.
    """
    return [one for one in pending if one.scheduled > now or not post(one.path, one.body)]


def collector(origin: str) -> Post:
    """A ``Post`` to a collector such as ``https://report.example``. It returns False unless the answer is 200.

    Raises:
        ValueError: not an http or https origin.
    """
    if not origin.startswith(("https://", "http://")):
        raise ValueError("write a collector as https://report.example")

    def post(path: str, body: bytes) -> bool:
        request = Request(origin + path, body, {"Content-Type": "application/json"})  # noqa: S310 -- checked above
        try:  # urllib: it uses the device's proxy, and this module needs nothing else of kanon.client
            with urlopen(request, timeout=TIMEOUT) as answer:  # noqa: S310
                return bool(answer.status == HTTPStatus.OK)
        except (OSError, HTTPException):  # URLError is an OSError
            return False

    return post
