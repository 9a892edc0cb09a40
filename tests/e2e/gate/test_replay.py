"""`kanon operate replay`: states are replaced only if a second evaluation gives the released answers."""

import json
import random
from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest

from kanon.gate.storage.aws.control import Control, Place, Progress
from kanon.gate.storage.aws.parts import PartObjects
from kanon.gate.storage.aws.true_objects import step_of
from kanon.local import Stack
from kanon.operate import replay as module
from tests.conftest import START
from tests.e2e.gate.backups import objects, put_object, rows, states
from tests.e2e.gate.operating import begin_generation, deploy
from tests.e2e.gate.oracle import Oracle
from tests.e2e.gate.test_mixtures import SETS, TYPES, join_some, next_steps
from tests.integration.gate.doctor_view import operate, seen, wrong
from tests.snapshot import Snapshot

FIRST = int(START // 3600)
DONE = FIRST + 6
"""The last step before the tests."""


@pytest.fixture(scope="module")
def used() -> Iterator[Snapshot[Oracle]]:
    """A stack in two slots after seven steps."""
    parameters = {"Types": json.dumps(TYPES), "OutageAllowance": "172800", "Slots": "2"}
    with Stack(parameters, start=START, seed=8) as stack:
        oracle, chance = Oracle(stack), random.Random(1)
        for _ in range(FIRST, DONE + 1):
            join_some(oracle, chance)
            assert oracle.finish_step() == 0
        join_some(oracle, chance)  # joins of the step that has begun
        yield Snapshot(stack, oracle)


def replay(stack: Stack, *more: str, answer: str = "y\n") -> tuple[int, str]:
    code, output = operate(stack, "replay", *more, answer=answer)
    return code, " ".join(output.split())


def used_objects(stack: Stack, *, lists: bool) -> list[str]:
    """The objects of the manifests in use: the lists, or their parts."""
    found = []
    for place, row in seen(stack).control.rows():
        assert row.manifest is not None
        pieces = seen(stack).parts(place).list_of(row.manifest).pieces
        found += [row.manifest] if lists else [piece.name for piece in pieces]
    return found


def kept(stack: Stack, slot: int = 0) -> list[int]:
    return [step_of(name) for name in seen(stack).control.row(Place(0, slot)).kept]


def change_status(stack: Stack, change: int | None) -> None:
    """A version with an error released another answer: a crossing at this step, or one less."""
    client, name = stack.session.client("dynamodb"), stack.storage.tables["Statuses"]
    statuses = [item for item in rows(stack, "Statuses") if "crossings" in item]
    item = next(item for item in statuses if kept(stack)[0] < int(item["newest"]["N"]) < DONE)
    if change is None:
        client.delete_item(TableName=name, Key={"set_key": item["set_key"]})
    else:
        crossings = [n for n in item["crossings"]["L"] if int(n["N"]) < change] + [{"N": str(change)}]
        assert crossings != item["crossings"]["L"]
        client.put_item(TableName=name, Item={**item, "crossings": {"L": crossings}, "newest": {"N": str(change)}})


@pytest.mark.parametrize("lists", [True, False], ids=["lists", "parts"])
@pytest.mark.parametrize("content", [None, b"damaged"], ids=["missing", "damaged"])
def test_lost_states_stop_evaluation_and_are_rebuilt_bit_for_bit(
    used: Snapshot[Oracle], content: bytes | None, lists: bool
) -> None:
    oracle = used.restore()
    stack, before = oracle.stack, states(oracle.stack)
    statuses = rows(stack, "Statuses")
    for name in used_objects(stack, lists=lists):
        put_object(stack, name, content)
    if content is None or lists:
        assert wrong(stack)["states"][1] == "states-are-lost-or-wrong"
    assert operate(stack, "replay", "--from", str(DONE), "--yes")[0] != 0  # these are the lost ones
    code, output = replay(stack)
    assert code == 0, output
    assert f"Steps {FIRST + 1} to {DONE} will be evaluated again" in output
    assert states(stack) == before
    assert rows(stack, "Statuses") == statuses
    assert kept(stack) == [FIRST, DONE]
    assert next_steps(oracle) == (False, [0, 0])
    assert wrong(stack) == {}


def test_each_manifest_that_is_kept_gives_the_same_states(used: Snapshot[Oracle]) -> None:
    stack = used.restore().stack
    before = states(stack)
    for step in (FIRST, DONE - 2, DONE - 1):
        stack = used.restore().stack
        assert step in kept(stack)
        code, output = replay(stack, "--from", str(step))
        assert code == 0, output
        assert states(stack) == before


def test_nothing_changes_if_the_operator_does_not_agree(used: Snapshot[Oracle]) -> None:
    stack = used.restore().stack
    before = {name: rows(stack, name) for name in stack.storage.tables}, objects(stack)
    assert replay(stack, answer="n\n")[0] == 1
    assert ({name: rows(stack, name) for name in stack.storage.tables}, objects(stack)) == before


@pytest.mark.parametrize("change", [None, DONE])
def test_a_replay_that_differs_is_refused_and_changes_nothing(used: Snapshot[Oracle], change: int | None) -> None:
    stack = used.restore().stack
    change_status(stack, change)
    manifests = used_objects(stack, lists=True)
    code, output = replay(stack)
    assert (code, "the replay differs from what was released" in output) == (2, True), output
    assert "kanon operate new-generation" in output
    assert used_objects(stack, lists=True) == manifests
    assert begin_generation(stack) > DONE
    stack.advance(7200)
    assert min(mark or 0 for mark in seen(stack).marks.values()) > DONE


def test_a_log_that_lacks_rows_is_refused(used: Snapshot[Oracle]) -> None:
    stack = used.restore().stack
    client, name = stack.session.client("dynamodb"), stack.storage.tables["StepLog"]
    for item in rows(stack, "StepLog"):
        if FIRST < int.from_bytes(item["step_slot"]["B"][:8], "big", signed=True) <= DONE:
            client.delete_item(TableName=name, Key={key: item[key] for key in ("step_slot", "set_token")})
    code, output = replay(stack)
    assert (code, "the replay differs from what was released" in output) == (2, True), output


@pytest.mark.parametrize(("place", "name"), [(PartObjects, "put"), (Control, "restate")])
def test_an_interrupted_replay_changes_no_answer_and_can_be_repeated(
    used: Snapshot[Oracle], monkeypatch: pytest.MonkeyPatch, place: Any, name: str
) -> None:
    oracle = used.restore()
    stack, before, calls = oracle.stack, states(oracle.stack), count()
    method = getattr(place, name)

    def failing(*arguments: Any) -> Any:
        if next(calls) == 1:
            raise KeyboardInterrupt
        return method(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(place, name, failing)
        assert replay(stack)[0] != 0
    assert [row.lease_until for _, row in seen(stack).control.rows()] == [None, None]
    assert states(stack) == before
    assert replay(stack)[0] == 0
    assert states(stack) == before
    assert next_steps(oracle) == (False, [0, 0])


@pytest.mark.parametrize("command", ["replay", "repair"])
def test_crossings_that_a_dead_worker_has_not_written_follow(used: Snapshot[Oracle], command: str) -> None:
    """A worker recorded a step as decided, wrote some of its crossings, and died. Then its parts were lost."""
    oracle = used.restore()
    stack, step = oracle.stack, DONE + 1
    oracle.join_all([("a", name, f"crowd {n}") for name in SETS for n in range(12)])
    written = {item["set_key"]["B"]: item for item in rows(stack, "Statuses")}
    before = rows(stack, "Control"), rows(stack, "Statuses")
    assert oracle.finish_step() == 0
    after, expected = {item["set_key"]["B"]: item for item in rows(stack, "Statuses")}, states(stack)
    client, tables = stack.session.client("dynamodb"), stack.storage.tables
    crossed = sorted(key for key, item in after.items() if item.get("newest") == {"N": str(step)})
    assert len(crossed) > 2
    for key in {*after} - {crossed[0]}:  # one crossing is out
        client.delete_item(TableName=tables["Statuses"], Key={"set_key": {"B": key}})
        if key in written:
            client.put_item(TableName=tables["Statuses"], Item=written[key])
    runs = {place: row.run for place, row in seen(stack).control.rows()}
    for item in before[0]:
        client.put_item(TableName=tables["Control"], Item=item)
    for place, run in runs.items():
        control = seen(stack).control
        control.raise_run(place, control.row(place).run, run)
        base = control.row(place)
        control.record_decided(place, base.run, step, Progress(base.manifest or "", "lost", 0))
    assert wrong(stack)["states"] == ("FAIL", "states-are-lost-or-wrong")
    code, output = operate(stack, command, "--yes")
    assert code == 0, output
    assert "states" not in wrong(stack)
    stack.tick()
    assert {item["set_key"]["B"]: item.get("crossings") for item in rows(stack, "Statuses")} == {
        key: item.get("crossings") for key, item in after.items()
    }
    assert states(stack) == expected
    assert next_steps(oracle) == (False, [0, 0])


@pytest.mark.parametrize(
    ("step", "hours", "refusal"),
    [
        (FIRST - 2, 0, f"states are kept after steps {FIRST}, {FIRST + 2}, {DONE - 2}, {DONE - 1}, {DONE}"),
        (FIRST, 45, "the log does not reach back before step"),
        (DONE, 0, f"no step after {DONE} is evaluated: begin with earlier states (--from), if any are kept; otherwise"),
    ],
)
def test_a_replay_from_an_impossible_step_is_refused(
    used: Snapshot[Oracle], step: int, hours: int, refusal: str
) -> None:
    stack = used.restore().stack
    stack.clock.set(stack.clock.now() + hours * 3600)
    before = used_objects(stack, lists=True)
    code, output = replay(stack, "--from", str(step))
    assert (code, refusal in output) == (2, True), output
    assert used_objects(stack, lists=True) == before


@pytest.mark.parametrize("what", ["skip", "repair", "retire", "generation"])
def test_a_step_before_a_change_by_an_operator_is_refused(used: Snapshot[Oracle], what: str) -> None:
    stack = used.restore().stack
    refusal = "states are kept after steps none"
    if what == "skip":
        stack.clock.set(stack.clock.now() + 45 * 3600)
        assert operate(stack, "skip", "--yes")[0] == 0
        refusal = f"states are kept after steps {kept(stack)[0]}"
    if what == "repair":
        put_object(stack, seen(stack).control.row(Place(0, 0)).manifest or "", None)
        assert operate(stack, "repair", "--yes")[0] == 0
        refusal = f"states are kept after steps {DONE}"
    if what == "retire":
        types = json.dumps({"b": TYPES["a"], "c": TYPES["c"]})
        deploy(stack, KANON_TYPES=types)
        assert operate(stack, "retire", "a", "--yes")[0] == 0
        refusal = f"`kanon operate retire` changed what is evaluated up to step {DONE + 1}"
    if what == "generation":
        assert begin_generation(stack) == DONE + 1
        refusal = f"states are kept after steps {DONE}"
    code, output = replay(stack, "--from", str(FIRST))
    assert (code, refusal in output) == (2, True), output


def test_lost_states_to_begin_with_are_named_with_what_to_do(used: Snapshot[Oracle]) -> None:
    stack = used.restore().stack
    put_object(stack, seen(stack).control.row(Place(0, 1)).kept[0], None)
    code, output = replay(stack)
    assert code == 2
    assert (
        f"slot 1: states to begin with are missing or damaged: begin with others (--from with one of {FIRST}," in output
    )
    assert replay(stack, "--from", str(FIRST + 2))[0] == 0


MOVED = DONE
"""The first step of four slots."""


@pytest.fixture(scope="module")
def moved() -> Iterator[Snapshot[Oracle]]:
    """A stack whose two slots became four."""
    slots = [{"slots": 2, "from_step": 0}, {"slots": 4, "partitions": 2, "from_step": MOVED}]
    parameters = {
        "Types": json.dumps(TYPES),
        "OutageAllowance": "172800",
        "Slots": json.dumps(slots, separators=(",", ":")),
    }
    with Stack(parameters, start=START, seed=8, name="moved") as stack:
        oracle, chance = Oracle(stack), random.Random(1)
        for _ in range(FIRST, DONE + 1):
            join_some(oracle, chance)
            assert oracle.finish_step() == 0
        yield Snapshot(stack, oracle)


@pytest.mark.parametrize("step", [None, FIRST, MOVED - 1, MOVED])
def test_states_of_the_new_slots_are_rebuilt_also_from_those_of_the_old_ones(
    moved: Snapshot[Oracle], step: int | None
) -> None:
    oracle = moved.restore()
    stack, before = oracle.stack, states(oracle.stack)
    code, output = replay(stack, *([] if step is None else ["--from", str(step)]))
    assert code == 0, output
    assert states(stack) == before
    assert next_steps(oracle) == (False, [0, 0])
    assert wrong(stack) == {}


def test_states_before_a_change_of_slots_are_kept_until_readers_see_the_new_slots(moved: Snapshot[Oracle]) -> None:
    oracle = moved.restore()
    oracle.stack.advance(26 * 3600)  # the sweep follows
    code, output = replay(oracle.stack, "--from", str(MOVED - 1))
    assert (code, "slot 0 has no such states" in output) == (2, True), output


def test_no_slot_of_any_layout_can_be_evaluated_during_a_replay(
    moved: Snapshot[Oracle], monkeypatch: pytest.MonkeyPatch
) -> None:
    stack, held = moved.restore().stack, []
    compare = module._is_same

    def compared(*arguments: Any) -> bool:
        held.append({place for place, row in seen(stack).control.rows() if row.lease_until is not None})
        return compare(*arguments)

    monkeypatch.setattr(module, "_is_same", compared)
    assert replay(stack)[0] == 0
    assert held[-1] == {place for place, row in seen(stack).control.rows() if not row.retired}


def test_another_noise_key_is_refused_before_anything_is_evaluated(used: Snapshot[Oracle]) -> None:
    stack = used.restore().stack
    arn = stack.functions["evaluate"].environment["KANON_NOISE_KEY_SECRET"]
    text = json.dumps({"1": "another " * 8})
    stack.session.client("secretsmanager").put_secret_value(SecretId=arn, SecretString=text)
    code, output = replay(stack)
    assert (code, "noise-key 1 differ from what this deployment started with" in output) == (2, True), output
