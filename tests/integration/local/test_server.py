"""The local server stops on request at any time, and answers no page of another site."""

import http.client
import socket
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager

import pytest

from kanon.cors import Cors
from kanon.local import server as module
from kanon.local.gateway import GatewayRequest, GatewayResponse
from kanon.local.server import ApiServer


def _answer(_: GatewayRequest) -> GatewayResponse:
    return GatewayResponse(200)


@contextmanager
def _connected(server: ApiServer) -> Iterator[http.client.HTTPConnection]:
    """A connection to a server, which is closed after it."""
    address = server.url.removeprefix("http://")
    with closing(server), closing(http.client.HTTPConnection(address, timeout=10)) as connection:
        yield connection


def test_a_server_closes_even_if_its_loop_turns_early(monkeypatch: pytest.MonkeyPatch) -> None:
    server = ApiServer(_answer)
    trigger, loop = server._server.trigger, server._thread
    wake = trigger._physical_pull

    def woken_already() -> None:
        wake()
        loop.join(0.2)  # as long as it takes, if it closes the trigger now
        wake()

    monkeypatch.setattr(trigger, "_physical_pull", woken_already)
    assert loop.is_alive()
    server.close()
    assert not loop.is_alive()


OWN = "127.0.0.1:8000"
TEXT = {"Content-Type": "text/plain"}


@pytest.mark.parametrize(
    ("method", "headers", "status"),
    [
        ("GET", {"Host": OWN}, 200),
        ("POST", {"Host": "localhost", **TEXT}, 200),
        ("POST", {"Host": "LOCALHOST:9000", "Origin": "http://localhost:3000"}, 200),
        ("GET", {"Host": "attacker.test"}, 421),
        ("POST", {"Host": "attacker.test:8000", "Origin": "http://attacker.test:8000"}, 421),
        ("GET", {"Host": "127.0.0.1.attacker.test"}, 421),
        ("GET", {"Host": "localhost@attacker.test"}, 421),
        ("GET", {"Host": "attacker.test]"}, 421),
        ("POST", {"Host": OWN, "Origin": "https://attacker.test", **TEXT}, 403),
        ("POST", {"Host": OWN, "Origin": "http://127.0.0.1.attacker.test"}, 403),
        ("POST", {"Host": OWN, "Origin": "null", **TEXT}, 403),
    ],
)
def test_only_requests_to_its_own_names_and_not_of_other_sites_are_answered(
    method: str, headers: dict[str, str], status: int
) -> None:
    seen: list[GatewayRequest] = []

    def answer(request: GatewayRequest) -> GatewayResponse:
        seen.append(request)
        return GatewayResponse(200)

    with _connected(ApiServer(answer)) as connection:
        connection.request(method, "/v1alpha/createJob", headers=headers)
        assert connection.getresponse().status == status
    assert len(seen) == (status == 200)


@pytest.mark.parametrize(
    ("method", "origin", "more", "status", "allowed"),
    [
        ("POST", "https://page.test", {}, 200, "https://page.test"),
        ("OPTIONS", "https://page.test", {"Access-Control-Request-Method": "POST"}, 204, "https://page.test"),
        ("POST", "https://other.test", {}, 403, None),
        ("OPTIONS", "https://other.test", {"Access-Control-Request-Method": "POST"}, 403, None),
    ],
)
def test_a_page_that_was_named_may_call(
    method: str, origin: str, more: dict[str, str], status: int, allowed: str | None
) -> None:
    with _connected(ApiServer(_answer, cors=Cors.of(["https://page.test"]))) as connection:
        connection.request(method, "/v1:query", headers={"Origin": origin, **more})
        answer = connection.getresponse()
        assert (answer.status, answer.headers["access-control-allow-origin"]) == (status, allowed)
        assert answer.headers["access-control-expose-headers"] == (None if allowed is None else "retry-after")


def test_idle_connections_are_bounded_and_do_not_keep_others_out(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("MOST_CONNECTIONS", 5), ("IDLE_SECONDS", 1)):
        monkeypatch.setattr(module, name, value)
    server = ApiServer(_answer)
    place = ("127.0.0.1", int(server.url.rpartition(":")[2]))
    with ExitStack() as idle:
        for _ in range(6):
            idle.enter_context(socket.create_connection(place, timeout=10))
        connection = idle.enter_context(_connected(server))
        connection.request("GET", "/")
        assert len(server._server.active_channels) <= 5
        assert connection.getresponse().status == 200
