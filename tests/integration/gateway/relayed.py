"""Requests through the gateway of a machine, as a client of a relay makes them."""

from kanon.client.connection import HttpAnswer
from kanon.gateway.binary_http import BinaryRequest, BinaryResponse, padded, read_response, write_request
from kanon.gateway.oblivious import REQUEST_TYPE, KeyConfig, read_config, seal_request
from tests.integration.serving.machine import PERIOD, Machine

OBLIVIOUS = {"Content-Type": REQUEST_TYPE}
JOIN = "/v1/types/fledge/sets/aGVsbG8:join"


def config(machine: Machine) -> KeyConfig:
    return read_config(machine.request("GET", "/v1/proxy/keys", key=False).body)


def inner(method: str, path: str, body: bytes = b"", **fields: str) -> bytes:
    """A request in binary HTTP; underscores in names of fields stand for hyphens."""
    named = tuple((name.replace("_", "-"), value) for name, value in fields.items())
    return padded(write_request(BinaryRequest(method, "https", "", path, named, body)))


def sent(machine: Machine, message: bytes, headers: dict[str, str] | None = None) -> BinaryResponse:
    """The inner answer to an inner request."""
    sealed, exchange = seal_request(message, config(machine))
    answer = outer(machine, sealed, headers)
    assert (answer.status, dict(answer.headers)["Content-Type"]) == (200, "message/ohttp-res")
    return read_response(exchange.open(answer.body))


def outer(machine: Machine, sealed: bytes, headers: dict[str, str] | None = None) -> HttpAnswer:
    return machine.request("POST", "/v1/gateway", sealed, {**OBLIVIOUS, **(headers or {})}, key=False)


def join(machine: Machine, client: str = "me", step: int | str | None = None, **fields: str) -> bytes:
    """The inner request of a join at the machine's step."""
    named = int(machine.now // PERIOD) if step is None else step
    body = b'{"client": "%b"}' % client.encode()
    signed = {"authorization": f"Bearer {machine.key}", "content_type": "application/json", "kanon_step": str(named)}
    return inner("POST", JOIN, body, **{**signed, **fields})
