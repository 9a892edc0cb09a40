"""Answers stay monotonic through every change of a parameter that a running deployment allows."""

import json
from base64 import urlsafe_b64encode
from collections.abc import Iterator

import pytest

from kanon.gate.mechanism.steps import instance_of, phase_of
from kanon.local import Stack
from tests.e2e.gate.operating import key_of
from tests.snapshot import Snapshot

WINDOW, PERIOD, START = 5, 3600, 1_700_000_000.0
LAW = {"shape": "two-sided", "epsilon": "0.7", "truncation": 3}
TYPE = {"k": 8, "window": WINDOW, "laws": {"threshold": LAW, "query": LAW}}
SETS = [urlsafe_b64encode(bytes([n]) * 32).decode().rstrip("=") for n in range(6)]


CHANGED_AT = 5
"""The hour after which the first parameter changes."""


class Observer:
    """Queries every set again and again, and fails if an answer is taken back."""

    def __init__(self, stack: Stack) -> None:
        self.stack = stack
        keys = [key_of(stack, "small", bytes([n]) * 32) for n in range(len(SETS))]
        self.phases = [phase_of(key, WINDOW, "hash") for key in keys]
        self.step, self.next_update = -1, ""
        self.seen: dict[tuple[int, int], bool] = {}
        self.true = 0

    def look(self) -> None:
        body = {"setsForType": [{"type": "small", "hashes": SETS}]}
        answer = json.loads(self.stack.request("POST", "/v1:query", body).body)
        if answer["step"] is None:
            return
        assert answer["step"] >= self.step
        assert answer["nextUpdate"] >= self.next_update
        self.step, self.next_update = answer["step"], answer["nextUpdate"]
        clock_step = int((self.stack.clock.now() - 1800) // PERIOD) - 1
        for n, set_id in enumerate(SETS):
            instance = instance_of(clock_step, self.phases[n], WINDOW)
            status = set_id in answer["kAnonymousSets"][0]["hashes"]
            assert status >= self.seen.get((n, instance), False), "a true set reads false within its instance"
            self.seen[n, instance] = status
            self.true += status

    def pass_hour(self, hour: int) -> None:
        """Join some sets and query every tenth minute."""
        for minute in range(0, 60, 10):
            joins = [
                {"type": "small", "set": set_id, "client": f"{hour % 7} {minute} {client}"}
                for n, set_id in enumerate(SETS)
                for client in range(n)
            ]
            assert self.stack.request("POST", "/v1:batchJoin", {"joins": joins}).status == 200
            self.look()
            self.stack.advance(600)


def change(stack: Stack, variables: dict[str, str]) -> None:
    for name in ("query", "evaluate", "join"):
        told = stack.functions[name].environment
        told.update({key: value for key, value in variables.items() if key in told})
        stack.restart(name)


@pytest.fixture(scope="module")
def used_stack() -> Iterator[Snapshot[Observer]]:
    """A stack after some hours in use."""
    with Stack({"Types": json.dumps({"small": TYPE})}, start=START, seed=3) as stack:
        observer = Observer(stack)
        for hour in range(CHANGED_AT):
            observer.pass_hour(hour)
        yield Snapshot(stack, observer)


@pytest.fixture
def observer(used_stack: Snapshot[Observer]) -> Observer:
    """The observer of the used stack, which is restored."""
    return used_stack.restore()


ALLOWED = [
    ("a longer and a shorter grace", {"KANON_GRACE": "600"}, {"KANON_GRACE": "60"}),
    ("a longer and a shorter lease", {"KANON_LEASE": "900"}, {"KANON_LEASE": "130"}),
    ("a longer and a shorter publish margin", {"KANON_PUBLISH_MARGIN": "1500"}, {"KANON_PUBLISH_MARGIN": "0"}),
    (
        "one more type",
        {"KANON_TYPES": json.dumps({"small": TYPE, "other": {**TYPE, "k": 9}})},
        {"KANON_TYPES": json.dumps({"small": TYPE, "other": {**TYPE, "k": 9}})},
    ),
]


@pytest.mark.parametrize(("first", "second"), [entry[1:] for entry in ALLOWED], ids=[entry[0] for entry in ALLOWED])
def test_answers_are_monotonic_through_an_allowed_change(
    observer: Observer, first: dict[str, str], second: dict[str, str]
) -> None:
    stack = observer.stack
    for hour in range(CHANGED_AT, 14):
        if hour in (CHANGED_AT, 10):
            stack.advance(60)
            change(stack, first if hour == CHANGED_AT else second)
        observer.pass_hour(hour)
    assert observer.true
    assert not stack.failures


@pytest.mark.parametrize("delay", ["7200", "600"])
def test_a_changed_publish_delay_is_refused_and_hides_no_answer(observer: Observer, delay: str) -> None:
    stack = observer.stack
    for hour in range(CHANGED_AT, 8):
        observer.pass_hour(hour)
    change(stack, {"KANON_PUBLISH_DELAY": delay})
    refused = stack.request("POST", "/v1:query", {"setsForType": [{"type": "small", "hashes": SETS}]})
    assert refused.status == 503
    stack.advance(7200)
    assert '"EvaluationStopped":[1.0]' in stack.logs.getvalue().replace(" ", "")  # type: ignore[attr-defined]
    change(stack, {"KANON_PUBLISH_DELAY": "1800"})
    for hour in range(8, 14):
        observer.pass_hour(hour)
    assert observer.true


def test_the_age_of_answers_is_immutable_once_a_type_uses_it(observer: Observer) -> None:
    stack = observer.stack
    change(stack, {"KANON_MAX_STALE": "23"})
    observer.pass_hour(CHANGED_AT)
    after = {**TYPE, "restart": "crossing", "epoch": 50}
    change(stack, {"KANON_MAX_STALE": "24", "KANON_TYPES": json.dumps({"small": TYPE, "after": after})})
    observer.pass_hour(CHANGED_AT + 1)
    change(stack, {"KANON_MAX_STALE": "23"})
    refused = stack.request("POST", "/v1:query", {"setsForType": [{"type": "small", "hashes": SETS}]})
    assert refused.status == 503
    change(stack, {"KANON_MAX_STALE": "24"})
    observer.pass_hour(CHANGED_AT + 2)
