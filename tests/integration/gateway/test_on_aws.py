"""Relays of the service on AWS: `gateway` decrypts, and `join` and `query` answer. Clients call over HTTP."""

import hmac
import json
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, nullcontext
from typing import Any
from unittest import mock

import pytest
from botocore.exceptions import ClientError, EndpointConnectionError

from kanon.client import Client, RefusedError, SetId
from kanon.gateway.binary_http import BinaryResponse, read_response
from kanon.gateway.oblivious import GATEWAY_PATH, KEYS_PATH, REQUEST_TYPE, read_config, seal_request
from kanon.http import origin
from kanon.http.bodies import RequestError
from kanon.http.origin import HEADER, RELAY_HEADER, relays_of
from kanon.local import Stack
from kanon.local.functions import FunctionError
from tests.integration.gate.test_behind_an_edge import WITH_EDGE
from tests.integration.gateway.relayed import JOIN, Relay, inner
from tests.monitor.monitor import Monitor

PERIOD = 3600
SET = SetId("aGVsbG8")
QUERY = json.dumps({"setsForType": [{"type": "fledge", "hashes": ["aGVsbG8="]}]}).encode()
BATCH = json.dumps({"joins": [{"type": "fledge", "set": "aGVsbG8", "client": "me"}]}).encode()
OPEN = {"Gateway": "ON", "RelayAuth": "OPEN", "JoinAuth": "OPEN"}
CASES = [{"Gateway": "ON"}, OPEN]


def secret_of(stack: Stack) -> dict[str, str]:
    """The header that a relay sends."""
    given = stack.storage.secrets.get("RelaySecret")
    return {RELAY_HEADER: json.loads(given)["current"]} if given else {}


def outer(stack: Stack, body: bytes, headers: dict[str, str] | None = None) -> Any:
    """The outer answer to a sealed request."""
    given = secret_of(stack) if headers is None else headers
    return stack.request("POST", GATEWAY_PATH, body, {"content-type": REQUEST_TYPE, **given})


def sent(stack: Stack, message: bytes, headers: dict[str, str] | None = None) -> BinaryResponse:
    """The inner answer to an inner request."""
    sealed, exchange = seal_request(message, read_config(stack.request("GET", KEYS_PATH, headers=headers).body))
    answer = outer(stack, sealed, headers)
    assert (answer.status, answer.header("content-type")) == (200, "message/ohttp-res")
    return read_response(exchange.open(answer.body))


def join(stack: Stack, client: str = "me", step: int | None = None, **fields: str) -> bytes:
    named = int(stack.clock.now()) // PERIOD if step is None else step
    given = {"content_type": "application/json", "kanon_step": str(named), **fields}
    return inner("POST", JOIN, b'{"client": "%b"}' % client.encode(), **given)


def rows(stack: Stack) -> int:
    """The joins in the log."""
    count: int = stack.session.client("dynamodb").scan(TableName=stack.storage.tables["StepLog"])["Count"]
    return count


@contextmanager
def relay(stack: Stack, url: str) -> Iterator[str]:
    """The address of a relay that forwards bodies and adds the secret."""
    with closing(Relay(url, secret_of(stack))) as made:
        yield made.url


@contextmanager
def client_of(stack: Stack) -> Iterator[Client]:
    with (
        closing(stack.serve()) as server,
        relay(stack, server.url) as address,
        Client(server.url, relay=address, sleep=lambda _: None) as client,
    ):
        client._connection._relaying.now = stack.clock.now  # type: ignore[union-attr]
        yield client


@pytest.mark.parametrize("parameters", CASES)
def test_a_set_turns_true_by_joins_of_clients_of_a_relay(
    new_stack: Callable[..., Stack], parameters: dict[str, str]
) -> None:
    stack = new_stack(parameters)
    with client_of(stack) as client:
        for number in range(200):
            client.join("fledge", SET, f"client-{number}")
        assert rows(stack) == 200
        stack.advance(3 * PERIOD)
        assert client.is_shared("fledge", [SET, "rare"]) == {SET}
        assert client.status("fledge", SET).k_anonymous
        assert client.types()
    assert {call.action for call in Monitor.of(stack).calls if call.function == "gateway"} == {
        "lambda:InvokeFunction",
        "secretsmanager:GetSecretValue",
    }
    assert not stack.failures


def test_the_key_is_public_and_a_relay_shows_its_secret(stack: Stack) -> None:
    with closing(stack.serve()) as server, urllib.request.urlopen(f"{server.url}{KEYS_PATH}") as answer:
        assert (answer.headers["Content-Type"], len(answer.read())) == ("application/ohttp-keys", 41)
    sealed, _ = seal_request(join(stack), read_config(stack.request("GET", KEYS_PATH).body))
    right = secret_of(stack)
    for headers in ({}, {RELAY_HEADER: ""}, {RELAY_HEADER: right[RELAY_HEADER][:-1]}, {HEADER: right[RELAY_HEADER]}):
        answer = outer(stack, sealed, headers)
        assert (answer.status, answer.header("cache-control")) == (403, "no-store")
        assert answer.json()["error"]["status"] == "PERMISSION_DENIED"
    assert rows(stack) == 0
    assert outer(stack, sealed).status == 200
    assert rows(stack) == 1


def test_a_recorded_join_counts_in_its_step_alone(stack: Stack) -> None:
    message = join(stack)
    assert [sent(stack, message).status for _ in range(3)] == [200] * 3
    assert rows(stack) == 1
    stack.advance(2 * PERIOD)
    assert sent(stack, message).status == 400
    assert rows(stack) == 1


@pytest.mark.parametrize(("parameters", "status"), [({"Gateway": "ON"}, 200), (OPEN, 404)])
def test_batches_go_through_only_if_relays_authenticate(
    new_stack: Callable[..., Stack], parameters: dict[str, str], status: int
) -> None:
    stack = new_stack(parameters)
    fields = {"content_type": "application/json", "kanon_step": str(int(stack.clock.now()) // PERIOD)}
    assert sent(stack, inner("POST", "/v1:batchJoin", BATCH, **fields)).status == status
    assert sent(stack, inner("POST", "/v1:batchQuery", QUERY, **fields)).status == status
    assert rows(stack) == (status == 200)


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v1/types/fledge/sets/aGVsbG8", 200),
        ("GET", "/v1/types/fledge/sets/aGVsbG8:join", 404),
        ("POST", "/v1/types/unknown/sets/aGVsbG8:join", 404),
        ("POST", "/v1:query?key=x", 200),
        ("POST", "/v1:validateHashes", 400),
        ("GET", "/openapi.json", 404),
        ("POST", "/v1/gateway", 404),
        ("POST", "/v1alpha/createJob", 404),
    ],
)
def test_errors_of_the_service_are_inside(stack: Stack, method: str, path: str, status: int) -> None:
    fields = {"content_type": "application/json", "kanon_step": str(int(stack.clock.now()) // PERIOD)}
    body = b'{"client": "me"}' if path.endswith(":join") else QUERY if method == "POST" else b""
    assert sent(stack, inner(method, path, body, **fields)).status == status


@pytest.mark.parametrize(
    ("body", "kind", "status"),
    [(b"", REQUEST_TYPE, 400), (b"x" * 200, REQUEST_TYPE, 400), (b"{}", "application/json", 415)],
)
def test_what_does_not_open_is_refused_outside(stack: Stack, body: bytes, kind: str, status: int) -> None:
    assert stack.request("POST", GATEWAY_PATH, body, {"content-type": kind, **secret_of(stack)}).status == status


def test_nothing_of_the_outer_request_and_no_identity_reaches_the_functions(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[str, Any]] = []
    invoke = stack.invoke
    monkeypatch.setattr(stack, "invoke", lambda name, event: (seen.append((name, event)), invoke(name, event))[1])
    marked = {**secret_of(stack), "user-agent": "marked", "x-forwarded-for": "192.0.2.7", "cookie": "marked"}
    assert sent(stack, join(stack, authorization="Bearer marked", x_other="marked"), marked).status == 200
    (name, event), *more = [(name, event) for name, event in seen if name != "gateway"]
    assert (name, more) == ("join", [])
    assert event["headers"] == {"content-type": "application/json"}
    assert set(event) == {
        *("version", "rawPath", "rawQueryString", "queryStringParameters", "headers", "requestContext"),
        *("body", "isBase64Encoded"),
    }
    http = {"method": "POST", "path": JOIN}
    assert event["requestContext"] == {"stage": "$default", "http": http, "relayed": True}
    assert "marked" not in json.dumps(event) + stack.logs.getvalue()  # type: ignore[attr-defined]


def test_with_another_method_the_path_of_a_join_does_not_lead_to_join(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen, invoke = list[str](), stack.invoke
    monkeypatch.setattr(stack, "invoke", lambda name, event: (seen.append(name), invoke(name, event))[1])
    step = str(int(stack.clock.now()) // PERIOD)
    assert [sent(stack, inner(method, JOIN, kanon_step=step)).status for method in ("GET", "DELETE")] == [404, 404]
    assert "join" not in seen


def test_behind_an_edge_the_gateway_alone_looks_for_its_header(new_stack: Callable[..., Stack]) -> None:
    stack = new_stack({**WITH_EDGE, "Gateway": "ON"})
    through = {HEADER: json.loads(stack.storage.secrets["EdgeSecret"])["current"]}
    assert stack.request("GET", KEYS_PATH).status == 403
    sealed, _ = seal_request(join(stack), read_config(stack.request("GET", KEYS_PATH, headers=through).body))
    assert outer(stack, sealed, secret_of(stack)).status == 403
    assert outer(stack, sealed, through).status == 403
    assert rows(stack) == 0
    assert sent(stack, join(stack), {**through, **secret_of(stack)}).status == 200
    assert sent(stack, inner("GET", "/v1/types"), {**through, **secret_of(stack)}).status == 200
    assert rows(stack) == 1


def test_a_caller_over_http_cannot_say_that_the_gateway_has_checked(new_stack: Callable[..., Stack]) -> None:
    stack = new_stack({**WITH_EDGE, "Gateway": "ON"})
    for headers in ({"relayed": "true"}, {"requestContext": '{"relayed": true}'}):
        assert stack.request("POST", JOIN, {"client": "me", "relayed": True}, headers).status == 403
    assert rows(stack) == 0


@pytest.mark.parametrize(
    ("raised", "status"), [(EndpointConnectionError(endpoint_url="a"), 503), (FunctionError(ValueError()), 500)]
)
def test_a_function_that_gives_no_answer_is_an_error_inside(
    stack: Stack, monkeypatch: pytest.MonkeyPatch, raised: Exception, status: int
) -> None:
    invoke = stack.invoke

    def failing(name: str, event: Any) -> Any:
        if name == "gateway":
            return invoke(name, event)
        raise raised

    monkeypatch.setattr(stack, "invoke", failing)
    assert sent(stack, inner("GET", "/v1/types")).status == status
    assert '"RelayedCallsFailed"' in stack.logs.getvalue()  # type: ignore[attr-defined]


def test_without_a_gateway_there_is_no_route_and_no_function(new_stack: Callable[..., Stack]) -> None:
    stack = new_stack()
    assert "gateway" not in stack.functions
    assert stack.request("GET", KEYS_PATH).status == 404
    assert outer(stack, b"x").status == 404


def test_a_client_learns_that_its_relay_is_unknown(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(stack.storage.secrets, "RelaySecret", json.dumps({"current": "another"}))
    with client_of(stack) as client, pytest.raises(RefusedError, match="403"):
        client.join("fledge", SET, "me")
    assert rows(stack) == 0


def test_a_relay_is_compared_in_the_same_time_for_every_value(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = mock.Mock(wraps=hmac.compare_digest)
    monkeypatch.setattr(hmac, "compare_digest", compared)
    monkeypatch.setattr(origin, "_values_of", lambda secret, what: ("first", "second"))
    relays = relays_of("arn")
    assert relays is not None
    for given in ("first", "second", "third", ""):
        with nullcontext() if given in ("first", "second") else pytest.raises(RequestError, match="relay"):
            relays.check({"headers": {RELAY_HEADER: given, HEADER: "first"}})
        assert compared.call_count == 2
        compared.reset_mock()
    assert relays_of("") is None


def test_a_secret_that_cannot_be_read_is_an_error_outside(stack: Stack) -> None:
    denied = ClientError({"Error": {"Code": "AccessDeniedException", "Message": ""}}, "GetSecretValue")
    with mock.patch("botocore.client.BaseClient._make_api_call", side_effect=denied):
        answers = [stack.request("GET", KEYS_PATH), outer(stack, b"x")]
    assert [(answer.status, answer.header("retry-after")) for answer in answers] == [(503, "5")] * 2
    assert stack.logs.getvalue().count('"RelayedCallsFailed"') >= 2  # type: ignore[attr-defined]


def test_a_throttled_function_is_a_503_inside(stack: Stack) -> None:
    sealed, exchange = seal_request(inner("GET", "/v1/types"), read_config(stack.request("GET", KEYS_PATH).body))
    assert outer(stack, sealed).status == 200
    throttled = ClientError({"Error": {"Code": "TooManyRequestsException", "Message": ""}}, "Invoke")
    with mock.patch("botocore.client.BaseClient._make_api_call", side_effect=throttled):
        answer = outer(stack, sealed)
    found = read_response(exchange.open(answer.body))
    assert (answer.status, found.status, dict(found.fields)["retry-after"]) == (200, 503, "5")
