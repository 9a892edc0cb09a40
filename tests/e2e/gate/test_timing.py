"""The work of a join does not depend on other joins, and that of a query not on its answer.

The work is counted, not timed: the AWS calls with the shape and length of request and response, and the steps of the
code between them.
"""

import base64
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from kanon.gate.memory import Memory
from kanon.gate.storage.aws.statuses import Statuses
from kanon.gate.storage.aws.step_log import Row, StepLog
from kanon.http.totals import SECONDS
from kanon.local import Stack
from kanon.local.functions import Function
from tests.e2e.gate.operating import key_of

START = 1_772_323_200.0  # a whole hour: 2026-03-01 00:00 UTC
TYPES = {"fledge": {"k": 50, "window": 24, "profile": "published"}}
MINE = "a client that looks at its watch"
TRUE, FALSE, SUPPRESSED, UNKNOWN = (base64.urlsafe_b64encode(bytes([i]) * 32).decode().rstrip("=") for i in range(4))
ANOTHER = base64.urlsafe_b64encode(b"another").decode().rstrip("=")
OTHERS = [base64.urlsafe_b64encode(bytes([9, i]) * 16).decode().rstrip("=") for i in range(4)]
OWN = (
    "functions/join/app.py",
    "functions/query/app.py",
    "kanon/gate/query_routes.py",
    "kanon/gate/querying.py",
    "kanon/gate/memory.py",
    "kanon/gate/true_sets.py",
    "kanon/gate/join_routes.py",
    "kanon/gate/joining.py",
    "kanon/http/",
)
"""Which code is counted: the functions, their use cases and the HTTP edge."""


class Work:
    """The calls and steps of a stack's functions, in order and with lengths, for comparison."""

    def __init__(self, stack: Stack) -> None:
        self.stack = stack
        self._seen: list[Any] = []
        for name in ("join", "query"):
            function = stack.functions[name]
            stack.functions[name] = replace(function, session=self._recorded(function))

    def _recorded(self, function: Function) -> Callable[[str], Any]:
        def session(folder: str) -> Any:
            session = function.session(folder)
            session.events.register("before-call", self._asked)
            session.events.register("after-call", self._answered)
            return session

        return session

    def _asked(self, model: Any, params: dict[str, Any], **_: Any) -> None:
        body = lengths(json.loads(params["body"])) if params["body"] else len(params["url_path"])
        self._seen.append(("asks", model.name, body))

    def _answered(self, model: Any, http_response: Any, **_: Any) -> None:
        if model.name not in ("BatchGetItem", "GetObject"):  # a row, or none, as asked; an object is read as a stream
            self._seen.append(("is answered", model.name, len(http_response.content)))

    @contextmanager
    def _stepping(self) -> Iterator[None]:
        """Record each call of the functions and their use cases. Storage and mechanism are left out: they read the row,
        if there is one."""

        def step(frame: Any, event: str, _: Any) -> None:
            if event == "call" and any(part in frame.f_code.co_filename for part in OWN):
                self._seen.append(frame.f_code.co_qualname)

        sys.setprofile(step)
        try:
            yield
        finally:
            sys.setprofile(None)

    def of(self, method: str, target: str, body: Any = None) -> tuple[list[Any], Any]:
        """The work of a request, and its answer."""
        self._seen = []
        with self._stepping():
            response = self.stack.request(method, target, body)
        assert response.status == 200
        return self._seen, response

    def forget(self) -> None:
        """Let the next query meet a process that has answered one query for another set: it has cached the horizon."""
        self.stack.restart("query")
        self.asking(ANOTHER)

    def joining(self, set_id: str, client: str = MINE) -> list[Any]:
        return self.of("POST", f"/v1/types/fledge/sets/{set_id}:join", {"client": client})[0]

    def asking(self, *sets: str) -> list[Any]:
        return self.of("POST", "/v1:query", question(*sets))[0]


def question(*sets: str) -> dict[str, Any]:
    return {"setsForType": [{"type": "fledge", "hashes": list(sets)}]}


def lengths(node: Any) -> Any:
    """The shape of a request: its keys, and how long its values are."""
    if isinstance(node, dict):
        return {key: lengths(value) for key, value in node.items()}
    if isinstance(node, list):
        return [lengths(value) for value in node]
    return len(str(node))


def calls(work: list[Any]) -> list[str]:
    return [seen[1] for seen in work if seen[0] == "asks"]


@pytest.fixture(scope="module")
def work() -> Iterator[Work]:
    """One set is true, one was true, one is suppressed, and one is unknown."""
    with Stack({"Types": json.dumps(TYPES)}, start=START, seed=11) as stack:
        crowd = [f"client {n}" for n in range(200)]
        work = Work(stack)
        for set_id, hours in ((FALSE, 50), (TRUE, 0), (SUPPRESSED, 2)):
            for start in range(0, 200, 100):
                entries = [{"type": "fledge", "set": set_id, "client": client} for client in crowd[start : start + 100]]
                assert stack.request("POST", "/v1:batchJoin", {"joins": entries}).status == 200
            stack.advance(hours * 3600)
        stack.advance(3 * 3600)
        statuses = Statuses(stack.session.client("dynamodb"), stack.storage.tables["Statuses"])
        statuses.suppress(key_of(stack, "fledge", bytes([2]) * 32))
        yield work


@pytest.fixture(autouse=True)
def _nothing_is_remembered(work: Work) -> None:
    work.forget()


# Joins


def test_the_example_sets_have_the_states_in_their_names(work: Work) -> None:
    answer = work.of("POST", "/v1:query", question(TRUE, FALSE, SUPPRESSED, UNKNOWN))[1].json()
    assert answer["kAnonymousSets"] == [{"type": "fledge", "hashes": [TRUE]}]
    rows = work.stack.session.client("dynamodb").scan(TableName=work.stack.storage.tables["Statuses"])["Items"]
    assert sum("crossings" in row for row in rows) == 3


def test_a_join_does_the_same_work_in_an_empty_a_crowded_and_a_true_set(work: Work) -> None:
    work.joining(OTHERS[0], "the first one, who meets a cold start")
    empty = work.joining(UNKNOWN)
    assert calls(empty) == ["PutItem"]
    for set_id in (TRUE, FALSE, SUPPRESSED, OTHERS[0]):
        assert work.joining(set_id) == empty
    for n in range(60):
        work.joining(OTHERS[1], f"somebody {n:02}")
    assert work.joining(OTHERS[1]) == empty


def test_a_repeated_join_does_the_same_work_in_this_step_in_the_next_and_on_another_worker(work: Work) -> None:
    work.stack.restart("join")
    cold = work.joining(OTHERS[2])
    first = work.joining(OTHERS[3])
    assert [work.joining(OTHERS[3]) for _ in range(3)] == [first] * 3
    work.stack.clock.set(work.stack.clock.now() + 3600)
    work.joining(OTHERS[2])  # one request a minute writes the line of metrics
    assert work.joining(OTHERS[3]) == first
    work.stack.restart("join")
    assert work.joining(OTHERS[3]) == cold


def test_the_line_of_metrics_costs_the_same_in_every_set(work: Work) -> None:
    def with_line(set_id: str) -> list[Any]:
        work.stack.clock.set(work.stack.clock.now() + SECONDS)
        return work.joining(set_id)

    work.joining(UNKNOWN)
    assert with_line(UNKNOWN) != (plain := work.joining(UNKNOWN))
    lines = [with_line(set_id) for set_id in (UNKNOWN, TRUE, FALSE, SUPPRESSED, OTHERS[0])]
    assert lines == [lines[0]] * 5
    assert work.joining(TRUE) == plain


def test_the_work_of_a_batch_does_not_depend_on_the_log(work: Work) -> None:
    def batch(set_id: str) -> list[Any]:
        entries = [{"type": "fledge", "set": set_id, "client": f"one of many {n:02}"} for n in range(40)]
        return work.of("POST", "/v1:batchJoin", {"joins": entries})[0]

    batch(OTHERS[0])
    empty = batch(OTHERS[1])
    assert calls(empty) == ["BatchWriteItem"]
    assert [batch(set_id) for set_id in (OTHERS[1], TRUE, FALSE, SUPPRESSED)] == [empty] * 4


# Queries


def test_the_work_of_a_query_of_one_set_does_not_depend_on_the_answer(work: Work) -> None:
    asked = {set_id: work.asking(set_id) for set_id in (TRUE, FALSE, SUPPRESSED, UNKNOWN)}
    assert calls(asked[UNKNOWN]) == ["BatchGetItem"]
    assert [asked[set_id] for set_id in (TRUE, FALSE, SUPPRESSED)] == [asked[UNKNOWN]] * 3


def test_a_repeated_query_does_the_same_work_as_the_first_query_of_a_set(work: Work) -> None:
    work.asking(OTHERS[0])  # the slot's horizon is known from here on
    sets = (TRUE, FALSE, SUPPRESSED, UNKNOWN)
    first = [work.asking(set_id) for set_id in sets]
    assert calls(first[0]) == ["BatchGetItem"]
    assert first == [first[0]] * 4
    assert [work.asking(set_id) for set_id in sets] == first


def test_the_work_of_a_query_from_memory_does_not_depend_on_the_answer(work: Work) -> None:
    asked = work.asking(TRUE)
    work.stack.advance(120)  # longer than the instance waits
    for _ in range(20):  # each request gets the object of one slot
        work.asking(ANOTHER)
    from_memory = {set_id: work.asking(set_id) for set_id in (TRUE, FALSE, SUPPRESSED, UNKNOWN)}
    assert calls(from_memory[TRUE]) == ["BatchGetItem"]
    assert from_memory[TRUE] != asked  # it asks for the stamp alone
    assert [from_memory[set_id] for set_id in (FALSE, SUPPRESSED, UNKNOWN)] == [from_memory[TRUE]] * 3
    assert work.of("GET", f"/v1/types/fledge/sets/{TRUE}")[1].json()["kAnonymous"]


def test_the_work_of_a_query_of_many_sets_does_not_depend_on_the_answers(work: Work) -> None:
    mixture = work.asking(TRUE, FALSE, SUPPRESSED, UNKNOWN)
    work.forget()
    assert work.asking(*OTHERS) == mixture
    work.asking(TRUE, UNKNOWN)
    assert work.asking(TRUE, FALSE, SUPPRESSED, UNKNOWN) == work.asking(*OTHERS)


def test_the_responses_for_a_true_and_a_false_set_differ_only_in_the_status(work: Work) -> None:
    got = {}
    for set_id in (TRUE, FALSE, SUPPRESSED, UNKNOWN):
        work.forget()
        got[set_id] = work.of("GET", f"/v1/types/fledge/sets/{set_id}")
    steps, unknown = got[UNKNOWN]
    for set_id in (FALSE, SUPPRESSED):
        assert got[set_id] == (steps, unknown)
    steps_of_true, true = got[TRUE]
    assert steps_of_true == steps
    assert (true.status, true.headers) == (unknown.status, unknown.headers)
    assert true.body == unknown.body.replace(b"false", b"true")


# The counting itself


def test_a_join_that_skips_a_repeated_write_is_found(work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    put, done = StepLog.put, set[Any]()

    def sparing(log: StepLog, row: Row) -> None:
        if row not in done:
            done.add(row)
            put(log, row)

    monkeypatch.setattr(StepLog, "put", sparing)
    assert work.joining(UNKNOWN) != work.joining(UNKNOWN)


@pytest.mark.parametrize("remembered", ["every set", "true sets"])
def test_a_query_that_caches_sets_is_found(work: Work, monkeypatch: pytest.MonkeyPatch, remembered: str) -> None:
    read, known = Memory.read, dict[bytes, tuple[int, ...]]()

    def remembering(memory: Memory, keys: Any, slots: Any) -> Any:
        new = {key: name for key, name in keys.items() if key not in known}
        found, horizons = read(memory, new, slots)
        known.update({key: found.get(key, ()) for key in new if found.get(key) or remembered == "every set"})
        return {**found, **known}, horizons

    monkeypatch.setattr(Memory, "read", remembering)
    work.asking(OTHERS[0])
    first = [work.asking(set_id) for set_id in (TRUE, UNKNOWN)]
    assert [work.asking(set_id) for set_id in (TRUE, UNKNOWN)] != first
