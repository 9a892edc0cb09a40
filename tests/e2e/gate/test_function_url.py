"""Joins through a URL of the function: no API, no access log, no log line for each request."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from kanon.client import Client, SetId
from kanon.http.origin import HEADER
from kanon.http.totals import SECONDS
from kanon.local import Stack
from tests.integration.gate.test_behind_an_edge import REQUESTS, WITH_EDGE, sent_by_the_edge

SET = "/v1/types/fledge/sets/YWJj"
SIGNED = {"JoinEndpoint": "FUNCTION_URL"}
OPEN = {**SIGNED, **WITH_EDGE, "JoinAuth": "OPEN"}


def host(stack: Stack) -> str:
    (found,) = stack.urls
    return found


def rows(stack: Stack) -> int:
    count: int = stack.session.client("dynamodb").scan(TableName=stack.storage.tables["StepLog"])["Count"]
    return count


def lines(stack: Stack) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stack.logs.getvalue().splitlines()]  # type: ignore[attr-defined]


@pytest.fixture
def signed(new_stack: Callable[..., Stack]) -> Iterator[Stack]:
    """Lambda has checked the signature before the function is called."""
    return new_stack(SIGNED)


def test_a_set_turns_true_by_joins_at_the_url_alone(new_stack: Callable[..., Stack]) -> None:
    stack = new_stack(OPEN)
    through = sent_by_the_edge(stack)
    at_url = {**through, "host": host(stack)}

    def edge(method: str, path: str, body: Any, headers: dict[str, str]) -> Any:
        """Sends joins to the URL and the rest to the API."""
        return stack.request(method, path, body, {**headers, **(at_url if path.endswith(":join") else through)})

    client = Client(edge)
    for number in range(200):
        client.join("fledge", SetId("YWJj"), f"client {number}")
    assert rows(stack) == 200
    stack.advance(2 * 3600)
    answer = stack.request("GET", SET, None, through)
    assert answer.json()["kAnonymous"] is True


def test_an_open_url_answers_only_what_the_edge_sends(new_stack: Callable[..., Stack]) -> None:
    stack = new_stack(OPEN)
    through = sent_by_the_edge(stack)
    for headers in ({}, {HEADER: ""}, {HEADER: through[HEADER][:-1]}):
        answer = stack.request("POST", f"{SET}:join", {"client": "a"}, {**headers, "host": host(stack)})
        assert (answer.status, answer.header("cache-control")) == (403, "no-store")
    assert rows(stack) == 0
    assert stack.request("POST", f"{SET}:join", {"client": "a"}, {**through, "host": host(stack)}).status == 200
    assert rows(stack) == 1


def test_a_url_answers_single_joins_and_nothing_else(signed: Stack) -> None:
    """Other calls may ask for other callers (BatchAuth)."""
    for method, target, body in REQUESTS:
        expected = 200 if target.endswith(":join") else 404
        assert signed.request(method, target, body, {"host": host(signed)}).status == expected, target
        assert signed.request(method, target, body).status == 200, "the API goes on"
    for target in ("/v1:batchJoin?x=:join", f"{SET}:join/", f"/v1:batchJoin/..{SET}:join", "/v1/types/a/b/sets/c:join"):
        assert signed.request("POST", target, {"joins": []}, {"host": host(signed)}).status == 404, target


def test_the_answers_at_the_url_are_those_of_the_api(signed: Stack) -> None:
    for body in ({"client": "a"}, {}, {"clientt": "a"}, [], "x", '{"client": "a"'):
        answers = [signed.request("POST", f"{SET}:join", body, headers) for headers in ({}, {"host": host(signed)})]
        assert len({(answer.status, answer.body) for answer in answers}) == 1, body


def test_only_one_request_a_minute_writes_a_line_and_no_count_is_lost(signed: Stack) -> None:
    at_url = {"host": host(signed)}
    for minute in range(3):
        for number in range(50):
            assert signed.request("POST", f"{SET}:join", {"client": f"{minute} {number}"}, at_url).status == 200
        assert signed.request("POST", f"{SET}:join", {}, at_url).status == 400
        assert len(lines(signed)) == minute + 1
        signed.advance(SECONDS)
    signed.request("POST", f"{SET}:join", {"client": "last"}, at_url)
    counts = [(line["JoinsAccepted"], line["RequestsRejected"]) for line in lines(signed)]
    assert counts == [([1.0], [0.0]), ([50.0], [1.0]), ([50.0], [1.0]), ([50.0], [1.0])]


def test_a_refused_join_writes_its_line_at_once(signed: Stack) -> None:
    at_url = {"host": host(signed)}
    assert signed.request("POST", f"{SET}:join", {"client": "a"}, at_url).status == 200
    signed.session.client("dynamodb").delete_table(TableName=signed.storage.tables["StepLog"])
    assert signed.request("POST", f"{SET}:join", {"client": "b"}, at_url).status == 503
    assert [line["JoinsRefused"] for line in lines(signed) if "_aws" in line] == [[0.0], [1.0]]
