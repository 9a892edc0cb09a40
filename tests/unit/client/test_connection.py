"""The kept connection, over real sockets."""

import contextlib
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from kanon.client import Client, Connection, Headers, NoAnswerError


class Server(HTTPServer):
    """Counts connections and keeps requests; drops a connection after ``answers`` answers without saying so."""

    def __init__(self, answers: int) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answers, self.connections = answers, 0
        self.requests: list[tuple[str, str, bytes, dict[str, str]]] = []
        self.url = f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def setup(self) -> None:
        super().setup()
        self.server.connections += 1
        self.left = self.server.answers

    def do_GET(self) -> None:
        self.left -= 1
        if self.left < 0:
            self.close_connection = True
            return
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.server.requests.append((self.command, self.path, body, headers))
        self.send_response(200)
        self.send_header("Content-Length", "13")
        self.end_headers()
        self.wfile.write(b'{"types": []}')
        if not self.left:
            self.close_connection = True

    do_POST = do_GET  # noqa: N815

    def log_message(self, *_: Any) -> None:
        pass


@contextlib.contextmanager
def serving(answers: int = 1000) -> Iterator[Server]:
    with Server(answers) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def test_one_connection_serves_many_calls() -> None:
    with serving() as server:
        with Client(server.url) as client:
            assert [client.types() for _ in range(5)] == [[]] * 5
        assert server.connections == 1


def test_a_connection_closed_between_calls_is_opened_again() -> None:
    with serving(answers=1) as server:
        with Client(server.url) as client:
            assert [client.types() for _ in range(3)] == [[]] * 3
        assert (server.connections, len(server.requests)) == (3, 3)


def test_a_server_that_never_answers_is_called_once() -> None:
    with serving(answers=0) as server:
        with Client(server.url) as client, pytest.raises(NoAnswerError):
            client.types()
        assert server.connections == 1


def test_a_prefix_of_the_address_is_kept() -> None:
    with serving() as server:
        with Client(f"{server.url}/stage/") as client:
            client.types()
        assert server.requests[0][1] == "/stage/v1/types"


def test_a_request_is_signed_as_it_is_sent() -> None:
    signed: list[tuple[str, str, bytes, Headers]] = []

    def sign(method: str, url: str, body: bytes, headers: Headers) -> Headers:
        signed.append((method, url, body, headers))
        return {**headers, "Authorization": "signed"}

    with serving() as server, contextlib.closing(Connection(server.url, sign=sign)) as connection:
        Client(connection).call("POST", "/v1:query", {"sets": []})
        ((method, path, body, headers),) = server.requests
        assert signed == [(method, server.url + path, body, {"Content-Type": "application/json"})]
        assert headers["authorization"] == "signed"
        assert headers["content-type"] == "application/json"


def test_a_refused_connection_says_what_to_check() -> None:
    with socket.socket() as bound:  # nobody listens, and nobody else is given the port
        bound.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{bound.getsockname()[1]}"
        with Client(url) as client, pytest.raises(NoAnswerError) as found:
            client.types()
    assert f"no answer from {url}" in str(found.value)
    assert "refused" in str(found.value)
    assert "check the address, and that the service runs" in str(found.value)


def test_a_server_without_http_gives_no_answer() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def answer() -> None:
            connection, _ = listening.accept()
            connection.recv(1000)
            connection.sendall(b"SSH-2.0-OpenSSH\r\n")
            connection.close()

        thread = threading.Thread(target=answer)
        thread.start()
        with Client(f"http://127.0.0.1:{listening.getsockname()[1]}") as client, pytest.raises(NoAnswerError):
            client.types()
        thread.join()


def test_a_service_that_is_too_slow_counts_as_no_answer() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with (
            contextlib.closing(Connection(url, timeout=0.05)) as connection,
            pytest.raises(NoAnswerError, match="time"),
        ):
            Client(connection).types()


@pytest.mark.parametrize("url", ["", "127.0.0.1:8000", "ftp://a.example", "https://", "http://a.example/?x=1"])
def test_text_that_is_not_an_address_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="is not an address of the service: give http"):
        Client(url)
