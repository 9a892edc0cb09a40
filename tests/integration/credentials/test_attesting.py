"""Accounts that are devices: a small verifier of attestations, over HTTP, and what happens without its verdict."""

import base64
import http.client
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import typer
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from kanon import clock
from kanon.cli.serve_data import Credentials
from kanon.client import SetId
from kanon.client.anonymous import Attested, EnrolmentError, recovery_code
from kanon.clock import WEEK, week_of
from kanon.credentials import arc
from kanon.credentials.contexts import attested
from kanon.errors import ConfigurationError
from kanon.gate.attesting import MOST_APART, MOST_ATTESTATION_BYTES, DeviceAccounts, NoVerdictError
from kanon.http.bodies import RequestError
from kanon.serving import verifier as verifier_module
from kanon.serving.access import AuthMode
from kanon.serving.verifier import MOST_AT_ONCE, AttestationVerifier
from tests.integration.credentials.people import TYPE, asked, client_of, count, device, issuer, served
from tests.integration.gateway.relayed import Relay
from tests.integration.serving.machine import Machine, machine

ENROL = "/v1/credentials"
APP = b"an app".ljust(32)
vendor = Ed25519PrivateKey.generate()


@dataclass
class Phone:
    """A device: a key that the vendor has signed. It attests the app that asks it, and 32 bytes of that."""

    own: Ed25519PrivateKey = field(default_factory=Ed25519PrivateKey.generate)
    vendor: Ed25519PrivateKey = vendor
    app: bytes = APP

    def attest(self, binding: bytes) -> bytes:
        public = self.own.public_key().public_bytes_raw()
        return public + self.vendor.sign(public) + self.app + self.own.sign(self.app + binding)


def verified(asked: bytes) -> dict[str, Any]:
    """What the verifier of an operator answers: a name of the device, if the vendor, the app and the binding fit."""
    found = {name: base64.urlsafe_b64decode(value + "==") for name, value in json.loads(asked).items()}
    attestation, binding = found["attestation"], found["binding"]
    public, signed, app, own = attestation[:32], attestation[32:96], attestation[96:128], attestation[128:]
    try:
        vendor.public_key().verify(signed, public)
        Ed25519PublicKey.from_public_bytes(public).verify(own, app + binding)
    except (InvalidSignature, ValueError):
        return {"account": None}
    return {"account": sha256(public).hexdigest() if app == APP else None}


Reply = Callable[[BaseHTTPRequestHandler, bytes], None]


def answering(handler: BaseHTTPRequestHandler, content: bytes, code: int = 200, **headers: str) -> None:
    handler.send_response(code)
    for name, value in {"Content_Length": str(len(content)), **headers}.items():
        handler.send_header(name.replace("_", "-"), value)
    handler.end_headers()
    handler.wfile.write(content)


@dataclass
class Served:
    """The verifier over HTTP. ``reply`` is another one."""

    url: str = ""
    asked: list[bytes] = field(default_factory=list)
    reply: Reply = lambda handler, asked: answering(handler, json.dumps(verified(asked)).encode())


@contextmanager
def serving() -> Iterator[Served]:
    made = Served()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked = self.rfile.read(int(self.headers["Content-Length"]))
            made.asked.append(asked)
            made.reply(self, asked)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    made.url = f"http://127.0.0.1:{server.server_port}/verify?app=1"
    try:
        yield made
    finally:
        server.shutdown()
        server.server_close()


@pytest.fixture
def by() -> Iterator[Served]:
    with serving() as made:
        yield made


@pytest.fixture
def at(tmp_path: Path, by: Served) -> Iterator[Machine]:
    credentials = Credentials(AuthMode.KEY, AuthMode.KEY, None, None, None, verifier=by.url)
    with served(tmp_path / "data", credentials=credentials) as made:
        yield made


def named(at: Machine, phone: Phone, **more: Any) -> Attested:
    return Attested(issuer(at).deployment, phone.attest, **{"now": lambda: at.now, **more})


def enrolled(at: Machine, auth: Any, secrets: arc.Secrets | None = None) -> tuple[int, dict[str, str]]:
    """Enrol with any attestation; the status, and the headers of its answer."""
    body = json.dumps(asked(issuer(at).deployment, week_of(at.now), secrets)).encode()
    found = at.request("POST", ENROL, body, dict(auth("POST", "", body, {})), key=False)
    return found.status, dict(found.headers)


def said_later(auth: Any, at: Machine) -> Any:
    """The time that is sent is not the one that was attested."""

    def changed(*asked: Any) -> dict[str, str]:
        attestation = auth(*asked)["Authorization"].partition(".")[2]
        return {"Authorization": f"Bearer {int(at.now)}.{attestation}"}

    return changed


def rows(at: Machine) -> int:
    accounts: Any = at.service._enrolment.enrolling.accounts  # type: ignore[union-attr]
    return int(accounts.database.execute("SELECT COUNT(*) FROM accounts").fetchone()[0])


def test_a_device_is_an_account_on_all_its_installations(at: Machine, relay: Relay, tmp_path: Path) -> None:
    code, phone = recovery_code(), Phone()
    first, second = device(at, tmp_path / "first"), device(at, tmp_path / "second")
    first.enrol(at.server.url, auth=named(at, phone), relay=relay.url, recovery=code)
    with pytest.raises(EnrolmentError, match="recovery code"):
        second.enrol(at.server.url, auth=named(at, phone))
    second.enrol(at.server.url, auth=named(at, phone), recovery=code)
    other = device(at, tmp_path / "other")
    other.enrol(at.server.url, auth=named(at, Phone()))
    for each, so_far in ((first, 1), (second, 1), (other, 2)):
        with client_of(at, each) as client:
            client.join(TYPE, SetId("aGVsbG8"))
        assert count(at) == so_far
    first.delete(at.server.url, auth=named(at, phone), relay=relay.url)
    assert enrolled(at, named(at, phone))[0] == 409


@pytest.mark.parametrize(
    "wrong",
    [
        lambda at, _: named(at, Phone(vendor=Ed25519PrivateKey.generate())),
        lambda at, _: named(at, Phone(app=b"another app".ljust(32))),
        lambda at, phone: Attested("another deployment", phone.attest, now=lambda: at.now),
        lambda at, phone: said_later(named(at, phone, now=lambda: at.now - 1), at),
        lambda at, phone: lambda method, url, _, headers: named(at, phone)(method, url, b"{}", headers),
        lambda at, phone: lambda _, url, body, headers: named(at, phone)("GET", url, body, headers),
    ],
)
def test_an_attestation_of_something_else_is_refused(at: Machine, by: Served, wrong: Any) -> None:
    phone = Phone()
    assert enrolled(at, wrong(at, phone))[0] == 401
    assert (rows(at), len(by.asked)) == (0, 1)
    assert enrolled(at, named(at, phone))[0] == 200


@pytest.mark.parametrize("text_", ["", "A", "AAAAA", "not base64url!", "A" * (MOST_ATTESTATION_BYTES * 4 // 3 + 1)])
@pytest.mark.parametrize("begin", ["", "{now}.", "{now}.0.", "-{now}.", "."])
def test_what_is_no_attestation_is_refused_without_the_verifier(
    at: Machine, by: Served, begin: str, text_: str
) -> None:
    text_ = begin.format(now=int(at.now)) + text_
    for headers in ({"Authorization": f"Bearer {text_}"}, {"Authorization": f"Basic {text_}"}, {}):
        assert enrolled(at, lambda *_, headers=headers: headers)[0] == 401
    assert enrolled(at, lambda *_: {"Authorization": f"Basic {'A' * 200}"})[0] == 401
    assert by.asked == []


def test_a_body_that_is_refused_never_comes_to_the_verifier(at: Machine, by: Served) -> None:
    auth = named(at, Phone())
    assert at.request("POST", ENROL, b"{}", dict(auth("POST", "", b"{}", {})), key=False).status == 400
    assert by.asked == []


def test_the_longest_attestation_passes_through_a_relay(at: Machine, by: Served, relay: Relay, tmp_path: Path) -> None:
    def attest(binding: bytes) -> bytes:
        return binding.ljust(MOST_ATTESTATION_BYTES, b"a")

    by.reply = lambda handler, _: answering(handler, GOOD)
    auth = Attested(issuer(at).deployment, attest, lambda: at.now)
    device(at, tmp_path / "file").enrol(at.server.url, auth=auth, relay=relay.url)
    assert {len(json.loads(each)["attestation"]) for each in by.asked} == {MOST_ATTESTATION_BYTES * 4 // 3}


GOOD = b'{"account": "device"}'


@pytest.mark.parametrize(
    "reply",
    [
        lambda handler, _: answering(handler, GOOD, 500),
        lambda handler, _: answering(handler, GOOD, 403),
        lambda handler, _: answering(handler, GOOD, 204),
        lambda handler, _: answering(handler, b"", 302, Location="/other"),
        *(
            lambda handler, _, content=content: answering(handler, content)
            for content in (
                b"",
                b"device",
                b'"device"',
                b"{}",
                b'{"account": ""}',
                b'{"account": 7}',
                b'{"account": ["device"]}',
                b'{"account": "device", "more": 1}',
                b'{"account": null, "more": 1}',
                b'{"account": null, "account": "device"}',
                b'{"account": "\xff"}',
                b'{"account": "%b"}' % (b"a" * 257),
                GOOD.ljust(4097),
                b"[" * 4000,
            )
        ),
        lambda handler, _: handler.wfile.write(b"not HTTP\r\n\r\n"),
        lambda handler, _: handler.connection.close(),
        lambda handler, _: answering(handler, GOOD, Content_Length="40"),
    ],
)
def test_without_a_verdict_nobody_enrols(at: Machine, by: Served, reply: Reply) -> None:
    by.reply = reply
    status, headers = enrolled(at, named(at, Phone()))
    assert (status, rows(at), len(by.asked)) == (503, 0, 1)
    assert "Retry-After" in headers
    assert at.logs.getvalue() == ""


def test_an_answer_of_the_most_bytes_and_letters_is_a_verdict(at: Machine, by: Served) -> None:
    by.reply = lambda handler, _: answering(handler, (b'{"account": "%b"}' % (b"a" * 256)).ljust(4096))
    assert enrolled(at, named(at, Phone()))[0] == 200


def test_a_verifier_that_is_down_lets_nobody_in(tmp_path: Path) -> None:
    with serving() as gone:
        url = gone.url
    credentials = Credentials(AuthMode.KEY, AuthMode.KEY, None, None, None, verifier=url)
    with served(tmp_path / "data", credentials=credentials) as at:
        assert enrolled(at, named(at, Phone()))[0] == 503


@pytest.mark.parametrize("begun", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 21\r\n\r\n{", b"HTTP/1.1 2"])
def test_a_late_answer_is_none(by: Served, monkeypatch: pytest.MonkeyPatch, begun: bytes) -> None:
    """A timeout of the connection begins again with each byte, so here it has none."""

    def patient(host: str, port: int, **_: Any) -> http.client.HTTPConnection:
        return http.client.HTTPConnection(host, port, timeout=None)

    def reply(handler: BaseHTTPRequestHandler, _: bytes) -> None:
        handler.wfile.write(begun)
        handler.connection.recv(1)  # until the other side closes

    by.reply = reply
    asked = AttestationVerifier(by.url, seconds=0.1)
    monkeypatch.setattr(asked, "_made", patient)
    ended = []

    def ask() -> None:
        with pytest.raises(NoVerdictError):
            asked(b"{}")
        ended.append(True)

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(20)
    assert ended


def test_a_few_questions_are_open_at_a_time(by: Served) -> None:
    """Others get no verdict at once; when one is answered, the next one is asked."""
    go, arrived = threading.Event(), threading.Semaphore(0)

    def reply(handler: BaseHTTPRequestHandler, _: bytes) -> None:
        arrived.release()
        go.wait(60)
        answering(handler, GOOD)

    by.reply, asked = reply, AttestationVerifier(by.url, seconds=60)
    answers: list[bytes] = []
    threads = [threading.Thread(target=lambda: answers.append(asked(b"{}"))) for _ in range(MOST_AT_ONCE)]
    for thread in threads:
        thread.start()
        assert arrived.acquire(timeout=60)
    with pytest.raises(NoVerdictError):
        asked(b"{}")
    go.set()
    for thread in threads:
        thread.join()
    assert answers == [GOOD] * MOST_AT_ONCE
    assert asked(b"{}") == GOOD


def test_nothing_of_an_attestation_is_stored_or_logged(at: Machine, by: Served) -> None:
    phone = Phone()
    assert enrolled(at, named(at, phone))[0] == 200
    assert enrolled(at, named(at, Phone(app=b"x".ljust(32))))[0] == 401
    stored = b"".join(each.read_bytes() for each in at.directory.path.rglob("*") if each.is_file())
    public = phone.own.public_key().public_bytes_raw()
    words = [
        public,
        sha256(public).hexdigest().encode(),
        *(value.encode() for value in json.loads(by.asked[0]).values()),
    ]
    assert not [word for word in words if word in stored]
    assert at.logs.getvalue() == ""


@pytest.mark.parametrize("method", ["GET", "DELETE"])
def test_a_request_is_not_taken_again_after_minutes(at: Machine, by: Served, method: str) -> None:
    phone = Phone()
    assert enrolled(at, named(at, phone))[0] == 200
    sent, begin, asked = dict(named(at, phone)(method, "", b"", {})), at.now, len(by.asked)
    for late, status in ((MOST_APART + 1, 401), (-MOST_APART - 1, 401), (WEEK, 401), (MOST_APART, 200)):
        at.now = begin + late
        assert at.request(method, ENROL, None, sent, key=False).status == status
    assert len(by.asked) == asked + 1


@pytest.mark.parametrize(("late", "status"), [(MOST_APART + 1, 401), (MOST_APART, 200), (-MOST_APART - 1, 401)])
def test_an_enrolment_is_not_taken_after_minutes(at: Machine, late: int, status: int) -> None:
    assert enrolled(at, named(at, Phone(), now=lambda: at.now - late))[0] == status


@pytest.mark.parametrize("method", ["GET", "DELETE"])
def test_recovery_and_deletion_are_attested_too(at: Machine, method: str) -> None:
    phone = Phone()
    assert enrolled(at, named(at, phone))[0] == 200
    for other in (named(at, Phone(vendor=Ed25519PrivateKey.generate())), lambda *_: {}):
        assert at.request(method, ENROL, None, dict(other(method, "", b"", {})), key=False).status == 401
    assert at.request(method, ENROL, None, dict(named(at, phone)(method, "", b"", {})), key=False).status == 200


def test_a_binding_says_what_is_asked() -> None:
    base = ("deployment", 2900, "POST", b"{}")
    others = [
        ("deploymen", 2900, "POST", b"{}"),
        ("deployment", 2901, "POST", b"{}"),
        ("deployment", 2900, "POS", b"T{}"),
    ]
    assert len({attested(*each) for each in (base, *others)}) == 4
    assert attested(*base).hex() == "bdf1bdce70e7f14344d9c6bf52dcde42eacd11107637d65ab8f894c292a4d259"


@pytest.mark.parametrize(
    "url",
    [
        "http://verifier.example/",
        "ftp://127.0.0.1/",
        "127.0.0.1:80",
        "http://",
        "https://",
        "https://user@verifier.example/",
        "https://verifier.example/#a",
        "https://verifier.example/a b",
        "https://verifier.example:port/",
        "https://verifier.example/é",
        "http://[::1",
    ],
)
def test_a_verifier_is_asked_privately(url: str) -> None:
    with pytest.raises(ConfigurationError, match="https"):
        AttestationVerifier(url)
    with pytest.raises(ConfigurationError, match="https"):  # before a directory is made
        Credentials(AuthMode.KEY, AuthMode.KEY, None, None, None, verifier=url).check()


@pytest.mark.parametrize(
    "url", ["http://localhost:1/", "http://127.0.0.2", "http://[::1]:8/v", "https://verifier.example"]
)
def test_a_verifier_on_this_machine_or_behind_tls_is_taken(url: str) -> None:
    AttestationVerifier(url)


def test_two_kinds_of_accounts_are_refused() -> None:
    with pytest.raises(typer.BadParameter, match="no effect"):
        Credentials(
            AuthMode.KEY, AuthMode.KEY, None, None, None, enrol=AuthMode.KEY, verifier="https://verifier.example"
        ).check()


def test_a_service_without_credentials_refuses_a_verifier(tmp_path: Path) -> None:
    credentials = Credentials(AuthMode.KEY, AuthMode.KEY, None, None, None, verifier="https://verifier.example")
    with pytest.raises(typer.BadParameter, match="no type needs"), machine(tmp_path / "data", credentials):
        pass


def _event(at_: Any) -> dict[str, Any]:
    headers = {"authorization": f"Bearer {int(clock.now())}.AAAA"}
    return {"headers": headers, "requestContext": {"http": {"method": "GET"}}, "body": at_}


def test_no_verdict_is_no_account() -> None:
    def none(_: bytes) -> bytes:
        raise NoVerdictError

    with pytest.raises(RequestError, match="temporarily"):
        DeviceAccounts("deployment", none)(_event(None))


def test_an_answer_that_came_too_late_is_none_even_if_nothing_was_cut(
    by: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    go = threading.Event()
    monkeypatch.setattr(verifier_module, "_cut", lambda _: go.set())

    def reply(handler: BaseHTTPRequestHandler, _: bytes) -> None:
        go.wait(60)
        answering(handler, GOOD)

    by.reply = reply
    with pytest.raises(NoVerdictError):
        AttestationVerifier(by.url, seconds=0.1)(b"{}")
