"""What joins without a name cost, beside joins with a client id: dollars a million of each, and of enrolments."""

from collections.abc import Iterator, Mapping

from kanon.cost.billing import Prices, Usage, bill
from kanon.cost.deployed import REQUEST_MB
from kanon.cost.month import alternatives, billed_ms
from kanon.cost.scale import with_slots
from kanon.cost.workload import GB, Workload
from kanon.gate.mechanism.parameters import Parameters

RATE = 100.0
"""Joins a second, so that what does not depend on them is little a join."""
WAYS = {
    "a million joins with a client id": "one join a request",
    "with credentials": "single joins with credentials",
    "through a relay": "single joins through a relay",
    "through a relay, with credentials": "single joins through a relay, with credentials",
}
CREDENTIAL_BYTES = 606
"""A response of the issuer, in base64url."""


def enrolments(count: int, m: Mapping[str, float]) -> Usage:
    """The quantities of so many credentials, by the names in ``prices.json``: one a person and week.

    A client asks for the key, for what its other devices have stored, and for the credential.
    """
    idle = billed_ms(m["join_ms"], 0, m)
    asked, issued = billed_ms(m["join_ms"], 1, m), billed_ms(m["join_ms"] + m["issue_ms"], 2, m)
    secrets, logged = 3 * count * m["cold_starts"], 3 * count * m["access_log_bytes"] / GB
    return {
        "apigateway.http": 3 * count,
        "lambda.requests": 3 * count,
        "lambda.arm64": REQUEST_MB / 1024 * count * (idle + asked + issued) / 1000,
        "dynamodb.write": count,
        "dynamodb.read": 2 * count,
        "logs.ingested": logged,
        "logs.stored": logged,
        "kms.requests": secrets,
        "secrets.requests": 2 * secrets,
        "transfer.out": count * (3 * m["header_bytes"] + CREDENTIAL_BYTES) / GB,
    }


def table(parameters: Parameters, measured: Mapping[str, float], prices: Prices) -> Iterator[tuple[str, float]]:
    """What, and dollars a million of it."""
    load = with_slots(Workload(parameters, RATE, 1), measured)
    others = alternatives(load, measured, {})
    for what, name in WAYS.items():
        yield what, bill(others[name], prices).total / load.millions_a_month
    yield "a million enrolments", bill(enrolments(10**6, measured), prices).total
