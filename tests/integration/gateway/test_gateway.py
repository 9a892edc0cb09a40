"""Joins and queries through the gateway of the service on one machine."""

import json
from pathlib import Path

import pytest

from kanon.client.connection import HttpAnswer
from kanon.gateway.oblivious import seal_request
from tests.integration.gateway.relayed import config, inner, join, outer, sent
from tests.integration.serving.machine import KEYS, NO_PAGES, NO_REPORTS, PERIOD, TYPES, Machine, machine

SET = "/v1/types/fledge/sets/aGVsbG8"
QUERY = json.dumps({"setsForType": [{"type": "fledge", "hashes": ["aGVsbG8=", "AA=="]}]}).encode()


def _rows(served: Machine) -> list[int]:
    """The rows of the log in the step before, and in the current one."""
    step = int(served.now // PERIOD)
    return [served.directory.log.count(step - 1), served.directory.log.count(step)]


def test_a_join_gets_the_step_of_its_receipt(served: Machine) -> None:
    assert sent(served, join(served)).content == b"{}"
    assert _rows(served) == [0, 1]
    served.now += PERIOD
    assert sent(served, join(served, "another", int(served.now // PERIOD) - 1)).status == 200
    assert _rows(served) == [1, 1]


def test_a_recorded_join_counts_once_in_its_step_and_not_later(served: Machine) -> None:
    message = join(served)
    assert [sent(served, message).status for _ in range(3)] == [200] * 3
    assert _rows(served) == [0, 1]
    served.now += 2 * PERIOD
    assert sent(served, message).status == 400
    assert _rows(served) == [0, 0]


def test_a_set_turns_true_by_joins_through_the_gateway(served: Machine) -> None:
    for number in range(200):
        assert sent(served, join(served, f"client-{number}")).status == 200
    served.evaluate()
    answer = json.loads(sent(served, inner("GET", SET)).content)
    assert answer["kAnonymous"] is True
    assert json.loads(served.request("GET", SET).body) == answer


def test_a_batch_through_the_gateway_is_logged_as_today(served: Machine) -> None:
    body = json.dumps({"joins": [{"type": "fledge", "set": name, "client": "me"} for name in ("AA", "AQ", "")]})
    fields = {"content_type": "application/json", "kanon_step": str(int(served.now // PERIOD))}
    refused = sent(served, inner("POST", "/v1:batchJoin", body.encode(), **fields))
    signed = sent(served, inner("POST", "/v1:batchJoin", body.encode(), authorization=f"Bearer {served.key}", **fields))
    assert (refused.status, signed.status) == (401, 200)
    assert [sorted(result) for result in json.loads(signed.content)["results"]] == [[], [], ["error"]]
    assert _rows(served) == [0, 2]


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "/v1/types", b""),
        ("GET", "/v1/types/fledge", b""),
        ("GET", "/v1/types/unknown", b""),
        ("GET", SET, b""),
        ("GET", "/v1/types/fledge/sets/=", b""),
        ("POST", "/v1:query", QUERY),
        ("POST", "/v1:query?key=AIza", QUERY),
        ("POST", "/v1:validateHashes", b"{'sets': {type: 'fledge', hashes: ['somehash']}}"),
        ("POST", "/v1:query", b"\xff"),
        ("POST", "/v1:query", b"{"),
        ("POST", "/v1:batchQuery", QUERY),
    ],
)
def test_the_inner_answer_is_that_of_the_service(served: Machine, method: str, path: str, body: bytes) -> None:
    direct = served.request(method, path, body or None, key=False)
    found = sent(served, inner(method, path, body, content_type="application/json"))
    assert (found.status, found.content) == (direct.status, direct.body)
    headers = {name.lower(): value for name, value in direct.headers}
    assert dict(found.fields).items() <= headers.items()
    assert dict(found.fields)["content-type"] == "application/json"


def test_a_key_outside_is_none_inside(served: Machine) -> None:
    message = join(served, authorization="")
    assert sent(served, message, {"Authorization": f"Bearer {served.key}"}).status == 401
    assert _rows(served) == [0, 0]


@pytest.mark.parametrize(
    "request_line",
    [
        *("GET /", "GET /docs", "GET /openapi.json", "GET /healthz", "GET /metrics", "GET /v1/proxy/keys"),
        *("POST /v1/gateway", "POST /v1alpha/createJob", "POST /.well-known/attribution-reporting/report-aggregate"),
    ],
)
def test_the_gateway_reaches_nothing_but_joins_and_queries(served: Machine, request_line: str) -> None:
    method, path = request_line.split()
    assert sent(served, inner(method, path, authorization=f"Bearer {served.key}")).status == 404


def test_all_joins_and_their_refusals_have_one_length(served: Machine) -> None:
    lengths = set()
    for message in (join(served), join(served, step=1), join(served, authorization=""), inner("GET", "/nowhere")):
        lengths.add(_length(served, message))
    assert len(lengths) == 1


def _length(served: Machine, message: bytes) -> int:
    return len(outer(served, seal_request(message, config(served))[0]).body)


def test_nothing_of_a_request_is_logged_and_requests_are_counted_once(served: Machine) -> None:
    sent(served, join(served, "a-client"), {"X-Forwarded-For": "192.0.2.7"})
    sent(served, inner("POST", "/v1:query", QUERY, content_type="application/json"))
    sent(served, join(served, "a-client", step=1))
    outer(served, b"no request")
    assert served.logs.getvalue() == ""
    counted = served.request("GET", "/metrics").body.decode()
    assert "kanon_joins_accepted_total 1.0" in counted
    assert "kanon_queries_answered_total 1.0" in counted
    assert "kanon_requests_rejected_total 1.0" in counted


def test_it_is_off_unless_it_is_turned_on(tmp_path: Path) -> None:
    with machine(tmp_path / "data") as made:
        found = [made.request("GET", "/v1/proxy/keys"), made.request("POST", "/v1/gateway", b"{}")]
        assert [answer.status for answer in found] == [404, 404]
        assert not (tmp_path / "data" / "secrets" / "gateway-key").exists()


def test_its_secret_is_readable_by_its_user_alone_and_stays(tmp_path: Path) -> None:
    keys: list[HttpAnswer] = []
    for _ in range(2):
        with machine(tmp_path / "data", KEYS, NO_PAGES, TYPES, NO_REPORTS, gateway=True) as made:
            keys.append(made.request("GET", "/v1/proxy/keys", key=False))
    assert keys[0].body == keys[1].body
    assert (tmp_path / "data" / "secrets" / "gateway-key").stat().st_mode & 0o777 == 0o600
