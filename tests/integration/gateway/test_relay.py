"""The relay of docs/guides/relay.md, with a real nginx: what it forwards, what it leaves out, what it refuses."""

import os
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from kanon.client import Bearer, Client, Connection, Headers, NoAnswerError, SetId
from tests.integration.gateway.relayed import OBLIVIOUS
from tests.integration.serving.guides import free_port
from tests.integration.serving.machine import PERIOD, Machine, machine
from tests.paths import ROOT

pytestmark = pytest.mark.relay

SET = SetId("aGVsbG8")
NO_HEADERS: Headers = {}
SYSTEM = f"{os.environ['PATH']}:/usr/local/sbin:/usr/sbin"
SECONDS_TO_START = 20.0


@dataclass
class Relay:
    """A relay, the service behind it, and the requests that this has got."""

    url: str
    folder: Path
    machine: Machine
    events: list[dict[str, Any]]

    def request(self, method: str, path: str, body: bytes = b"", headers: Headers = NO_HEADERS) -> int:
        with closing(Connection(self.url)) as connection:
            return connection(method, path, body, headers).status

    def client(self) -> Client:
        made = Client(
            self.machine.server.url, relay=self.url, auth=Bearer(self.machine.key), sleep=lambda _: None, deadline=0
        )
        made._connection._relaying.now = lambda: self.machine.now  # type: ignore[union-attr]
        return made


def _nginx() -> str:
    found = shutil.which("nginx", path=SYSTEM)
    if found is None:
        pytest.fail("nginx was not found: install it with `sudo apt-get install nginx-light`")
    return found


def _certificate(folder: Path) -> None:
    """A certificate of 127.0.0.1 that signs itself."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "relay.example")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    pem, form, plain = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    (folder / "relay.pem").write_bytes(made.public_bytes(pem))
    (folder / "relay.key").write_bytes(key.private_bytes(pem, form, plain))


def _configuration(folder: Path, port: int, service: str) -> str:
    """The guide's configuration with the test's names, in a whole one."""
    (block,) = re.findall(r"```nginx\n(.*?)```", (ROOT / "docs/guides/relay.md").read_text(), re.DOTALL)
    for name, here in (
        ("listen 443 ssl", f"listen 127.0.0.1:{port} ssl"),
        ("/etc/ssl/relay.example", f"{folder}/relay"),
        ("/var/cache/nginx", str(folder / "cache")),
        ("https://kanon.example/", f"{service}/"),
        ("/etc/ssl/certs/ca-certificates.crt", f"{folder}/relay.pem"),
    ):
        assert name in block, name
        block = block.replace(name, here)
    temporary = "".join(
        f"{kind}_temp_path {folder}/{kind};" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    user = "user root;" if os.geteuid() == 0 else ""
    return (
        f"{user} daemon off; pid {folder}/pid; events {{}} http {{ access_log {folder}/access; {temporary}\n{block} }}"
    )


@pytest.fixture
def relay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Relay]:
    with machine(tmp_path / "data", gateway=True) as made:
        events: list[dict[str, Any]] = []
        gateway = made.service._gateway
        assert gateway is not None
        answer = type(gateway).answer
        monkeypatch.setattr(
            type(gateway), "answer", lambda own, event, service: (events.append(event), answer(own, event, service))[1]
        )
        _certificate(tmp_path)
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "relay.pem"))
        (tmp_path / "cache").mkdir()
        port = free_port()
        (tmp_path / "nginx.conf").write_text(_configuration(tmp_path, port, made.server.url))
        command = [_nginx(), "-p", str(tmp_path), "-e", str(tmp_path / "start"), "-c", str(tmp_path / "nginx.conf")]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        try:
            _wait(port, process)
            yield Relay(f"https://127.0.0.1:{port}", tmp_path, made, events)
        finally:
            process.terminate()
            process.wait(10)
            assert process.stderr is not None
            process.stderr.close()


def _wait(port: int, process: "subprocess.Popen[str]") -> None:
    end = time.monotonic() + SECONDS_TO_START
    while time.monotonic() < end:
        if process.poll() is not None:
            assert process.stderr is not None
            pytest.fail(process.stderr.read())
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            time.sleep(0.02)
        else:
            return
    pytest.fail("nginx did not start")


def test_joins_and_queries_arrive_and_nothing_of_the_caller_does(relay: Relay) -> None:
    with relay.client() as client:
        client.join("fledge", SET, "me")
        client.join("fledge", "another value", "me")
        assert client.is_shared("fledge", [SET]) == frozenset()
    assert relay.machine.directory.log.count(int(relay.machine.now // PERIOD)) == 2
    forwarded = [event for event in relay.events if event["headers"].get("host") == "kanon.example"]
    assert [event["rawPath"] for event in forwarded] == ["/v1/proxy/keys", *["/v1/gateway"] * (len(forwarded) - 1)]
    assert len(forwarded) >= 4
    for event in forwarded:
        assert set(event["headers"]) <= {"host", "connection", "content-type"}


def test_headers_of_the_caller_are_left_out(relay: Relay) -> None:
    traces = {"Cookie": "a=b", "X-Forwarded-For": "192.0.2.7", "User-Agent": "me", "Authorization": "Bearer me"}
    sent = {**traces, **OBLIVIOUS}
    assert relay.request("POST", "/v1/gateway", b"no request", sent) == 400
    (event,) = relay.events
    assert event["headers"].keys() <= {"host", "connection", "content-type"}
    assert event["headers"]["content-type"] == "message/ohttp-req"


def test_all_clients_get_the_key_from_one_answer(relay: Relay) -> None:
    assert [relay.request("GET", "/v1/proxy/keys") for _ in range(5)] == [200] * 5
    assert len(relay.events) == 1


def test_nothing_else_is_forwarded(relay: Relay) -> None:
    found = [
        relay.request("GET", "/v1/types"),
        relay.request("POST", "/v1:query", b"{}"),
        relay.request("GET", "/metrics"),
        relay.request("GET", "/v1/gateway"),
        relay.request("POST", "/v1/proxy/keys", b"x"),
        relay.request("POST", "/v1/gateway", b"x" * (1 << 20) + b"x"),
    ]
    assert found == [404, 404, 404, 403, 403, 413]
    assert relay.events == []


def test_the_largest_request_is_forwarded_without_a_file(relay: Relay) -> None:
    shutil.rmtree(relay.folder / "client_body")  # a file could not be written any more
    assert relay.request("POST", "/v1/gateway", b"x" * (1 << 20), OBLIVIOUS) == 400


def test_an_address_that_calls_too_often_gets_429(relay: Relay) -> None:
    found = [relay.request("POST", "/v1/gateway", b"x") for _ in range(60)]
    assert 429 in found
    assert set(found) == {415, 429}


def test_nobody_is_logged(relay: Relay) -> None:
    with relay.client() as client:
        client.join("fledge", SET, "me")
        relay.request("POST", "/v1/gateway", b"x" * (1 << 21))
    assert not (relay.folder / "access").exists() or (relay.folder / "access").read_text() == ""
    assert "127.0.0.1" not in (relay.folder / "start").read_text()


def test_a_relay_that_nobody_vouches_for_is_refused(relay: Relay, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SSL_CERT_FILE")
    with relay.client() as client, pytest.raises(NoAnswerError, match="certificate verify failed"):
        client.join("fledge", SET, "me")


def test_web_pages_may_call_the_relay_and_the_service_does_not_learn_which(relay: Relay) -> None:
    page = {"Origin": "https://page.example"}
    with closing(Connection(relay.url)) as connection:
        asked = {**page, "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "content-type"}
        allowed = [
            connection("OPTIONS", "/v1/gateway", b"", asked),
            connection("GET", "/v1/proxy/keys", b"", page),
            connection("POST", "/v1/gateway", b"no request", {**page, **OBLIVIOUS}),
        ]
    assert [answer.status for answer in allowed] == [204, 200, 400]
    for answer in allowed:
        headers = [(name.lower(), value) for name, value in answer.headers]
        assert headers.count(("access-control-allow-origin", "*")) == 1
    assert ("Access-Control-Allow-Headers", "Content-Type") in allowed[0].headers
    assert len(relay.events) == 2
    assert all(set(event["headers"]) <= {"host", "connection", "content-type"} for event in relay.events)
