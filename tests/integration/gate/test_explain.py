"""`kanon explain`: every step from a join to an answer, without a count, a member, or an answer that is not visible."""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError
from typer.testing import CliRunner

from kanon.cli import explain as command
from kanon.cli.main import app
from kanon.client import Client, Join, encoded
from kanon.gate.names import client_token, set_key
from kanon.keys import Secret
from kanon.local import Stack
from kanon.operate.explain import PERMISSIONS, Effect, Explanation, explain
from kanon.operate.stacks import described_stack
from tests.integration.gate.doctor_view import run_on, seen
from tests.monitor.monitor import Monitor
from tests.monitor.private import Private
from tests.snapshot import Snapshot

START = 1_772_323_200
TYPES = {
    "few": {"k": 8, "window": 5, "phase": "zero", "laws": {
        "threshold": {"shape": "two-sided", "epsilon": "0.7", "truncation": 3},
        "query": {"shape": "two-sided", "epsilon": "0.7", "truncation": 4},
    }},
    "next": {"k": 8, "window": 5, "phase": "zero", "restart": "crossing", "hold": 6, "epoch": 24, "laws": {
        "threshold": {"shape": "one-sided", "epsilon": "0.7", "truncation": 3},
        "query": {"shape": "one-sided", "epsilon": "0.7", "truncation": 4},
    }},
}  # fmt: skip
"""Below 1 client never true, from 15 on always; instances begin at steps that 5 divides."""
SET, OTHER = b"a set of clients", b"a set of others"
JOINED, CLOSED, EVALUATED, VISIBLE, SUPPRESSED, CROSSED = (
    "Did a client join the set within the window?", "Has the step of its joins ended?", "Is the set's slot evaluated?",
    "Are the results visible?", "Is the set not suppressed?", "Has it crossed the noisy threshold in this instance?",
)  # fmt: skip


@pytest.fixture(scope="module")
def used_stack() -> Iterator[Snapshot[None]]:
    with Stack({"Types": json.dumps(TYPES)}, start=START, seed=3) as running:
        running.advance_to(START + 3600 + 1800)  # one step is evaluated and visible
        yield Snapshot(running, None)


@pytest.fixture
def stack(used_stack: Snapshot[None]) -> Stack:
    used_stack.restore()
    return used_stack.stack


def join(stack: Stack, clients: int, set_id: bytes = SET, type_name: str = "few") -> None:
    Client(stack.request).join_many(Join(type_name, encoded(set_id), f"client-{n}") for n in range(clients))


def explained(stack: Stack, set_id: bytes = SET, type_name: str = "few") -> Explanation:
    return explain(seen(stack), type_name, set_id, stack.clock.now(), joins=True)


def replies(stack: Stack, set_id: bytes = SET) -> dict[str, Effect]:
    return {f.question: f.reply for f in explained(stack, set_id).findings if f.reply is not Effect.FINE}


def queried(stack: Stack, set_id: bytes = SET) -> bool:
    return Client(stack.request).status("few", encoded(set_id)).k_anonymous


def said(found: Explanation) -> str:
    return " ".join(f"{f.question} {f.seen} {f.advice}" for f in found.findings)


def test_a_wrong_type_and_a_wrong_set_are_distinguished(stack: Stack) -> None:
    (finding,) = explained(stack, type_name="fewer").findings
    assert finding.reply is Effect.FALSE
    assert "add the type to Types" in finding.advice
    join(stack, 20, OTHER)
    assert replies(stack) == {JOINED: Effect.FALSE, CROSSED: Effect.FALSE}


def test_a_set_is_followed_from_the_join_to_the_true_answer_and_to_its_restart(stack: Stack) -> None:
    join(stack, 20)
    assert replies(stack) == {CLOSED: Effect.WAIT, CROSSED: Effect.FALSE}
    stack.advance_to(START + 2 * 3600 + 60)  # the step ended, and its grace runs
    assert replies(stack) == {VISIBLE: Effect.WAIT, CROSSED: Effect.FALSE}
    stack.advance_to(START + 2 * 3600 + 600)  # evaluated; the set has crossed, and nobody may know it yet
    assert replies(stack) == {VISIBLE: Effect.WAIT, CROSSED: Effect.FALSE}
    stack.advance_to(START + 2 * 3600 + 1800)
    assert replies(stack) == {}
    assert explained(stack).status
    assert queried(stack)
    while queried(stack):
        stack.advance(3600)
    found = explained(stack)
    assert replies(stack)[CROSSED] is Effect.FALSE
    assert "It was true in the instance before." in said(found)


def test_with_restart_after_the_crossing_the_explanation_names_the_status_the_search_and_what_counts(
    stack: Stack,
) -> None:
    """The stack begins with an epoch, so the set is searched from the first step on."""

    def told() -> tuple[bool | None, str]:
        found = explained(stack, type_name="next")
        return found.status, found.findings[-1].seen

    join(stack, 20, type_name="next")
    stack.advance_to(START + 2 * 3600 + 1800)
    assert told() == (True, "yes: it is true until 2026-03-01 07:00 UTC, and then searches again")
    stack.advance_to(START + 8 * 3600 + 1800)
    began = "not visibly since 2026-03-01 07:00 UTC, when its search began with new noise"
    counts = "joins count from 2026-03-01 03:00 UTC on. It was true until 2026-03-01 07:00 UTC."
    assert told() == (False, f"{began}; {counts}")
    stack.clock.set(START + 16 * 3600 + 1800)
    found = explained(stack, type_name="next")
    assert found.status is None
    assert "too old: query answers 503" in said(found)
    result = run_on(stack, "explain", "--type", "next", "--set", encoded(SET))
    assert "has no answer: query answers 503" in result[1]


def test_an_invisible_crossing_does_not_change_the_output(stack: Stack) -> None:
    """20 clients are certain to cross and 1 is not: before the tick both sets get the same explanation."""
    join(stack, 20)
    join(stack, 1, OTHER)
    for moment in (0, 60, 600, 1799):
        stack.advance_to(max(stack.clock.now(), START + 2 * 3600 + moment))
        assert explained(stack) == explained(stack, OTHER)
    stack.advance_to(START + 2 * 3600 + 1800)
    assert explained(stack).status
    assert explained(stack) != explained(stack, OTHER)


def test_no_word_depends_on_the_count_of_a_false_set(stack: Stack) -> None:
    sets = {clients: f"a set of {clients} clients".encode() for clients in (1, 2, 4, 6)}
    for clients, set_id in sets.items():
        join(stack, clients, set_id)
    compared = 0
    for _ in range(3):
        same = [explained(stack, set_id) for set_id in sets.values() if not queried(stack, set_id)]
        assert len(set(same)) == 1
        compared += len(same)
        stack.advance(3600)
    assert compared > 6


def test_without_its_option_the_output_does_not_depend_on_joins_that_changed_no_answer(stack: Stack) -> None:
    join(stack, 6)
    told = []
    for _ in range(3):
        for set_id in (SET, OTHER):
            assert not queried(stack, set_id)
            found = explain(seen(stack), "few", set_id, stack.clock.now())
            told.append(found)
            assert not {JOINED, CLOSED} & {finding.question for finding in found.findings}
        assert told[-1] == told[-2]
        assert explained(stack) != explained(stack, OTHER)
        stack.advance(3600)


def test_a_suppressed_set_is_recognised(stack: Stack) -> None:
    join(stack, 20)
    stack.advance_to(START + 2 * 3600 + 1800)
    assert queried(stack)
    pepper = Secret.derived("set-pepper", stack.storage.secrets["SetPepper"])
    seen(stack).statuses.suppress(set_key(pepper, "few", SET))
    stack.advance(3600)
    assert replies(stack) == {SUPPRESSED: Effect.FALSE}
    assert explained(stack).status is queried(stack) is False


def test_a_slot_that_is_behind_is_named(stack: Stack) -> None:
    join(stack, 20)
    stack.clock.set(START + 4 * 3600)  # nobody evaluates
    assert replies(stack) == {EVALUATED: Effect.WAIT, VISIBLE: Effect.WAIT, CROSSED: Effect.FALSE}


def test_before_the_first_evaluation_everything_waits() -> None:
    with Stack({"Types": json.dumps(TYPES)}, start=START, seed=3) as stack:
        join(stack, 20)
        assert replies(stack) == {
            CLOSED: Effect.WAIT, EVALUATED: Effect.WAIT, VISIBLE: Effect.WAIT, CROSSED: Effect.FALSE,
        }  # fmt: skip


def test_the_command_prints_no_private_value_and_only_known_numbers(stack: Stack) -> None:
    join(stack, 13)
    private = Private()
    pepper = Secret.derived("set-pepper", stack.storage.secrets["SetPepper"])
    client_key = Secret.derived("client-key", stack.storage.secrets["ClientKey"])
    key = set_key(pepper, "few", SET)
    clients = [f"client-{n}" for n in range(13)]
    tokens = [client_token(client_key, key, "client", client.encode(), 16) for client in clients]
    private.add(SET, key, *clients, *stack.storage.secrets.values())
    for _ in range(3):
        for form in ((), ("--json",), ("--show-joins",), ("--show-joins", "--json")):
            status, text = run_on(stack, "explain", "--type", "few", "--set", encoded(SET), *form)
            assert status == 0
            assert ("do not publish" in text) == ("--show-joins" in form)
            private.say(text)
            numbers = {int(n) for n in re.findall(r"\d+", re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d UTC|step \d+", "", text))}
            assert numbers <= {120, 1, 15, 5}  # the grace, the two certain counts, the window
            assert not numbers & {13, *tokens}
        stack.advance(3600)
    assert private.told() == []


class DeniedError(ClientError):
    """What AWS answers to a call that no statement allows."""

    def __init__(self, operation: str) -> None:
        super().__init__({"Error": {"Code": "AccessDeniedException", "Message": "no"}}, operation)


@contextmanager
def as_role(stack: Stack, function: str) -> Iterator[Any]:
    """The stack through a session with the role of a function."""
    allowed = Monitor.of(stack).allowed[function]
    resources = Monitor.of(stack).resources
    session = boto3.Session("local", "local", region_name="us-east-1")

    def check(params: dict[str, Any], model: Any, **_: Any) -> None:
        service = model.service_model.service_name
        for call in resources.calls(function, service, model.name, params):
            if not any(permission.covers(call) for permission in allowed):
                raise DeniedError(model.name)

    session.events.register("before-parameter-build", check)
    yield described_stack(stack.describe(), session, None)


def test_the_role_of_a_function_is_refused_with_the_permissions_that_are_needed(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    join(stack, 20)
    for function in ("query", "join", "evaluate"):
        with as_role(stack, function) as limited:
            with pytest.raises(ClientError, match="AccessDenied"):
                explain(limited, "few", SET, stack.clock.now())
            monkeypatch.setattr(command, "find", lambda *_, limited=limited: limited)
            ran = CliRunner().invoke(app, ["explain", "--type", "few", "--set", encoded(SET)])
        assert ran.exit_code == 2
        assert "AccessDenied" in ran.stderr
        assert PERMISSIONS in ran.stderr
        assert ran.stdout == ""


def test_the_permissions_name_every_call(stack: Stack) -> None:
    join(stack, 20)
    calls: set[str] = set()
    session = boto3.Session("local", "local", region_name="us-east-1")
    session.events.register("before-parameter-build", lambda model, **_: calls.add(model.name))
    explain(described_stack(stack.describe(), session, None), "few", SET, stack.clock.now())
    assert calls <= {"GetSecretValue", "GetItem", "BatchGetItem", "Query", "GetObject"}
    assert [name for name in calls if name not in PERMISSIONS] == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--type", "few", "--set", "a+b"], "must be base64url"),
        (["--type", "few", "--set", "s0"], "has spare bits: give sw if s0 is a set id"),
        (["--set", "aGVsbG8"], "Missing option '--type'"),
        (
            ["--type", "few", "--set", "aGVsbG8", "--url", "http://example.com"],
            "give the URL of a stack on this machine",
        ),
        (["--type", "few", "--set", "aGVsbG8", "--url", "http://127.0.0.1:9"], "no local stack answers"),
    ],
)
def test_wrong_input_gets_one_line_that_says_what_to_change(arguments: list[str], message: str) -> None:
    ran = CliRunner(env={"COLUMNS": "200", "NO_COLOR": "1"}).invoke(app, ["explain", *arguments])
    assert ran.exit_code == 2
    assert message in ran.stderr
