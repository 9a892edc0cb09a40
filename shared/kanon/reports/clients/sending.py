"""Sending encrypted reports to a collector, as browsers do: one POST a report. The only module here with a network."""

import base64
import json
from collections.abc import Callable, Iterable
from http import HTTPStatus
from http.client import HTTPException
from typing import NamedTuple
from urllib.request import Request, urlopen

from kanon.reports import avro
from kanon.reports.clients.report import Api, Report

PATHS: dict[Api, str] = {
    "attribution-reporting": "/.well-known/attribution-reporting/report-aggregate-attribution",
    "kanon": "/v1/reports",
}
TIMEOUT = 10
"""Seconds."""


class Outgoing(NamedTuple):
    """An encrypted report, ready to be sent any number of times: always the same bytes.

    Attributes:
        scheduled: when it is sent first, in milliseconds.
        path: of the collector.
        body: JSON.
    """

    scheduled: int
    path: str
    body: bytes


Post = Callable[[str, bytes], bool]
"""Sends a body to a path; whether the collector has taken it."""


def outgoing(report: Report, encrypted: avro.Report) -> Outgoing:
    """The request of a report. Keep it, and send it again until the collector has taken it."""
    return Outgoing(report.scheduled, PATHS[report.api], body_of(encrypted, report.context_id))


def body_of(encrypted: avro.Report, context_id: str | None = None) -> bytes:
    """The JSON of an encrypted report, as collectors take it."""
    payload = {"payload": base64.b64encode(encrypted.payload).decode(), "key_id": encrypted.key_id}
    body: dict[str, object] = {
        "shared_info": encrypted.shared_info,
        "aggregation_service_payloads": [payload],
    }
    if context_id is not None:
        body["trigger_context_id"] = context_id
    return json.dumps(body, separators=(",", ":")).encode()


def send(pending: Iterable[Outgoing], now: int, post: Post) -> list[Outgoing]:
    """Send what is due, in any order of arrival.

    Returns:
        What must be kept: reports that are not due, and those that were not taken, unchanged.
    """
    return [one for one in pending if one.scheduled > now or not post(one.path, one.body)]


def collector(origin: str) -> Post:
    """Posts to a collector such as ``https://report.example``; False on any answer but 200, and without an answer.

    Raises:
        ValueError: the origin is no http or https origin.
    """
    if not origin.startswith(("https://", "http://")):
        raise ValueError("a collector is written as https://report.example")

    def post(path: str, body: bytes) -> bool:
        request = Request(origin + path, body, {"Content-Type": "application/json"})  # noqa: S310 -- checked above
        try:
            with urlopen(request, timeout=TIMEOUT) as answer:  # noqa: S310
                return bool(answer.status == HTTPStatus.OK)
        except (OSError, HTTPException):  # URLError is an OSError
            return False

    return post
