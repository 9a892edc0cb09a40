"""The log volume of a request: a query writes one line, joins write one a minute; its length depends on no request."""

import json
import re
from typing import Any

import pytest

from kanon.http.totals import SECONDS
from kanon.local import Stack
from tests.infrastructure.template import properties, read
from tests.integration.gate.doctor_view import metrics

SET = "/v1/types/fledge/sets/YWJj"
MOST_BYTES = 512
"""Of a line of a function. With the access log's line a request logs less than 1 KB."""


def joins(count: int) -> dict[str, Any]:
    return {"joins": [{"type": "fledge", "set": "YWJj", "client": str(n)} for n in range(count)]}


def hashes(count: int) -> dict[str, Any]:
    return {"setsForType": [{"type": "fledge", "hashes": ["YWJj"] * count}]}


REQUESTS: dict[str, tuple[str, str, Any]] = {
    "join": ("POST", f"{SET}:join", {"client": "a"}),
    "batch of 1": ("POST", "/v1:batchJoin", joins(1)),
    "batch of 500": ("POST", "/v1:batchJoin", joins(500)),
    "query of 1": ("POST", "/v1:query", hashes(1)),
    "query of 100": ("POST", "/v1:query", hashes(100)),
    "query of 1,000": ("POST", "/v1:batchQuery", hashes(1000)),
    "one set": ("GET", SET, None),
    "types": ("GET", "/v1/types", None),
    "refused": ("POST", "/v1:query", {}),
    "nowhere": ("GET", "/v1/nothing", None),
}


def logged(stack: Stack, before: int) -> list[str]:
    """The lines written since then."""
    lines: list[str] = stack.logs.getvalue()[before:].splitlines()  # type: ignore[attr-defined]
    return lines


def size(stack: Stack) -> int:
    return len(stack.logs.getvalue())  # type: ignore[attr-defined]


def test_a_request_writes_at_most_one_line_of_the_same_length_for_one_join_or_hash_and_for_many(stack: Stack) -> None:
    for method, target, body in REQUESTS.values():
        stack.request(method, target, body)  # cold starts log nothing more
    lengths = {}
    for name, (method, target, body) in REQUESTS.items():
        stack.advance(SECONDS)  # a line with the joins since the last one is due
        before = size(stack)
        stack.request(method, target, body)
        lines = logged(stack, before)
        assert len(lines) == (1 if name != "nowhere" else 0), (name, lines)  # the gateway refuses it itself
        lengths[name] = sum(len(line.encode()) + 1 for line in lines)
    assert max(lengths.values()) <= MOST_BYTES, lengths
    assert abs(lengths["batch of 500"] - lengths["batch of 1"]) <= 2 * len("500.0")  # only the metrics' own digits
    assert lengths["query of 1,000"] == lengths["query of 100"] == lengths["query of 1"]


def test_an_evaluation_writes_one_line_for_the_schedule_and_one_for_each_slot(stack: Stack) -> None:
    stack.request("POST", "/v1:batchJoin", joins(500))
    stack.advance(3600)
    before = size(stack)
    stack.advance(3600)
    lines = logged(stack, before)
    assert len(lines) == 2, lines
    assert max(map(len, lines)) <= 2 * MOST_BYTES


def test_a_line_of_the_access_log_is_short() -> None:
    values = {
        "requestId": "JKJaXmPLvHcESHA=", "requestTime": "10/Mar/2027:06:03:59 +0000", "status": "200",
        "integrationStatus": "200", "responseLatency": "99999", "responseLength": "99999",
        "routeKey": "POST /v1/types/{type}/sets/{set}",
    }  # fmt: skip
    written = properties(read(), "Stage")["AccessLogSettings"]["Format"]
    line = re.sub(r"\$context\.(\w+)", lambda found: values[found[1]], written)
    assert json.loads(line)
    assert len(line) <= 300


@pytest.mark.parametrize("name", ["Join", "Query", "Evaluate"])
def test_lambda_adds_no_line_to_a_call_that_succeeds(name: str) -> None:
    logging = properties(read(), name)["LoggingConfig"]
    assert (logging["LogFormat"], logging["SystemLogLevel"]) == ("JSON", "WARN")


def test_a_query_measures_the_loading_of_an_object_of_true_sets_and_only_that(stack: Stack) -> None:
    stack.request("POST", f"{SET}:join", {"client": "a"})
    stack.advance(3 * 3600)
    for loads in (0, 1, 1):  # after a random time of up to a minute; once in a step
        stack.request("GET", SET)
        assert len(metrics(stack, "TrueSetsLoadTime")) == loads
        stack.advance(61)
