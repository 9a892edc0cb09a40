"""`kanon doctor` looks at the key that a gateway on AWS serves."""

import json
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace

import pytest

from kanon.clock import BEFORE, MONDAY, WEEK
from kanon.findings import Finding, Verdict
from kanon.gateway.epochs import Epochs
from kanon.gateway.oblivious import KEYS_PATH
from kanon.keys import Secret
from kanon.local import Stack
from kanon.local.gateway import GatewayRequest, GatewayResponse, message
from kanon.local.server import ApiServer
from kanon.operate.gateway import examine_gateway
from kanon.operate.stacks import deployed_stack
from tests.conftest import START
from tests.integration.gate.doctor_view import doctor, seen, wrong

Answer = Callable[[GatewayRequest], GatewayResponse]


def examined(stack: Stack, answer: Answer, late: float = 0.0, *, secrets: bool = True) -> Finding:
    with closing(ApiServer(answer)) as server:
        running = replace(seen(stack), url=server.url)
        (finding,) = examine_gateway(running, stack.clock.now() + late, secrets=secrets)
    return finding


def answering(body: bytes) -> Answer:
    return lambda _: GatewayResponse(200, [("Content-Type", "application/ohttp-keys")], body)


@pytest.mark.parametrize("secrets", [True, False])
def test_the_key_of_this_week_is_good(stack: Stack, secrets: bool) -> None:
    finding = examined(stack, stack.answer, secrets=secrets)
    assert finding.verdict is Verdict.OK
    assert ("made of the secret" in finding.seen) is secrets
    assert not any(part in str(finding) for part in stack.storage.secrets.values())


def test_a_key_of_another_week_of_another_secret_or_no_key_is_wrong(stack: Stack) -> None:
    now, secret = stack.clock.now(), Secret.derived("gateway-key", stack.storage.secrets["GatewayKey"])
    assert Epochs(secret).current(now).encode() == stack.request("GET", KEYS_PATH).body
    old = Epochs(secret).current(now - WEEK).encode()
    other = Epochs(Secret.derived("gateway-key", "another")).current(now).encode()
    for answer, words in (
        (answering(old), "another week"),
        (answering(other), "not made of the secret"),
        (answering(b"<html>"), "no key"),
        (lambda _: message(404, "Not Found"), "is 404"),
        (lambda _: message(503, "Service Unavailable"), "is 503"),
    ):
        finding = examined(stack, answer)
        assert (finding.verdict, words in finding.seen) == (Verdict.FAIL, True), finding
        assert finding.page.endswith("#gatewayfailing")
    assert examined(stack, answering(other), secrets=False).verdict is Verdict.OK


def test_clocks_may_differ_at_the_end_of_a_week(new_stack: Callable[..., Stack]) -> None:
    stack = new_stack({"Gateway": "ON"}, start=START + (MONDAY - START) % WEEK - 1)
    for secrets in (True, False):
        assert examined(stack, stack.answer, BEFORE, secrets=secrets).verdict is Verdict.OK
        assert examined(stack, stack.answer, BEFORE + 2, secrets=secrets).verdict is Verdict.FAIL


def test_what_only_the_edge_may_call_or_nothing_answers_is_not_seen(stack: Stack) -> None:
    assert examined(stack, lambda _: message(403, "Forbidden")).verdict is Verdict.NOT_SEEN
    with closing(ApiServer(stack.answer)) as server:
        gone = replace(seen(stack), url=server.url)
    for running in (gone, replace(gone, url="")):
        (finding,) = examine_gateway(running, stack.clock.now(), secrets=False)
        assert finding.verdict is Verdict.NOT_SEEN


def test_a_stack_without_a_gateway_has_no_such_line(new_stack: Callable[..., Stack]) -> None:
    without = new_stack({})
    assert list(examine_gateway(seen(without), without.clock.now(), secrets=True)) == []


def test_the_command_finds_the_gateway_of_a_deployed_stack(stack: Stack) -> None:
    _, output = doctor(stack, "--json")  # https://api.test answers nobody
    assert [f["verdict"] for f in json.loads(output)["findings"] if f["check"] == "key of relays"] == ["not seen"]
    deployed = deployed_stack(stack.template.stack_name, stack.session)
    assert deployed.gateway == seen(stack).gateway
    assert deployed.gateway is not None


def test_an_interrupted_deployment_that_left_the_gateway_another_period_is_found(stack: Stack) -> None:
    stack.functions["gateway"].environment["KANON_PERIOD"] = "60"
    assert "environment" in wrong(stack)
