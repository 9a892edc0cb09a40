"""Two releases run side by side on one stack, as they do during a deployment and after a rollback.

Three releases are made from the build: the one of this checkout, the next one, which also reads another form of
parts, and the one after that, which writes it. Neighbours may take turns at every function. The first and the third
may not: that is why a form is read one release before it is written (rule 12 of docs/architecture.md).
"""

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from kanon.gate.mechanism.steps import step_at
from kanon.local import Stack
from kanon.local.engines import Emulator, Ministack
from tests.build.test_build import CROWD, PERIOD, SET, SLOT_EVENT, http_event, newest_parts, run
from tests.moto_engine import Moto

pytestmark = pytest.mark.build

START = 1_800_000_000 // PERIOD * PERIOD + 60.0
STEPS = 4
READS = '''
_decode = decode


def decode(content, **how):
    """Form 2 is form 1 under another number."""
    return _decode(content[:11] + b"\\x01" + content[12:] if content[11] == 2 else content, **how)
'''
WRITES = """
_encode = encode


def encode(part, step):
    content, _ = _encode(part, step)
    content = content[:11] + b"\\x02" + content[12:]
    return content, sha256(content).hexdigest()
"""


@dataclass(frozen=True)
class Release:
    """A build with its own code in the layer, run against a stack."""

    build: Path
    runtime: Path

    def answer(self, stack: Stack, function: str, *events: dict[str, Any]) -> list[Any]:
        """What a new environment of a function answers."""
        answers: list[Any] = run(self.build, self.runtime, stack, function, list(events))["answers"]
        return answers

    def join(self, stack: Stack, clients: range) -> None:
        joins = [{"type": "fledge", "set": SET, "client": str(client)} for client in clients]
        event = http_event(stack, "POST", "/v1:batchJoin", json.dumps({"joins": joins}).encode())
        (answer,) = self.answer(stack, "Join", event)
        assert json.loads(answer["body"]) == {"results": [{}] * len(joins)}

    def evaluate(self, stack: Stack) -> bool:
        """Whether the slot is evaluated through the last closed step."""
        (answer,) = self.answer(stack, "Evaluate", SLOT_EVENT)
        return bool(answer == {"batchItemFailures": []})

    def query(self, stack: Stack) -> str:
        (answer,) = self.answer(stack, "Query", http_event(stack, "GET", f"/v1/types/fledge/sets/{SET}"))
        assert answer["statusCode"] == 200
        return str(answer["body"])


@pytest.fixture(scope="module")
def releases(
    host_build: Path, runtime_boto3: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Release, Release, Release]:
    """This release, the next one and the one after it."""
    made = [Release(host_build, runtime_boto3)]
    for number, code in enumerate((READS, READS + WRITES)):
        build = tmp_path_factory.mktemp("release") / str(number)
        shutil.copytree(host_build, build)
        parts = build / "Shared" / "python" / "kanon" / "gate" / "parts.py"
        parts.write_text(parts.read_text() + code)
        made.append(Release(build, runtime_boto3))
    first, second, third = made
    return first, second, third


def new_stack(engine: type[Emulator]) -> Stack:
    return Stack(engine=engine, start=START, seed=1, name="side-by-side")


@pytest.fixture
def stack() -> Iterator[Stack]:
    with new_stack(Ministack) as running:
        yield running


def clients(number: int) -> range:
    """The clients of the n-th step: a crowd, then one more client each step."""
    return range(CROWD) if number == 0 else range(CROWD + number - 1, CROWD + number)


def closed(number: int) -> float:
    """A moment at which the n-th step is closed."""
    return START + (number + 1) * PERIOD + 200


def stored(stack: Stack) -> tuple[list[Any], list[bytes]]:
    """The items of sets in Statuses, and the parts without the number of their form."""
    found = stack.session.client("dynamodb").scan(TableName=stack.storage.tables["Statuses"])["Items"]
    items = [item for item in found if "through" not in item]  # horizons tell which steps were completed together
    return sorted(items, key=repr), [content[12:] for content in newest_parts(stack)]


def form(stack: Stack) -> int:
    """The number of the form in which the set is stored."""
    (content,) = newest_parts(stack)
    return content[11]


@pytest.fixture(scope="module")
def expected() -> Iterator[tuple[str, tuple[list[Any], list[bytes]]]]:
    """The answer and what is stored if this release alone does everything."""
    with new_stack(Moto) as alone:
        for number in range(STEPS):
            alone.advance_to(START + number * PERIOD)
            joins = [{"type": "fledge", "set": SET, "client": str(client)} for client in clients(number)]
            assert alone.request("POST", "/v1:batchJoin", {"joins": joins}).status == 200
        alone.advance_to(closed(STEPS) - 100)
        body = alone.request("GET", f"/v1/types/fledge/sets/{SET}").body.decode()
        yield body, stored(alone)


def test_neighbouring_releases_alternate_at_every_function(
    releases: tuple[Release, Release, Release], stack: Stack, expected: tuple[str, tuple[list[Any], list[bytes]]]
) -> None:
    _, second, third = releases
    forms = []
    for number in range(STEPS):
        joining, evaluating = (second, third) if number % 2 else (third, second)
        stack.clock.set(START + number * PERIOD)
        joining.join(stack, clients(number))
        evaluating.join(stack, clients(number))  # sent again to the other release; counts once
        stack.clock.set(closed(number))
        assert evaluating.evaluate(stack)
        forms.append(form(stack))
    assert forms == [1, 2, 1, 2]  # the second and the third release read each other's rows
    stack.clock.set(closed(STEPS) - 100)
    body, state = expected
    assert [second.query(stack), third.query(stack)] == [body, body]
    assert json.loads(body)["kAnonymous"] is True
    assert json.loads(body)["step"] == step_at(START, PERIOD) + STEPS - 1
    assert stored(stack) == state


def test_a_skipped_release_stops_the_slot_and_loses_nothing(
    releases: tuple[Release, Release, Release], stack: Stack, expected: tuple[str, tuple[list[Any], list[bytes]]]
) -> None:
    first, second, third = releases
    for number in range(STEPS):
        stack.clock.set(START + number * PERIOD)
        first.join(stack, clients(number))
        stack.clock.set(closed(number))
        if number == 0:
            assert third.evaluate(stack)
            assert form(stack) == 2
        elif number == 1:
            assert not first.evaluate(stack)  # a rollback over two releases
    assert second.evaluate(stack)
    stack.clock.set(closed(STEPS) - 100)
    body, state = expected
    assert [first.query(stack), second.query(stack)] == [body, body]
    assert stored(stack) == state
