"""The requests of encrypted reports, one POST per report, and of their joins. ``kanon.client`` sends them."""

import base64
import json
from typing import NamedTuple

from kanon.reports import avro
from kanon.reports.clients.encrypt import Api, ClientReport

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
