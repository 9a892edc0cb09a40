"""What of a request goes on, in which steps it is taken, and where errors are answered."""

import base64
import re
from typing import Any

import pytest

from kanon import clock
from kanon.clock import AFTER, MONDAY, WEEK
from kanon.gateway.answering import Gateway
from kanon.gateway.binary_http import (
    LEAST_PADDED,
    BinaryRequest,
    BinaryResponse,
    padded,
    read_response,
    write_request,
)
from kanon.gateway.epochs import Epochs
from kanon.gateway.oblivious import RESPONSE_TYPE, read_config, seal_request
from kanon.http.bodies import MOST_BODY_BYTES
from kanon.keys import Secret

PERIOD = 3600
STEP = 500_000
NOW = float(STEP * PERIOD)
JOIN = "/v1/types/t/sets/AA:join"


class Asked:
    """A gateway before a service that keeps its events and gives one answer."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, body: str = "{}", headers: dict[str, str] | None = None
    ) -> None:
        self.events: list[dict[str, Any]] = []
        self.now, self.body, self.headers = NOW, body, headers or {}
        monkeypatch.setattr(clock, "now", lambda: self.now)
        epochs = Epochs(Secret.derived("gateway", "a secret"))
        stepped = re.compile(r"POST (?:/v1/types/t/sets/AA:join|/v1:batchJoin)|DELETE /x")
        self.gateway = Gateway(epochs, PERIOD, stepped, re.compile("GET /x"))

    def service(self, event: dict[str, Any]) -> dict[str, Any]:
        self.events.append(event)
        return {"statusCode": 200, "headers": self.headers, "body": self.body}

    def outer(self, body: bytes, headers: dict[str, str], method: str = "POST", path: str = "/v1/gateway") -> Any:
        http = {"method": method, "path": path, "sourceIp": "192.0.2.7"}
        sent = {"body": base64.b64encode(body).decode(), "isBase64Encoded": True, "headers": headers}
        return self.gateway.answer({**sent, "rawPath": path, "requestContext": {"http": http}}, self.service)

    def inner(self, message: bytes, **headers: str) -> BinaryResponse:
        config = read_config(base64.b64decode(self.outer(b"", {}, "GET", "/v1/proxy/keys")["body"]))
        sealed, exchange = seal_request(message, config)
        result = self.outer(sealed, {"content-type": "message/ohttp-req", **headers})
        assert (result["statusCode"], result["headers"]["Content-Type"]) == (200, RESPONSE_TYPE)
        self.opened = exchange.open(base64.b64decode(result["body"]))
        return read_response(self.opened)

    def stepped(self, *steps: str, method: str = "POST", path: str = JOIN) -> int:
        fields = tuple(("kanon-step", step) for step in steps)
        return self.inner(write_request(BinaryRequest(method, "https", "", path, fields, b"{}"))).status


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Asked:
    return Asked(monkeypatch)


def test_nothing_of_the_outer_request_and_two_headers_of_the_inner_one_go_on(asked: Asked) -> None:
    fields = (
        *(("content-type", "application/json"), ("authorization", "Bearer inner"), ("host", "kanon.example")),
        *(("cookie", "inner"), ("x-forwarded-for", "198.51.100.1"), ("kanon-step", str(STEP)), ("user-agent", "inner")),
    )
    request = BinaryRequest("POST", "https", "kanon.example", f"{JOIN}?key=a%20b", fields, b"\xff{}")
    asked.inner(
        write_request(request), authorization="Bearer outer", cookie="outer", **{"x-forwarded-for": "192.0.2.7"}
    )
    assert asked.events == [
        {
            "version": "2.0",
            "rawPath": JOIN,
            "rawQueryString": "key=a%20b",
            "queryStringParameters": {"key": "a b"},
            "headers": {"content-type": "application/json", "authorization": "Bearer inner"},
            "requestContext": {"stage": "$default", "http": {"method": "POST", "path": JOIN}},
            "body": base64.b64encode(b"\xff{}").decode(),
            "isBase64Encoded": True,
        }
    ]


@pytest.mark.parametrize(
    ("method", "path"),
    [("POST", JOIN), ("POST", "/v1:batchJoin"), ("POST", "/v1/types/t/sets/%41A:join"), ("DELETE", "/x")],
)
def test_what_names_a_step_is_taken_in_it_and_120_seconds_after_it(asked: Asked, method: str, path: str) -> None:
    taken = []
    for seconds in (-1, 0, PERIOD - 1, PERIOD, PERIOD + 119, PERIOD + 120, 2 * PERIOD):
        asked.now = NOW + seconds
        taken.append(asked.stepped(str(STEP), method=method, path=path))
    assert taken == [400, 200, 200, 200, 200, 400, 400]
    assert len(asked.events) == 4


@pytest.mark.parametrize(
    "steps", [(), ("",), ("now",), (f"-{STEP}",), (f"+{STEP}",), (f"{STEP}.0",), ("9" * 5000,), (str(STEP), str(STEP))]
)
@pytest.mark.parametrize(("method", "path"), [("POST", JOIN), ("DELETE", "/x")])
def test_what_must_name_a_step_and_does_not_is_refused(
    asked: Asked, method: str, path: str, steps: tuple[str, ...]
) -> None:
    assert asked.stepped(*steps, method=method, path=path) == 400
    assert not asked.events


@pytest.mark.parametrize(
    ("method", "path"), [("GET", "/y"), ("POST", "/x"), ("GET", "/x/"), ("GET", JOIN), ("GET", "/v1/proxy/keys")]
)
def test_other_requests_do_not_go_on(asked: Asked, method: str, path: str) -> None:
    assert asked.inner(write_request(BinaryRequest(method, "https", "", path))).status == 404
    assert not asked.events
    assert asked.inner(write_request(BinaryRequest("GET", "https", "", "/x"))).status == 200


def test_a_message_that_is_no_binary_http_is_refused_inside(asked: Asked) -> None:
    answer = asked.inner(b"\x07")
    assert answer.status == 400
    assert b"the framing indicator is not that of this kind of message" in answer.content
    assert not asked.events


@pytest.mark.parametrize("size", [0, 100, 5000])
def test_answers_have_lengths_that_are_powers_of_two(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    asked = Asked(monkeypatch, "x" * size, {"Retry-After": "5"})
    answer = asked.inner(write_request(BinaryRequest("GET", "https", "", "/x")))
    assert answer == BinaryResponse(200, (("retry-after", "5"),), b"x" * size)
    assert len(asked.opened) == max(LEAST_PADDED, 8192 if size > 1024 else 0)
    asked.stepped("0")
    assert len(asked.opened) == LEAST_PADDED


# Outside


@pytest.mark.parametrize(
    ("body", "media_type", "code"),
    [
        (b"", "message/ohttp-req", 400),
        (b"x" * 100, "message/ohttp-req; a=b", 400),
        (b"{}", "application/json", 415),
        (b"{}", "", 415),
        (b"x" * (MOST_BODY_BYTES + 1), "message/ohttp-req", 413),
    ],
)
def test_what_does_not_open_is_refused_outside(asked: Asked, body: bytes, media_type: str, code: int) -> None:
    result = asked.outer(body, {"content-type": media_type})
    assert (result["statusCode"], result["headers"]["Cache-Control"]) == (code, "no-store")
    assert result["headers"]["Content-Type"] == "application/json"
    assert not asked.events


@pytest.mark.parametrize(
    ("method", "path"), [("GET", "/v1/gateway"), ("POST", "/v1/proxy/keys"), ("PUT", "/v1/gateway")]
)
def test_other_methods_are_refused_outside(asked: Asked, method: str, path: str) -> None:
    assert asked.outer(b"", {}, method, path)["statusCode"] == 404


def test_a_request_under_an_old_key_is_refused_outside(asked: Asked) -> None:
    monday = NOW - (NOW - MONDAY) % WEEK
    config = asked.gateway.epochs.current(monday)
    sealed, _ = seal_request(padded(write_request(BinaryRequest("GET", "https", "", "/x"))), config)
    codes = []
    for weeks, more in ((0, 0), (1, 0), (1, AFTER), (127, 0)):  # the id is the same after 127 weeks
        asked.now = monday + weeks * WEEK + more
        codes.append(asked.outer(sealed, {"content-type": "message/ohttp-req"})["statusCode"])
    assert codes == [200, 200, 400, 400]


def test_keys_are_41_bytes_that_anybody_may_cache(asked: Asked) -> None:
    result = asked.outer(b"", {}, "GET", "/v1/proxy/keys")
    assert len(base64.b64decode(result["body"])) == 41
    assert result["headers"] == {"Content-Type": "application/ohttp-keys", "Cache-Control": "public, max-age=3600"}
