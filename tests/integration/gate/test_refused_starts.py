"""Persistent errors cost little: refused starts, unreadable messages and numbers."""

import json
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from kanon.local import Stack
from kanon.local.functions import Environment
from tests.integration.gate.edge import Edge

JOIN = "/v1/types/fledge/sets/asdf:join"
CHANGED = '{"fledge":{"k":51,"window":720,"profile":"published"}}'


@pytest.fixture
def edge() -> Iterator[Edge]:
    with Edge() as edge:
        yield edge


@pytest.fixture
def misconfigured(edge: Edge) -> Edge:
    """Join and query have run before; a deployment then changed their types."""
    assert edge.post(JOIN, {"client": "c"}).status == 200
    assert edge.get("/v1/types/fledge/sets/asdf").status == 200
    edge.reconfigure({"KANON_TYPES": CHANGED})
    edge.calls.clear()
    return edge


def join(edge: Edge) -> int:
    return edge.post(JOIN, {"client": "c"}).status


def query(edge: Edge) -> int:
    return edge.get("/v1/types/fledge/sets/asdf").status


@pytest.mark.parametrize(("ask", "secrets"), [(join, 2), (query, 1)])
def test_twenty_requests_to_a_misconfigured_function_start_it_once_a_minute(
    ask: Callable[[Edge], int], secrets: int, misconfigured: Edge
) -> None:
    start = {"GetSecretValue": secrets, "UpdateItem": 1}
    for minute in (1, 2):
        assert [ask(misconfigured) for _ in range(20)] == [503] * 20
        assert Counter(name for name, _ in misconfigured.calls) == {name: n * minute for name, n in start.items()}
        misconfigured.now += 59.0
        assert ask(misconfigured) == 503
        assert len(misconfigured.calls) == sum(start.values()) * minute
        misconfigured.now += 1.0


def test_joins_refused_by_a_misconfigured_function_are_all_counted(misconfigured: Edge) -> None:
    joins = [{"type": "fledge", "set": "asdf", "client": f"c{n}"} for n in range(7)]
    assert misconfigured.post("/v1:batchJoin", {"joins": [*joins, None]}).status == 503
    assert counted(misconfigured) == {"JoinsAccepted": 1, "JoinsRefused": 7}  # the one of before


def test_a_failed_batch_counts_every_join_as_refused(edge: Edge) -> None:
    edge.fail = lambda name: "AccessDeniedException" if name == "BatchWriteItem" else None
    joins = [{"type": "fledge", "set": "asdf", "client": f"c{n}"} for n in range(40)]
    assert edge.post("/v1:batchJoin", {"joins": joins}).status == 503
    assert counted(edge) == {"JoinsAccepted": 0, "JoinsRefused": 40}
    assert edge.rows() == []


def counted(edge: Edge) -> dict[str, float]:
    """The sums of the metrics of joins."""
    told = [json.loads(line) for line in edge.output.getvalue().splitlines() if '"_aws"' in line]
    return {name: sum(sum(entry.get(name, [])) for entry in told) for name in ("JoinsAccepted", "JoinsRefused")}


DIGITS = 500_000


@pytest.mark.parametrize("number", ["0." + "9" * DIGITS, "1." + "0" * DIGITS + "1", "9" * DIGITS])
@pytest.mark.parametrize("target", [JOIN, "/v1:batchJoin"])
def test_a_short_identifier_of_half_a_million_digits_is_400_and_not_rounded(
    target: str, number: str, edge: Edge
) -> None:
    entry = f'"type":"fledge","set":"asdf","shortClientIdentifier":{number}'
    body = f'{{"joins":[{{{entry}}}]}}' if "batch" in target else f'{{"shortClientIdentifier":{number}}}'
    assert edge.post(target, body).status == 400
    assert edge.calls == []


# Evaluate


class Evaluate:
    """A cold copy of the function, and the calls it makes."""

    def __init__(self, stack: Stack) -> None:
        self.calls: Counter[str] = Counter()
        self.stack = stack
        self.environment: Environment = stack.cold_start("evaluate")
        self.environment._process.session.events.register("provide-client-params", self._called)

    def _called(self, model: Any, **_: Any) -> None:
        self.calls[model.name] += 1

    def receive(self, body: str) -> bool:
        """Hand a message to the function; whether it was acknowledged."""
        record = {"messageId": "m", "body": body, "eventSource": "aws:sqs", "receiptHandle": "r"}
        return not self.environment.invoke({"Records": [record]})["batchItemFailures"]

    def logged(self, message: str) -> list[dict[str, Any]]:
        """The log lines that begin like this."""
        lines = self.stack.logs.getvalue().splitlines()  # type: ignore[attr-defined]
        return [json.loads(line) for line in lines if f'"message":"{message}' in line]


def test_twenty_messages_to_a_misconfigured_evaluation_start_it_once_a_minute(stack: Stack) -> None:
    stack.advance(7200)
    stack.functions["evaluate"].environment["KANON_TYPES"] = CHANGED  # type: ignore[index]
    evaluate = Evaluate(stack)
    assert [evaluate.receive('{"slot": 0, "hop": 0}') for _ in range(20)] == [False] * 20
    assert len(evaluate.logged("evaluation stopped")) == 20
    once = Counter(evaluate.calls)
    assert once["GetSecretValue"] == 1
    assert once["UpdateItem"] <= 1
    stack.clock.set(stack.clock.now() + 60.0)
    assert not evaluate.receive('{"slot": 0, "hop": 0}')
    assert evaluate.calls == once + once


SECRET = "c2VjcmV0LXNldC1pZA"
POISON = {
    "no JSON": (SECRET, ["body: json_invalid"]),
    "a record of a failed call": (
        json.dumps({"requestPayload": {"schedule": True, "set": SECRET}, "slot": 0}),
        ["body: extra_forbidden"],
    ),
    "a slot that is a text": (json.dumps({"slot": SECRET}), ["slot: int_type"]),
    "no slot": (json.dumps({"hop": 1}), ["slot: missing"]),
    "too many hops": (json.dumps({"slot": 0, "hop": 4711471147114711}), ["hop: less_than_equal"]),
    "a slot of another deployment": (json.dumps({"slot": 47}), ["slot: less_than"]),
}


@pytest.mark.parametrize(("body", "problems"), POISON.values(), ids=POISON)
def test_an_unreadable_message_is_logged_by_its_form_and_not_its_content(
    body: str, problems: list[str], stack: Stack
) -> None:
    evaluate = Evaluate(stack)
    assert not evaluate.receive(body)
    (line,) = evaluate.logged("message refused")
    assert line["problems"] == problems
    assert (line["level"], evaluate.calls) == ("ERROR", {})
    logs = stack.logs.getvalue()  # type: ignore[attr-defined]
    assert not [content for content in (SECRET, "4711471147114711", "47}", "requestPayload") if content in logs]
