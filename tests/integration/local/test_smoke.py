"""The checks of a deployment (`make smoke`), over HTTP against the local stack behind a gateway that wants signatures.

The gateway here computes a signature as API Gateway does, so the received request is checked. Only a real deployment
shows that API Gateway reads a path with a colon in the same way.
"""

import contextlib
import dataclasses
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from infra import smoke
from kanon.http.origin import RELAYED
from kanon.local import Stack
from kanon.local.gateway import GatewayRequest, GatewayResponse, message
from kanon.local.server import ApiServer
from tests.integration.credentials.people import TYPES

KEY = Credentials("caller", "the caller's secret")
START = 1_700_000_000.0
REFUSED = message(403, "Forbidden")
Gateway = Callable[[GatewayRequest], GatewayResponse]


def is_signed(request: GatewayRequest) -> bool:
    """Whether a request carries the signature that its method, path, headers and body give under KEY."""
    headers = dict(request.headers)
    if "x-amz-date" not in headers or "authorization" not in headers:
        return False
    names = headers["authorization"].partition("SignedHeaders=")[2].partition(",")[0].split(";")
    again = AWSRequest(
        request.method,
        f"http://{headers['host']}{request.target}",
        {name: headers[name] for name in names if name != "x-amz-date"},
        request.body,
    )
    again.context["timestamp"] = headers["x-amz-date"]
    signer = SigV4Auth(KEY, "execute-api", "eu-central-1")
    again.headers["X-Amz-Date"] = headers["x-amz-date"]
    signature = signer.signature(signer.string_to_sign(again, signer.canonical_request(again)), again)
    return headers["authorization"].endswith(f"Signature={signature}")


def guarded(answer: Gateway, *, joins_open: bool) -> Gateway:
    """A gateway in front that asks for signatures where the template does."""

    def gateway(request: GatewayRequest) -> GatewayResponse:
        joins, batches = request.target.endswith("join"), request.target.endswith(("batchJoin", "batchQuery"))
        wanted = request.method == "POST" and (batches or (joins and not joins_open))
        return answer(request) if not wanted or is_signed(request) else REFUSED

    return gateway


@contextlib.contextmanager
def served(answer: Gateway) -> Iterator[str]:
    server = ApiServer(answer)
    try:
        yield server.url
    finally:
        server.close()


def verdicts(answer: Gateway, credentials: Credentials | None = KEY) -> dict[str, str]:
    with served(answer) as url:
        results = list(smoke.run(smoke.Service(url, credentials, "eu-central-1")))
    return {result.name: result.verdict for result in results}


def failing(answer: Gateway, credentials: Credentials | None = KEY) -> set[str]:
    return {name for name, verdict in verdicts(answer, credentials).items() if verdict == "FAIL"}


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    with Stack(start=START) as running:
        yield running


@pytest.fixture(scope="module")
def relayed() -> Iterator[Stack]:
    given = {"Gateway": "ON", "RelayAuth": "OPEN", "JoinAuth": "OPEN"}
    with Stack(given, start=START) as running:
        yield running


@pytest.mark.parametrize("joins_open", [True, False])
def test_a_correct_service_passes_every_check(relayed: Stack, joins_open: bool) -> None:
    assert verdicts(guarded(relayed.answer, joins_open=joins_open)) == {
        **dict.fromkeys(smoke.CHECKS, "ok"),
        "credentials": "skip",
    }


@pytest.mark.parametrize("gateway", [{}, {"Gateway": "ON"}], ids=["none", "with a secret"])
def test_relays_are_not_checked_without_a_gateway_or_its_secret(gateway: dict[str, str]) -> None:
    with Stack(gateway, start=START) as running:
        found = verdicts(guarded(running.answer, joins_open=True))
    assert [name for name, verdict in found.items() if verdict != "ok"] == ["relays", "credentials"]
    assert found["relays"] == "skip"


def test_a_gateway_that_answers_wrongly_fails_its_check(relayed: Stack) -> None:
    for path, wrong in (("/v1/proxy/keys", b"a key"), ("/v1/gateway", b"no answer")):

        def spoiled(request: GatewayRequest, path: str = path, wrong: bytes = wrong) -> GatewayResponse:
            answer = guarded(relayed.answer, joins_open=True)(request)
            return dataclasses.replace(answer, body=wrong) if request.target == path else answer

        assert failing(spoiled) == {"relays"}


def test_joins_that_stop_behind_the_gateway_fail_its_check(relayed: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    invoke = relayed.invoke

    def stopped(name: str, event: Any) -> Any:
        through = name == "join" and event["requestContext"].get(RELAYED)
        return {"statusCode": 403, "headers": {}, "body": "{}"} if through else invoke(name, event)

    monkeypatch.setattr(relayed, "invoke", stopped)
    assert failing(guarded(relayed.answer, joins_open=True)) == {"relays"}


@pytest.fixture(scope="module")
def issuing() -> Iterator[Stack]:
    with Stack({"Types": json.dumps(TYPES), "Gateway": "ON", "RelayAuth": "OPEN"}, start=START) as running:
        yield running


def of_credentials(answer: Gateway) -> smoke.Result:
    with served(answer) as url:
        service = smoke.Service(url, KEY, "eu-central-1")
        (found,) = (each for each in smoke.run(service) if each.name == "credentials")
    return found


def test_the_key_of_an_issuer_is_checked_and_nobody_enrols(issuing: Stack) -> None:
    assert of_credentials(issuing.answer) == smoke.Result("credentials", "ok", "accounts are named by signatures")
    table = issuing.storage.tables["Accounts"]
    assert issuing.session.client("dynamodb").scan(TableName=table)["Items"] == []


@pytest.mark.parametrize(
    ("path", "changes", "seen"),
    [
        ("/v1/credentials/keys", {"sha256": "0" * 64}, "SHA-256"),
        ("/v1/credentials/keys", {"epoch": 1}, "week 1"),
        ("/v1/credentials", {}, "without a signature"),
    ],
)
def test_a_wrong_issuer_fails_its_check(issuing: Stack, path: str, changes: dict[str, Any], seen: str) -> None:
    def spoiled(request: GatewayRequest) -> GatewayResponse:
        answer = issuing.answer(request)
        if request.target != path:
            return answer
        return dataclasses.replace(answer, status=200, body=json.dumps({**json.loads(answer.body), **changes}).encode())

    found = of_credentials(spoiled)
    assert (found.verdict, seen in found.remark) == ("FAIL", True), found


def test_without_credentials_what_must_be_signed_is_skipped(stack: Stack) -> None:
    found = verdicts(guarded(stack.answer, joins_open=False), None)
    skipped = {"join", "join with %3A", "join as browsers send it", "batchJoin", "batchQuery"}
    assert {name for name, verdict in found.items() if verdict == "skip"} == skipped | {"relays", "credentials"}
    assert {name for name, verdict in found.items() if verdict == "FAIL"} == set()


def test_a_wrong_key_fails_the_checks_that_need_it(stack: Stack) -> None:
    another = Credentials("caller", "another secret")
    assert failing(guarded(stack.answer, joins_open=False), another) >= {"join", "batchJoin"}


def test_batches_without_authorisation_fail_the_check(stack: Stack) -> None:
    assert failing(stack.answer) == {"batchJoin refused unsigned", "batchQuery"}


def forget_header(response: GatewayResponse, name: str) -> GatewayResponse:
    return dataclasses.replace(response, headers=[(k, v) for k, v in response.headers if k.lower() != name])


@pytest.mark.parametrize(
    ("spoil", "failed"),
    [
        (lambda q, r: forget_header(r, "cache-control"), {"query", "one set", "errors"}),
        (lambda q, r: forget_header(r, "content-security-policy"), {"page"}),
        (
            lambda q, r: message(404, "Not Found") if q.target.endswith(":join") else r,
            {"join", "join as browsers send it", "errors"},
        ),
        (lambda q, r: message(404, "Not Found") if "%3A" in q.target else r, {"join with %3A"}),
        (
            lambda q, r: GatewayResponse(200, r.headers, r.body.replace(b'"kAnonymous":false', b'"kAnonymous":true')),
            {"one set", "errors", "relays", "credentials"},
        ),
        (
            lambda q, r: dataclasses.replace(r, body=b'{"openapi":"3.1.0","paths":{}}') if "openapi" in q.target else r,
            {"description"},
        ),
    ],
    ids=["cache headers", "page policy", "colon path", "escaped colon", "wrong answer", "other version"],
)
def test_each_planted_problem_fails_its_check(
    stack: Stack, spoil: Callable[[GatewayRequest, GatewayResponse], GatewayResponse], failed: set[str]
) -> None:
    sound = guarded(stack.answer, joins_open=True)

    def spoiled(request: GatewayRequest) -> GatewayResponse:
        answer = sound(request)
        return answer if answer.status == 403 else spoil(request, answer)

    assert failing(spoiled) == failed


def test_an_address_without_a_server_fails_at_once() -> None:
    with served(lambda request: REFUSED) as url:
        pass
    (only,) = smoke.run(smoke.Service(url))
    assert str(only).startswith("FAIL  types: no answer")


@pytest.mark.parametrize("url", ["kanon.example.org", "http://kanon.example.org", "https://", "https://a.example/?x=1"])
def test_text_that_is_not_the_address_of_a_deployment_is_refused(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert smoke.main([url]) == 2
    assert "https://" in capsys.readouterr().err


def test_the_command_prints_a_line_for_each_check_and_fails_if_one_does(
    stack: Stack, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY.access_key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", KEY.secret_key)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-central-1")
    with served(guarded(stack.answer, joins_open=False)) as url:
        assert smoke.main([url]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == "0 failed, 2 skipped"  # relays, credentials
    assert [line[:5].strip() for line in lines[:-1]] == ["ok"] * (len(smoke.CHECKS) - 2) + ["skip"] * 2
    with served(stack.answer) as url:
        assert smoke.main([url]) == 1
    assert "FAIL  batchJoin refused unsigned: answered" in capsys.readouterr().out


def test_the_region_is_read_from_the_address_of_the_gateway() -> None:
    address = "https://abc123.execute-api.ap-south-1.amazonaws.com"
    assert smoke.Service(address, region="eu-central-1").region == "ap-south-1"
    assert smoke.Service(f"{address}/").url == address
