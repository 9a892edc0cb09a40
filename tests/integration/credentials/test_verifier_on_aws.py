"""A function of the operator says which account an attestation is of: of a device, or of a holder of its API keys."""

import base64
import io
import json
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
from botocore.awsrequest import AWSResponse
from botocore.compat import HTTPHeaders

from kanon.client import RefusedError
from kanon.client.anonymous import Attested, EnrolmentError, recovery_code
from kanon.gate.attesting import MOST_APART
from kanon.local import Stack
from tests.infrastructure.rules import VERIFIER
from tests.integration.credentials.people import TYPE
from tests.integration.credentials.test_attesting import Phone, verified
from tests.integration.credentials.test_on_aws import ENROL, ON, client_of, deployment, device, logged, rows, table
from tests.integration.gateway.test_on_aws import relay
from tests.monitor.monitor import Monitor

Function = Callable[[bytes], bytes]
KEYS = {b"key of Ada": "ada", b"key of Bo": "bo"}


class Operator:
    """The function of the operator, and what it was asked."""

    def __init__(self) -> None:
        self.arn, self.asked = VERIFIER, list[bytes]()
        self.function: Function = lambda asked: json.dumps(verified(asked)).encode()
        self.failed = False

    def answer(self, url: str, asked: bytes) -> AWSResponse:
        self.asked.append(asked)
        headers = HTTPHeaders()
        if self.failed:
            headers["X-Amz-Function-Error"] = "Unhandled"
        return AWSResponse(url, 200, headers, io.BytesIO(self.function(asked)))  # type: ignore[arg-type]


@pytest.fixture
def operator(monkeypatch: pytest.MonkeyPatch) -> Operator:
    made, invoked = Operator(), Stack._invoked

    def answered(stack: Stack, request: Any, **more: Any) -> Any:
        if unquote(request.url).split("/functions/")[1].split("/")[0] == made.arn:
            return made.answer(request.url, request.body)
        return invoked(stack, request, **more)

    monkeypatch.setattr(Stack, "_invoked", answered)
    return made


@pytest.fixture
def stack(operator: Operator, new_stack: Callable[..., Stack]) -> Stack:
    return new_stack({**ON, "EnrolAuth": "VERIFIER", "EnrolVerifier": VERIFIER})


def attested(stack: Stack, phone: Phone, late: float = 0) -> Attested:
    return Attested(deployment(stack), phone.attest, now=lambda: stack.clock.now() - late)


def test_a_device_is_one_person_who_joins_and_leaves(stack: Stack, address: str, tmp_path: Path) -> None:
    code, phone = recovery_code(), Phone()
    with relay(stack, address) as through:
        for name in ("one", "two"):
            one = device(stack, tmp_path / name)
            one.enrol(address, auth=attested(stack, phone), relay=through, direct=True, recovery=code)
            with client_of(stack, address, one, through) as client:
                client.join(TYPE, "a value")
        assert len(rows(stack)) == 1
        with pytest.raises(EnrolmentError):
            device(stack, tmp_path / "three").enrol(address, auth=attested(stack, phone), relay=through, direct=True)
        one.delete(address, auth=attested(stack, phone), relay=through, direct=True)
    (row,) = table(stack, "Accounts")
    assert row["deleted"] == {"BOOL": True}


def test_holders_of_keys_of_the_operator_are_accounts(
    stack: Stack, address: str, operator: Operator, tmp_path: Path
) -> None:
    def holder(asked: bytes) -> bytes:
        key = base64.urlsafe_b64decode(json.loads(asked)["attestation"] + "==")
        return json.dumps({"account": KEYS.get(key)}).encode()

    operator.function = holder
    for key, accounts in ((b"key of Ada", 1), (b"key of Bo", 2), (b"key of nobody", 2)):
        auth = Attested(deployment(stack), lambda _, key=key: key, now=stack.clock.now)  # type: ignore[misc]
        with nullcontext() if key in KEYS else pytest.raises(RefusedError, match="401"):
            device(stack, tmp_path / key.decode()).enrol(address, auth=auth)
        assert len(table(stack, "Accounts")) == accounts


@pytest.mark.parametrize(
    ("wrong", "asked"),
    [
        (lambda stack, phone: attested(stack, phone, late=MOST_APART + 1), 0),
        (lambda stack, _: attested(stack, Phone(app=b"another app".ljust(32))), 1),
        (lambda stack, phone: Attested("another deployment", phone.attest, now=stack.clock.now), 1),
        (lambda *_: lambda *__: {}, 0),
    ],
)
def test_what_the_function_does_not_accept_is_refused(
    stack: Stack, address: str, operator: Operator, tmp_path: Path, wrong: Any, asked: int
) -> None:
    one, auth = device(stack, tmp_path / "one"), wrong(stack, Phone())
    with pytest.raises(RefusedError, match="401"):
        one.enrol(address, auth=auth)
    assert (len(operator.asked), table(stack, "Accounts")) == (asked, [])


@pytest.mark.parametrize("answer", [b"", b"{", b"{}", b'{"account": 1}', b'{"account": "a", "more": 1}', b"x" * 5000])
@pytest.mark.parametrize("failed", [False, True])
def test_without_a_verdict_nobody_enrols(stack: Stack, operator: Operator, answer: bytes, failed: bool) -> None:
    operator.function, operator.failed = (lambda _: b'{"account": "a"}' if failed else answer), failed
    headers = {**attested(stack, Phone())("GET", "", b"", {})}
    assert stack.request("GET", ENROL, None, {"authorization": headers["Authorization"]}).status == 503
    assert table(stack, "Accounts") == []
    assert b"verifier" not in logged(stack).encode()


def test_another_function_is_refused_and_another_alias_is_not(stack: Stack, operator: Operator) -> None:
    """Another one may give everybody a second account."""
    operator.function = lambda _: b'{"account": "a"}'
    headers = {**attested(stack, Phone())("GET", "", b"", {})}
    alias, other = VERIFIER.removesuffix(":live"), VERIFIER.replace(":verifier:", ":other:")
    for arn, status in ((VERIFIER, 404), (alias, 404), (other, 503), (VERIFIER, 404)):
        operator.arn = stack.functions["issuer"].environment["KANON_ENROL_VERIFIER"] = arn
        stack.restart("issuer")
        assert stack.request("GET", ENROL, None, {"authorization": headers["Authorization"]}).status == status
    assert len(Monitor.of(stack).look()) == 2  # the role may call neither of the others


def test_a_signature_names_nobody(stack: Stack, operator: Operator) -> None:
    """API Gateway checks nothing on these routes, so what it would say of a caller counts for nothing."""
    event = {
        "version": "2.0", "rawPath": ENROL, "headers": {},
        "requestContext": {
            "stage": "$default", "http": {"method": "GET", "path": ENROL}, "authorizer": {"iam": {"userId": "A"}}
        },
    }  # fmt: skip
    assert stack.invoke("issuer", event)["statusCode"] == 401
    assert operator.asked == []


def test_the_issuer_may_call_the_function_and_no_other(stack: Stack, operator: Operator) -> None:
    headers = {**attested(stack, Phone())("GET", "", b"", {})}
    assert stack.request("GET", ENROL, None, {"authorization": headers["Authorization"]}).status == 404
    assert len(operator.asked) == 1
    calls = [call for call in Monitor.of(stack).calls if call.function == "issuer" and "Invoke" in call.action]
    assert [call.resource for call in calls] == [VERIFIER]
    allowed = [each.resource for each in Monitor.of(stack).allowed["issuer"] if "Invoke" in each.action]
    assert allowed == [VERIFIER]
