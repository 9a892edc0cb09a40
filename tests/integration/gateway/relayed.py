"""Requests through the gateway of a machine, as a client of a relay makes them; and a relay."""

import base64
from typing import Any

import pytest

from kanon.client import Connection
from kanon.client.connection import HttpAnswer
from kanon.gateway.binary_http import BinaryRequest, BinaryResponse, padded, read_response, write_request
from kanon.gateway.oblivious import REQUEST_TYPE, KeyConfig, read_config, seal_request
from kanon.serving.http import Server
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


def answer(status: int, body: bytes = b"{}", media_type: str = "application/json") -> dict[str, Any]:
    content = base64.b64encode(body).decode()
    return {"statusCode": status, "headers": {"Content-Type": media_type}, "body": content, "isBase64Encoded": True}


class Relay:
    """A relay that forwards bodies and keeps what it saw. ``answers`` come instead of those of the service.

    ``secret``: the header that it sends.
    """

    def __init__(self, service: str, secret: dict[str, str] | None = None) -> None:
        self.seen: list[tuple[str, str, bytes]] = []
        self.answers: list[dict[str, Any] | None] = []
        self._to, self._secret = Connection(service), secret or {}
        self.server = Server(self.forward, "127.0.0.1", 0, lambda found: pytest.fail(str(found)))
        self.url = self.server.url

    def forward(self, event: dict[str, Any]) -> dict[str, Any]:
        method, path, text = event["requestContext"]["http"]["method"], event["rawPath"], event.get("body", "")
        body = base64.b64decode(text) if event["isBase64Encoded"] else text.encode()
        self.seen.append((method, path, body))
        instead = self.answers.pop(0) if self.answers else None
        if instead is not None:
            return instead
        found = self._to(method, path, body, {"Content-Type": event["headers"].get("content-type", ""), **self._secret})
        kept = {name: value for name, value in found.headers if name in ("Content-Type", "Cache-Control")}
        return {**answer(found.status, found.body), "headers": kept}

    @property
    def paths(self) -> list[str]:
        return [path for _, path, _ in self.seen]

    def close(self) -> None:
        self.server.close()
        self._to.close()
