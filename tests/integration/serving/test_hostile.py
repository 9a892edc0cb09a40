"""Whatever a stranger sends: the service answers in its own form, repeats nothing of it, logs nothing, and goes on."""

import http.client
import json
import re
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from kanon.serving import http as module
from tests.integration.serving.machine import Machine, machine

MARK = "a-secret-of-the-request"
PLACE = "/v1/types/fledge/sets/aGVsbG8"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    with machine(tmp_path_factory.mktemp("hostile") / "data") as made:
        yield made
        assert made.logs.getvalue() == ""


@pytest.fixture(autouse=True)
def goes_on(served: Machine, capfd: pytest.CaptureFixture[str]) -> Iterator[None]:
    """After each request the service still works, and nothing was written anywhere."""
    yield
    assert served.request("POST", f"{PLACE}:join", {"client": "me"}).body == b"{}"
    assert capfd.readouterr() == ("", "")


def answers(sent: bytes) -> list[tuple[int, bytes]]:
    """The statuses and bodies in what a connection got."""
    found = []
    while sent:
        head, _, rest = sent.partition(b"\r\n\r\n")
        length = int(re.search(rb"(?i)content-length: (\d+)", head)[1])  # type: ignore[index]
        found.append((int(head.split()[1]), rest[:length]))
        sent = rest[length:]
    return found


def line(method: str, target: str, *headers: str, body: bytes = b"") -> bytes:
    own = [*headers, *([f"Content-Length: {len(body)}"] if body else [])]
    head = "".join(f"{each}\r\n" for each in (f"{method} {target} HTTP/1.1", "Host: kanon.test", *own))
    return head.encode() + b"\r\n" + body


REFUSED = {
    "no HTTP": (f"{MARK}\r\n\r\n".encode(), 400),
    "TLS": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400),
    "a header without a name": (line("GET", PLACE, f": {MARK}"), 400),
    "a header with a space": (line("GET", PLACE, f"{MARK} : x"), 400),
    "a folded header": (line("GET", PLACE, "X: y", f" {MARK}"), None),
    "a bare line feed": (f"GET {PLACE} HTTP/1.1\nHost: {MARK}\n\n\r\n\r\n".encode(), 400),
    "headers without an end": (line("GET", PLACE, f"X: {MARK * 1000}"), 400),
    "many headers": (line("GET", PLACE, *(f"X-{n}: {MARK}" for n in range(1000))), 400),
    "a long target": (line("GET", f"/{MARK * 1000}"), 400),
    "a lower case method": (line("get", PLACE, f"X: {MARK}"), 400),
    "an unknown method": (line("BREW", PLACE, f"X: {MARK}"), 401),
    "a method for changes": (line("DELETE", PLACE), 401),
    "a wrong method": (line("GET", "/v1:query"), 404),
    "a HEAD": (line("HEAD", "/nowhere"), None),
    "an unknown path": (line("GET", f"/{MARK}"), 404),
    "a path out of the root": (line("GET", f"/../../{MARK}"), 404),
    "an encoded slash": (line("GET", f"{PLACE}%2F{MARK}"), 404),
    "an encoded verb": (line("GET", f"{PLACE}%3A{MARK}"), 404),
    "bytes that are not UTF-8": (line("GET", "/v1/types/%ff%fe/sets/aGVsbG8"), 404),
    "a null": (line("GET", "/v1/types/%00"), 404),
    "an absolute target": (line("GET", f"http://{MARK}.test{PLACE}"), None),
    "a transfer encoding that nobody knows": (line("POST", "/v1:query", f"Transfer-Encoding: {MARK}"), 400),
    "two lengths": (line("POST", "/v1:query", "Content-Length: 1", "Content-Length: 2"), 400),
    "a negative length": (line("POST", "/v1:query", "Content-Length: -1"), 400),
    "a length that is no number": (line("POST", "/v1:query", f"Content-Length: {MARK}"), 400),
    "a large length": (line("POST", "/v1:query", "Content-Length: 99999999999"), 413),
    "a bad chunk": (line("POST", "/v1:query", "Transfer-Encoding: chunked") + f"{MARK}\r\n\r\n".encode(), 400),
    "bad JSON": (line("POST", "/v1:query", body=f'{{"{MARK}'.encode()), 400),
    "deep JSON": (line("POST", "/v1:query", body=b'{"a":' + b"[" * 100_000), 400),
    "bytes": (line("POST", "/v1:query", body=b"\xff\xfe\x00"), 400),
    "an unknown field": (line("POST", "/v1:query", body=json.dumps({"setsForType": [], MARK: 1}).encode()), 400),
    "another type": (line("POST", "/v1:query", "Content-Type: text/plain", body=f"{MARK}".encode()), 415),
    "a large body": (line("POST", "/v1:query", body=b'{"setsForType":[]' + b" " * (1 << 20) + b"}"), 413),
    "a wrong key": (line("POST", f"{PLACE}:join", f"Authorization: Bearer {MARK}", body=b'{"client": "c"}'), 401),
    "two keys": (line("POST", f"{PLACE}:join", f"Authorization: {MARK}", "Authorization: Bearer x"), 401),
    "a header with an underscore": (line("POST", f"{PLACE}:join", f"Authorization_: Bearer {MARK}"), 401),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_bad_request_is_refused_in_the_form_of_the_service(served: Machine, name: str) -> None:
    sent, status = REFUSED[name]
    got = served.sent(sent)
    assert MARK.encode() not in got
    assert b"Server:" not in got
    assert b"Traceback" not in got
    if status is None:  # HTTP allows it
        assert got.startswith(b"HTTP/1.1 ")
        return
    if not got:  # the service closed the connection before it had read everything, and TCP dropped the answer
        assert len(sent) > module.MOST_HEADER_BYTES
        return
    (code, body), *_ = answers(got)
    assert code == status
    assert json.loads(body)["error"]["code"] == status


def test_a_body_in_chunks_is_read_and_bounded(served: Machine) -> None:
    head = line("POST", "/v1:query", "Content-Type: application/json", "Transfer-Encoding: chunked")
    content = b'{"setsForType": []}'
    chunks = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in (content[:5], content[5:])) + b"0\r\n\r\n"
    ((code, body),) = answers(served.sent(head + chunks))
    assert code == 200
    assert json.loads(body)["kAnonymousSets"] == []
    endless = b"10000\r\n" + b" " * 0x10000 + b"\r\n"
    with served.socket() as connection:
        connection.sendall(head)
        for _ in range(33):
            try:
                connection.sendall(endless)
            except OSError:
                break
        assert b" 413 " in connection.recv(100)


def test_requests_in_a_row_are_answered_in_their_order(served: Machine) -> None:
    targets = ["/v1/types/fledge", "/nowhere", PLACE, "/v1/types"]
    got = answers(served.sent(b"".join(line("GET", target) for target in targets)))
    assert [code for code, _ in got] == [200, 404, 200, 200]
    bodies = [json.loads(body) for _, body in got]
    assert [min(body) for body in bodies] == ["bounds", "error", "kAnonymous", "types"]


def test_the_rest_of_a_refused_request_is_no_request(served: Machine) -> None:
    inside = line("GET", "/v1/types/fledge")
    got = answers(served.sent(line("POST", "/v1:query", "Content-Length: x") + inside))
    assert [code for code, _ in got] == [400]
    both = line("POST", "/v1:query", "Content-Length: 4", "Transfer-Encoding: chunked") + b"0\r\n\r\n" + inside
    assert all(code != 200 for code, _ in answers(served.sent(both))[:1])


def test_half_a_request_is_no_join(served: Machine) -> None:
    before = served.directory.log.count(served.directory.log.steps()[0]) if served.directory.log.steps() else 0
    body = b'{"client": "half"}'
    whole = line("POST", f"{PLACE}:join", f"Authorization: Bearer {served.key}", body=body)
    for size in (10, len(whole) - len(body), len(whole) - 1):
        assert b"HTTP/1.1 200" not in served.sent(whole[:size])
    after = served.directory.log.count(served.directory.log.steps()[0]) if served.directory.log.steps() else 0
    assert after == before


def test_a_client_that_sends_slowly_for_ever_is_cut_off_and_one_that_waits_between_requests_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SECONDS_OF_A_REQUEST", 1)
    with machine(tmp_path / "data") as served, served.socket() as slow, served.socket() as idle:
        idle.sendall(line("GET", "/v1/types"))
        assert idle.recv(100).startswith(b"HTTP/1.1 200")
        slow.sendall(b"GET /v1/types HTTP/1.1\r\n")
        slow.settimeout(0.1)
        began = time.monotonic()
        closed = False
        while not closed and time.monotonic() < began + 20:
            try:
                slow.sendall(b"X: y\r\n")
                closed = slow.recv(100) == b""
            except TimeoutError:
                continue
            except OSError:
                closed = True
        assert closed
        idle.settimeout(20)
        while idle.recv(65536):
            pass


def hurried(served: Machine) -> socket.socket:
    """A client that sends many requests, whose answers no buffer can hold, and reads none."""
    connection = socket.socket()
    connection.settimeout(20)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
    connection.connect(("127.0.0.1", served.server.port))
    connection.sendall(line("GET", "/openapi.json") * 250)
    return connection


def until_waiting(served: Machine, clients: int) -> None:
    """Use the service until so many clients have not taken an answer, and others wait behind it."""
    channels, deadline = served.server._server.active_channels, time.monotonic() + 20
    while sum(channel._waits for channel in list(channels.values())) < clients:
        assert served.request("GET", "/healthz").status == 200
        assert time.monotonic() < deadline


def test_clients_that_do_not_read_stop_nobody_and_are_cut_off_also_if_they_take_a_byte_in_time(tmp_path: Path) -> None:
    with machine(tmp_path / "data") as served, ExitStack() as opened:
        channels, late = served.server._server.active_channels, module.SECONDS_OF_A_REQUEST + 1
        late += module.MOST_BODY_BYTES // module.LEAST_BYTES_A_SECOND
        for _ in range(module.THREADS + 4):
            opened.enter_context(hurried(served))
        until_waiting(served, module.THREADS + 4)
        for channel in list(channels.values()):
            channel.last_activity += late  # as if it had just taken a byte
        served.server._in_loop(lambda: served.server._server.maintenance(time.time() + late))
        assert not any(channel.total_outbufs_len for channel in list(channels.values()))
        assert served.request("GET", "/healthz").status == 200


def test_a_client_that_reads_late_gets_all_answers(served: Machine) -> None:
    with hurried(served) as connection:
        until_waiting(served, 1)
        connection.shutdown(socket.SHUT_WR)
        got = answers(b"".join(iter(lambda: connection.recv(1 << 20), b"")))
    assert [code for code, _ in got] == [200] * 250


def test_connections_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_CONNECTIONS", 5)
    monkeypatch.setattr(module, "SECONDS_OF_A_REQUEST", 1)
    with machine(tmp_path / "data") as served:
        idle = [socket.create_connection(("127.0.0.1", served.server.port), timeout=20) for _ in range(10)]
        assert served.request("GET", "/healthz").status == 200
        assert len(served.server._server.active_channels) <= 5
        for one in idle:
            one.close()


def test_a_connection_is_used_for_many_requests(served: Machine) -> None:
    with closing(http.client.HTTPConnection("127.0.0.1", served.server.port, timeout=20)) as connection:
        connection.connect()
        used = connection.sock
        for _ in range(3):
            connection.request("GET", "/healthz")
            assert connection.getresponse().read() == b"healthy\n"
            assert connection.sock is used


def test_no_request_is_written_to_a_file(served: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("a temporary file was opened")

    monkeypatch.setattr("tempfile.TemporaryFile", refuse)
    monkeypatch.setattr("waitress.buffers.TempfileBasedBuffer.newfile", refuse)
    body = b'{"setsForType": []' + b" " * ((1 << 20) - 20) + b"}"
    assert served.request("POST", "/v1:query", body).status == 200
