"""A stack with an edge answers only requests that carry the secret of the edge."""

import hmac
import json
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
from botocore.exceptions import ClientError

from kanon.errors import ConfigurationError
from kanon.http.bodies import RequestError
from kanon.http.origin import HEADER, SECONDS_KEPT, Origin
from kanon.keys import fetch_header_values
from kanon.local import Stack

WITH_EDGE = {
    "DomainName": "kanon.example.org",
    "CertificateArn": "arn:aws:acm:us-east-1:123456789012:certificate/1",
    "Edge": "SEPARATE",
    "EdgeDomainName": "d111111abcdef8.cloudfront.net",
}
SET = "/v1/types/fledge/sets/YWJj"
REQUESTS: list[tuple[str, str, Any]] = [
    ("POST", f"{SET}:join", {"client": "a"}),
    ("POST", "/v1:batchJoin", {"joins": [{"type": "fledge", "set": "YWJj", "client": "a"}]}),
    ("GET", SET, None),
    ("POST", "/v1:query", {"setsForType": [{"type": "fledge", "hashes": ["YWJj"]}]}),
    ("POST", "/v1:batchQuery", {"setsForType": [{"type": "fledge", "hashes": ["YWJj"]}]}),
    ("POST", "/v1:validateHashes", {"sets": [{"type": "fledge", "hashes": ["YWJj"]}]}),
    ("GET", "/v1/types", None),
    ("GET", "/v1/types/fledge", None),
    ("GET", "/openapi.json", None),
    ("GET", "/docs", None),
]


def sent_by_the_edge(stack: Stack) -> dict[str, str]:
    return {HEADER: json.loads(stack.storage.secrets["EdgeSecret"])["current"]}


def test_every_route_refuses_a_request_past_the_edge_and_answers_one_through_it(
    new_stack: Callable[..., Stack],
) -> None:
    stack = new_stack(WITH_EDGE)
    through = sent_by_the_edge(stack)
    for method, target, body in REQUESTS:
        for headers in ({}, {HEADER: ""}, {HEADER: "x" * 64}, {HEADER: through[HEADER][:-1]}):
            answer = stack.request(method, target, body, headers)
            assert (answer.status, answer.header("cache-control")) == (403, "no-store"), (target, headers)
            assert answer.json()["error"]["status"] == "PERMISSION_DENIED"
    assert stack.session.client("dynamodb").scan(TableName=stack.storage.tables["StepLog"])["Count"] == 0
    for method, target, body in REQUESTS:
        assert stack.request(method, target, body, through).status == 200, target
    assert len(REQUESTS) == len(stack.gateway.routes)


def test_a_new_value_is_known_within_five_minutes_and_both_are_accepted_meanwhile(
    new_stack: Callable[..., Stack],
) -> None:
    stack = new_stack(WITH_EDGE)
    old = sent_by_the_edge(stack)
    assert stack.request("GET", SET, None, old).status == 200
    secrets = stack.session.client("secretsmanager")
    name = stack.template.resolve({"Ref": "EdgeSecret"})
    secrets.put_secret_value(SecretId=name, SecretString=json.dumps({"current": "n" * 64, "previous": old[HEADER]}))
    assert stack.request("GET", SET, None, {HEADER: "n" * 64}).status == 403
    stack.advance(SECONDS_KEPT)
    assert [stack.request("GET", SET, None, {HEADER: value}).status for value in ("n" * 64, old[HEADER])] == [200, 200]
    secrets.put_secret_value(SecretId=name, SecretString=json.dumps({"current": "n" * 64}))
    stack.advance(SECONDS_KEPT)
    assert [stack.request("GET", SET, None, {HEADER: value}).status for value in ("n" * 64, old[HEADER])] == [200, 403]


def test_without_an_edge_the_header_means_nothing(stack: Stack) -> None:
    assert "EdgeSecret" not in stack.storage.secrets
    assert stack.request("GET", SET, None, {HEADER: "anything"}).status == 200


def test_the_comparison_takes_the_same_time_for_every_value(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = mock.Mock(wraps=hmac.compare_digest)
    monkeypatch.setattr(hmac, "compare_digest", compared)
    origin = Origin(lambda: ("first", "second"))
    for given in ("first", "second"):
        origin.check({"headers": {HEADER: given}})
        assert compared.call_count == 2
        compared.reset_mock()
    for headers in ({HEADER: "third"}, {}, None):
        with pytest.raises(RequestError):
            origin.check({"headers": headers})
        assert compared.call_count == 2
        compared.reset_mock()


@pytest.mark.parametrize("text", ["", "secret", "[]", "{}", '{"current": ""}', '{"current": 7}'])
def test_a_secret_of_another_form_is_refused_and_no_request_passes(text: str) -> None:
    client = mock.Mock()
    client.get_secret_value.return_value = {"SecretString": text}
    with pytest.raises(ConfigurationError, match="the edge secret must be a JSON object"):
        fetch_header_values(client, "arn", "edge secret")


def test_a_secret_that_cannot_be_read_is_a_503(new_stack: Callable[..., Stack]) -> None:
    stack = new_stack(WITH_EDGE)
    through = sent_by_the_edge(stack)
    denied = ClientError({"Error": {"Code": "AccessDeniedException", "Message": ""}}, "GetSecretValue")
    with mock.patch("botocore.client.BaseClient._make_api_call", side_effect=denied):
        answer = stack.request("GET", SET, None, through)
    assert (answer.status, answer.header("retry-after")) == (503, "5")


def test_a_secret_of_another_form_is_a_503_and_read_once_a_minute(new_stack: Callable[..., Stack]) -> None:
    stack = new_stack(WITH_EDGE)
    through, secrets = sent_by_the_edge(stack), stack.session.client("secretsmanager")
    name = stack.template.resolve({"Ref": "EdgeSecret"})
    secrets.put_secret_value(SecretId=name, SecretString="no object")
    query = stack._warm["query"] = stack.cold_start("query")
    calls: list[str] = []
    query._process.session.events.register("provide-client-params", lambda model, **_: calls.append(model.name))
    for minute in (1, 2):
        for headers in [through, {}] * 10:
            answer = stack.request("GET", SET, None, headers)
            assert (answer.status, answer.header("retry-after")) == (503, "5")
        assert calls == ["GetSecretValue"] * minute
        stack.advance(60)
    assert '"message":"configuration refused"' in stack.logs.getvalue()  # type: ignore[attr-defined]
    secrets.put_secret_value(SecretId=name, SecretString=json.dumps({"current": through[HEADER]}))
    assert stack.request("GET", SET, None, through).status == 200
