"""The kept connection, over real sockets."""

import asyncio
import contextlib
import os
import socket
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx2
import pytest
from botocore.credentials import Credentials

from kanon.client import ApiError, Bearer, Client, Connection, Headers, NoAnswerError
from kanon.client.asynchronous import AsyncClient
from kanon.client.signing import SigV4


class Server(ThreadingHTTPServer):
    """Counts connections and keeps requests; drops a connection after ``answers`` answers without saying so."""

    def __init__(self, answers: int) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answers, self.connections, self.refusals = answers, 0, 0
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
        self.server.refusals -= 1
        self.send_response(200 if self.server.refusals < 0 else 503)
        self.send_header("Content-Length", "13")
        self.send_header("Set-Cookie", "person=7; Path=/")
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
        with Client(server.url, deadline=0) as client, pytest.raises(NoAnswerError):
            client.types()
        assert server.connections == 1


def test_a_prefix_of_the_address_is_kept() -> None:
    with serving() as server:
        with Client(f"{server.url}/stage/") as client:
            client.types()
        assert server.requests[0][1] == "/stage/v1/types"


def test_a_request_is_signed_as_it_is_sent() -> None:
    signed: list[tuple[str, str, bytes, Headers]] = []

    def auth(method: str, url: str, body: bytes, headers: Headers) -> Headers:
        signed.append((method, url, body, headers))
        return {**headers, "Authorization": "signed"}

    with serving() as server, contextlib.closing(Connection(server.url, auth=auth)) as connection:
        Client(connection).call("POST", "/v1:query", {"sets": []})
        ((method, path, body, headers),) = server.requests
        assert signed == [(method, server.url + path, body, {"Content-Type": "application/json"})]
        assert headers["authorization"] == "signed"
        assert headers["content-type"] == "application/json"


def test_a_refused_connection_says_what_to_check() -> None:
    with socket.socket() as bound:  # nobody listens, and nobody else is given the port
        bound.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{bound.getsockname()[1]}"
        with Client(url, deadline=0) as client, pytest.raises(NoAnswerError) as found:
            client.types()
    assert f"no answer from {url}" in str(found.value)
    assert "refused" in str(found.value)
    assert "check the address, and that the service runs" in str(found.value)


@pytest.mark.parametrize(
    ("told", "message"),
    [
        (b"SSH-2.0-OpenSSH\r\n", "SSH"),
        (b'HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{"types": []}', "IncompleteRead"),
    ],
)
def test_what_is_no_http_or_is_cut_off_is_no_answer(told: bytes, message: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def answer() -> None:
            connection, _ = listening.accept()
            with connection:
                connection.recv(1000)
                connection.sendall(told)

        thread = threading.Thread(target=answer)
        thread.start()
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        with Client(url, deadline=0) as client, pytest.raises(NoAnswerError, match=message):
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


# Time, threads, forks and proxies


def _ask(url: str) -> None:
    with Client(url, deadline=0.2) as client:
        client.types()


def _ask_async(url: str) -> None:
    async def ask() -> None:
        async with AsyncClient(url, deadline=0.2) as client:
            await client.types()

    asyncio.run(ask())


@pytest.mark.slow
@pytest.mark.parametrize("ask", [_ask, _ask_async])
def test_an_answer_that_comes_too_slowly_ends_in_time(ask: Callable[[str], None]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def drip() -> None:
            connection, _ = listening.accept()
            with connection, contextlib.suppress(OSError):
                connection.recv(1000)
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n")
                while not done.wait(0.01):
                    connection.sendall(b"x")

        done = threading.Event()
        thread = threading.Thread(target=drip)
        thread.start()
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        began = time.monotonic()
        with pytest.raises(NoAnswerError, match="no answer from"):
            ask(url)
        assert time.monotonic() - began < 5
        done.set()
        thread.join()


def test_a_call_is_repeated_over_a_socket_until_somebody_answers() -> None:
    waits: list[float] = []
    with serving() as server:
        server.refusals = 2
        with Client(server.url, sleep=waits.append) as client:
            assert client.types() == []
    assert len(waits) == 2
    assert len(server.requests) == 3


@pytest.mark.slow
def test_threads_share_a_client() -> None:
    with serving() as server, Client(server.url) as client, ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda _: client.types(), range(20))) == [[]] * 20
        assert server.connections == 1


def test_a_forked_process_opens_a_connection_of_its_own() -> None:
    with serving() as server, Client(server.url) as client:
        client.types()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # this process has threads
            child = os.fork()
        if not child:
            os._exit(client.types() != [])
        _, status = os.waitpid(child, 0)
        assert client.types() == []
        assert (status, server.connections, len(server.requests)) == (0, 2, 3)


@pytest.mark.parametrize(
    ("url", "places", "connected", "prefix", "headers"),
    [
        ("http://kanon.example/v", {"http": "http://u:p%40@proxy.example:3128"}, ("proxy.example", 3128),
         "http://kanon.example/v", {"Proxy-Authorization": "Basic dTpwQA=="}),
        ("https://kanon.example/v", {"https": "proxy.example:3128"}, ("proxy.example", 3128), "/v", {}),
        ("https://kanon.example/v", {"http": "http://proxy.example:3128"}, ("kanon.example", 443), "/v", {}),
        ("https://kanon.example/v", {"https": "proxy.example:1", "no": "kanon.example"}, ("kanon.example", 443),
         "/v", {}),
        ("http://127.0.0.1:8000", {"http": "http://proxy.example:3128"}, ("127.0.0.1", 8000), "", {}),
        ("http://me:secret@kanon.example:8", {"http": "proxy.example:3128"}, ("proxy.example", 3128),
         "http://kanon.example:8", {}),
    ],
)  # fmt: skip
def test_proxies_are_those_of_the_environment_and_this_machine_is_called_directly(
    url: str,
    places: dict[str, str],
    connected: tuple[str, int],
    prefix: str,
    headers: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("http", "https", "no"):
        monkeypatch.delenv(f"{name}_proxy", raising=False)
        monkeypatch.delenv(f"{name.upper()}_PROXY", raising=False)
    for name, value in places.items():
        monkeypatch.setenv(f"{name}_proxy", value)
    connection = Connection(url)
    assert (connection._connection.host, connection._connection.port) == connected
    assert (connection._prefix, connection._headers) == (prefix, headers)
    tunnel = (connection._connection._tunnel_host or b"", connection._connection._tunnel_port)  # type: ignore[attr-defined]
    assert (tunnel == ("kanon.example", 443)) == (url.startswith("https") and connected[0] == "proxy.example")


# The same over httpx2


@pytest.mark.slow
def test_the_async_client_calls_over_one_connection_with_prefix_and_auth() -> None:
    async def ask(url: str) -> list[object]:
        async with AsyncClient(f"{url}/stage/", auth=Bearer("token")) as client:
            return [await client.types(), await client.call("POST", "/v1:query", {"a": 1})]

    with serving() as server:
        assert asyncio.run(ask(server.url)) == [[], {"types": []}]
        assert server.connections == 1
    (_, get, _, _), (_, post, body, headers) = server.requests
    assert (get, post, body) == ("/stage/v1/types", "/stage/v1:query", b'{"a": 1}')
    assert (headers["authorization"], headers["content-type"]) == ("Bearer token", "application/json")
    assert "cookie" not in headers, "cookies link the calls of a client"


def test_no_message_names_a_password_or_a_set() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://me:secret@127.0.0.1:{silent.getsockname()[1]}"
    for ask in (lambda: Client(url, deadline=0).types(), lambda: _ask_async(url)):
        with pytest.raises(NoAnswerError, match="no answer from http://127") as error:
            ask()
        assert "secret" not in str(error.value)
    with pytest.raises(ValueError, match="is not an address") as refused:
        Client("ftp://me:secret@kanon.example")
    assert "secret" not in str(refused.value)
    with serving() as server, Client(server.url, deadline=0) as client:
        server.refusals = 1
        with pytest.raises(ApiError) as unread:
            client.status("terms", "c2VjcmV0")
    assert "c2VjcmV0" not in str(unread.value)
    assert "GET /v1/types/terms/sets/..." in str(unread.value)


def test_a_forked_process_closes_a_client_while_its_parent_waits_for_an_answer() -> None:
    with serving() as server, contextlib.closing(Connection(server.url)) as connection:
        assert connection("GET", "/").status == 200
        with connection._lock:  # a thread of the parent is in a request
            child = os.fork()
            if not child:
                threading.Timer(5, lambda: os._exit(1)).start()
                connection.close()
                os._exit(0)
            assert os.waitpid(child, 0)[1] == 0
        assert connection("GET", "/").status == 200
        assert server.connections == 1


@pytest.mark.slow
def test_the_async_client_ends_at_its_deadline() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        began = time.monotonic()
        with pytest.raises(NoAnswerError, match=f"no answer from {url}"):
            _ask_async(url)
        assert time.monotonic() - began < 5
    with pytest.raises(NoAnswerError, match="no answer from"):
        _ask_async(url)


def test_the_async_client_does_not_close_a_foreign_http_client() -> None:
    async def ask(url: str) -> object:
        async with httpx2.AsyncClient() as http:
            async with AsyncClient(url, http=http) as client:
                await client.types()
            return (await http.get(url)).status_code

    with serving() as server:
        assert asyncio.run(ask(server.url)) == 200
    with pytest.raises(ValueError, match="is not an address"):
        AsyncClient("127.0.0.1:8000")


def test_a_request_is_signed_for_the_service_that_its_host_belongs_to() -> None:
    sign = SigV4(Credentials("AKIDEXAMPLE", "secret"), "eu-central-1")
    for host, service in (("a.execute-api.eu-central-1.amazonaws.com", "execute-api"), ("kanon.example", "execute-api"),
                          ("abc.lambda-url.eu-central-1.on.aws", "lambda")):  # fmt: skip
        signed = sign("POST", f"https://{host}/v1:batchJoin", b"{}", {})
        assert f"/eu-central-1/{service}/aws4_request" in signed["Authorization"]
