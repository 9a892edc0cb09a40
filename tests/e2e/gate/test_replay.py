"""`kanon operate replay`: Members of an earlier step are used only if a second evaluation gives the released
answers."""

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest
from kanon.gate.storage.members import Members, from_item

from kanon.gate.slots import Layout
from kanon.gate.storage.aws.step_log import StepLog
from kanon.local import Stack
from kanon.operate import replay as module
from kanon.operate.changes import ChangeRefusedError, newest_change
from tests.conftest import START
from tests.e2e.gate.backups import put_back, restored, rows
from tests.e2e.gate.oracle import Oracle
from tests.e2e.gate.test_mixtures import SETS, TYPES, join_some, next_steps
from tests.integration.gate.doctor_view import operate, seen, wrong
from tests.snapshot import Snapshot

FIRST = int(START // 3600)
BACKUP, DONE = FIRST + 2, FIRST + 6
"""The last steps before the backup of Members, and before the tests."""
NUMBERS = count()


@dataclass
class Used:
    """A stack in two slots after seven steps."""

    snapshot: Snapshot[Oracle]
    backup: list[dict[str, Any]]
    mixed: list[dict[str, Any]]
    """Members some of which were evaluated at the next step already, as at any second of an evaluation."""

    def oracle(self) -> Oracle:
        return self.snapshot.restore()


@pytest.fixture(scope="module")
def used() -> Iterator[Used]:
    parameters = {"Types": json.dumps(TYPES), "OutageAllowance": "172800", "Slots": "2"}
    with Stack(parameters, start=START, seed=8) as stack:
        oracle, chance = Oracle(stack), random.Random(1)
        for step in range(FIRST, DONE + 1):
            if step == BACKUP + 1:
                backup = rows(stack, "Members")
            join_some(oracle, chance)
            assert oracle.finish_step() == 0
            if step == BACKUP + 1:
                later = {item["set_key"]["B"]: item for item in rows(stack, "Members")}
        mixed = [later[i["set_key"]["B"]] if n % 3 and "members" in i else i for n, i in enumerate(backup)]
        join_some(oracle, chance)  # joins of the step that has begun
        yield Used(Snapshot(stack, oracle), backup, mixed)


def replay(stack: Stack, step: int, *more: str, answer: str = "y\n") -> tuple[int, str]:
    return operate(stack, "replay", "--from", str(step), *more, answer=answer)


def table(stack: Stack, items: list[dict[str, Any]]) -> str:
    return restored(stack, "Members", items, f"restored-{next(NUMBERS)}")


def begin_generation(stack: Stack) -> int:
    """Begin a log generation by the command and deploy what it prints; its first step."""
    code, output = operate(stack, "new-generation", "--yes")
    assert code == 0, output
    stack.functions["evaluate"].environment["KANON_LOG_GENERATIONS"] = output.splitlines()[-1]  # type: ignore[index]
    stack.restart("evaluate")
    first: int = json.loads(output.splitlines()[-1])[-1]["from_step"]
    return first


def stored(stack: Stack) -> list[dict[str, Any]]:
    return sorted(rows(stack, "Members"), key=lambda item: item["set_key"]["B"])


@pytest.mark.parametrize(("end", "why"), [("ACTIVE", None), ("ARCHIVED", "is ARCHIVED"), (None, "there is no table")])
def test_the_command_waits_for_hours_until_a_table_is_restored(end: str | None, why: str | None) -> None:
    class ResourceNotFoundException(Exception):  # noqa: N818, as AWS names it
        pass

    statuses, waited = iter([*["CREATING"] * 400, end]), []

    def describe_table(TableName: str) -> Any:  # noqa: N803, as the client names it
        if (status := next(statuses)) is None:
            raise ResourceNotFoundException(TableName)
        return {"Table": {"TableStatus": status}}

    exceptions = SimpleNamespace(ResourceNotFoundException=ResourceNotFoundException)
    client = SimpleNamespace(describe_table=describe_table, exceptions=exceptions)
    stack: Any = SimpleNamespace(client=lambda _: client)
    if why is None:
        module.wait_until_restored(stack, "copy", waited.append)
    else:
        with pytest.raises(ChangeRefusedError, match=why):
            module.wait_until_restored(stack, "copy", waited.append)
    assert sum(waited) == 12_000


def test_a_table_that_does_not_exist_is_refused(used: Used) -> None:
    code, output = replay(used.oracle().stack, BACKUP, "--members", "none")
    assert (code, "there is no table none" in output) == (2, True), output


def change_status(stack: Stack, change: int | None) -> None:
    """A version with an error released another answer: a crossing at this step, or one less."""
    client, name = stack.session.client("dynamodb"), stack.storage.tables["Statuses"]
    statuses = [item for item in rows(stack, "Statuses") if "crossings" in item]
    item = next(item for item in statuses if BACKUP < int(item["newest"]["N"]) < DONE)
    if change is None:
        client.delete_item(TableName=name, Key={"set_key": item["set_key"]})
    else:
        crossings = [n for n in item["crossings"]["L"] if int(n["N"]) < change] + [{"N": str(change)}]
        assert crossings != item["crossings"]["L"]
        client.put_item(TableName=name, Item={**item, "crossings": {"L": crossings}, "newest": {"N": str(change)}})


@pytest.mark.parametrize(("damage", "members"), [("emptied", "mixed"), ("older", "backup"), ("wrong", "backup")])
def test_members_that_were_lost_are_rebuilt_bit_for_bit_and_no_answer_changes(
    used: Used, damage: str, members: str
) -> None:
    oracle = used.oracle()
    stack, before = oracle.stack, stored(oracle.stack)
    statuses = rows(stack, "Statuses")
    wrong_rows = [
        {**i, "wake_up": {"N": "1"}} | ({"members": before[-1]["members"]} if "members" in i else {}) for i in before
    ]
    put_back(stack, {"Members": {"emptied": [], "older": used.backup, "wrong": wrong_rows}[damage]}, ("Members",))
    code, output = replay(stack, BACKUP, "--members", table(stack, getattr(used, members)))
    assert code == 0, output
    assert f"Steps {BACKUP + 1} to {DONE} will be evaluated again" in output
    assert stored(stack) == before
    assert rows(stack, "Statuses") == statuses
    assert next_steps(oracle) == (False, [0, 0])
    assert wrong(stack) == {}


def test_the_states_may_be_in_the_table_of_the_stack_itself(used: Used) -> None:
    oracle = used.oracle()
    before = stored(oracle.stack)
    put_back(oracle.stack, {"Members": used.backup}, ("Members",))
    assert replay(oracle.stack, BACKUP)[0] == 0
    assert stored(oracle.stack) == before


def test_nothing_changes_if_the_operator_does_not_agree(used: Used) -> None:
    stack = used.oracle().stack
    before = {name: rows(stack, name) for name in stack.storage.tables}
    assert replay(stack, BACKUP, "--members", table(stack, used.backup), answer="n\n")[0] == 1
    assert {name: rows(stack, name) for name in stack.storage.tables} == before


@pytest.mark.parametrize("change", [None, DONE, BACKUP])
def test_a_replay_that_differs_is_refused_and_only_a_new_generation_continues(used: Used, change: int | None) -> None:
    oracle = used.oracle()
    stack = oracle.stack
    put_back(stack, {"Members": []}, ("Members",))
    change_status(stack, change)
    code, output = replay(stack, BACKUP, "--members", table(stack, used.backup))
    assert (code, "the replay differs from what was released" in output) == (2, True), output
    assert "kanon operate new-generation" in output
    assert stored(stack) == []
    stack.tick()
    assert "restored or emptied" in stack.logs.getvalue()  # type: ignore[attr-defined]
    assert begin_generation(stack) > DONE
    stack.advance(7200)
    assert min(p.evaluated_through or 0 for p in seen(stack).control.progress()) > DONE


@pytest.mark.parametrize("change", [None, DONE])
def test_a_refused_replay_in_the_table_of_the_stack_leaves_evaluation_stopped(used: Used, change: int | None) -> None:
    oracle = used.oracle()
    stack = oracle.stack
    put_back(stack, {"Members": used.backup}, ("Members",))
    change_status(stack, change)
    assert replay(stack, BACKUP)[0] == 2
    released = rows(stack, "Statuses")
    stopped, _ = next_steps(oracle)
    assert stopped
    assert [item for item in rows(stack, "Statuses") if "crossings" in item] == [
        item for item in released if "crossings" in item
    ]


def test_a_log_that_lacks_rows_is_refused(used: Used) -> None:
    stack = used.oracle().stack
    client, name = stack.session.client("dynamodb"), stack.storage.tables["StepLog"]
    for item in rows(stack, "StepLog"):
        if BACKUP < int.from_bytes(item["step_slot"]["B"][:8], "big", signed=True) <= DONE:
            client.delete_item(TableName=name, Key={key: item[key] for key in ("step_slot", "set_token")})
    code, output = replay(stack, BACKUP, "--members", table(stack, used.backup))
    assert (code, "the replay differs from what was released" in output) == (2, True), output


@pytest.mark.parametrize("fails", ["while evaluating", "while copying", "before the mark"])
def test_an_interrupted_replay_stops_evaluation_or_changes_nothing_and_can_be_repeated(
    used: Used, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    oracle = used.oracle()
    stack, before = oracle.stack, stored(oracle.stack)
    source = table(stack, used.backup)
    calls = count()

    def failing(method: Any) -> Any:
        def call(*arguments: Any) -> Any:
            if next(calls) == 1:
                raise KeyboardInterrupt
            return method(*arguments)

        return call

    place, name = {
        "while evaluating": (StepLog, "put_wake_ups"),
        "while copying": (Members, "put_all"),
        "before the mark": (module, "put_stamps"),
    }[fails]
    monkeypatch.setattr(module, "ITEMS_A_BATCH", 5)
    with monkeypatch.context() as patch:
        patch.setattr(place, name, failing(getattr(place, name)))
        assert replay(stack, BACKUP, "--members", source)[0] != 0
    assert [p.lease_until for p in seen(stack).control.progress()] == [None, None]
    if fails == "while evaluating":
        assert stored(stack) == before
    else:
        stack.tick()
        assert "restored or emptied" in stack.logs.getvalue()  # type: ignore[attr-defined]
    assert replay(stack, BACKUP, "--members", source)[0] == 0
    assert stored(stack) == before


def test_unwritten_rows_of_a_dead_worker_are_written(used: Used) -> None:
    """A worker wrote the statuses of all sets but one of a step, and died."""
    oracle = used.oracle()
    stack, step, client = oracle.stack, DONE + 1, oracle.stack.session.client("dynamodb")
    before = {item["set_key"]["B"]: item for item in rows(stack, "Statuses")}
    backup = {name: rows(stack, name) for name in ("Members", "Control")}
    oracle.join_all([("a", name, f"crowd {n}") for name in SETS for n in range(12)])
    assert oracle.finish_step() == 0
    after = {item["set_key"]["B"]: item for item in rows(stack, "Statuses")}
    crossed = [key for key, item in after.items() if item.get("newest") == {"N": str(step)}]
    slots = {key: Layout(2, 0).slot_of(key) for key in crossed}
    lost = next(key for key in crossed if list(slots.values()).count(slots[key]) > 1)
    name = stack.storage.tables["Statuses"]
    for key in (lost, bytes([0]), bytes([1])):
        client.delete_item(TableName=name, Key={"set_key": {"B": key}})
        if key in before:
            client.put_item(TableName=name, Item=before[key])
    put_back(stack, backup, ("Members", "Control"))
    code, output = replay(stack, BACKUP, "--members", table(stack, used.backup))
    assert code == 0, output
    written = {item["set_key"]["B"]: item.get("crossings") for item in rows(stack, "Statuses")}
    assert written == {key: item.get("crossings") for key, item in after.items()}
    assert next_steps(oracle) == (False, [0, 0])


def test_the_next_step_is_evaluated_from_its_beginning_despite_a_stored_place(used: Used) -> None:
    """A worker committed sets of the next step, none of which crossed, and stored its place. Then Members were lost."""
    undisturbed = used.oracle()
    assert next_steps(undisturbed) == (False, [0, 0])
    expected = stored(undisturbed.stack)
    oracle = used.oracle()
    stack, now, running = oracle.stack, oracle.stack.clock.now(), seen(oracle.stack)
    for slot in (0, 1):
        last = running.evaluate.layouts.at(DONE).keys_of(slot)[1]
        assert running.control.lease(slot, "worker", now, now + 1)
        running.control.release(slot, "worker", (DONE + 1, last))
    put_back(stack, {"Members": []}, ("Members",))
    assert replay(stack, BACKUP, "--members", table(stack, used.backup))[0] == 0
    assert next_steps(oracle) == (False, [0, 0])
    assert stored(stack) == expected


def test_control_that_was_emptied_is_rebuilt(used: Used) -> None:
    oracle = used.oracle()
    put_back(oracle.stack, {"Control": [], "Members": []}, ("Control", "Members"))
    assert replay(oracle.stack, BACKUP, "--members", table(oracle.stack, used.backup))[0] == 0
    assert {p.evaluated_through for p in seen(oracle.stack).control.progress()} == {DONE}
    assert next_steps(oracle) == (False, [0, 0])


@pytest.mark.parametrize(
    ("step", "hours", "refusal"),
    [
        (BACKUP + 1, 0, f"complete through step {BACKUP}: give that step, or a table of a later time"),
        (DONE + 1, 0, "there is nothing to replay"),
        (BACKUP, 42, "the log does not reach back that far: give step "),
        (FIRST - 2, 0, "there may be more in 7 steps: give step "),
    ],
)
def test_a_replay_from_an_impossible_step_is_refused(used: Used, step: int, hours: int, refusal: str) -> None:
    stack = used.oracle().stack
    stack.clock.set(stack.clock.now() + hours * 3600)
    before = stored(stack)
    code, output = replay(stack, step, "--members", table(stack, used.backup))
    assert (code, refusal in " ".join(output.split())) == (2, True), output
    assert stored(stack) == before


@pytest.mark.parametrize("what", ["skip", "repair", "retire", "generation"])
def test_a_step_before_a_change_by_an_operator_is_refused(used: Used, what: str) -> None:
    stack = used.oracle().stack
    source = table(stack, used.backup)
    if what == "skip":
        stack.clock.set(stack.clock.now() + 45 * 3600)
        assert operate(stack, "skip", "--yes")[0] == 0
        stack.advance(3600)
    if what == "repair":
        item = next(item for item in rows(stack, "Members") if "members" in item)
        client = stack.session.client("dynamodb")
        client.put_item(TableName=stack.storage.tables["Members"], Item={**item, "members": {"B": b"?"}})
        assert operate(stack, "repair", "--yes")[0] == 0
    if what == "retire":
        types = json.dumps({"b": TYPES["a"], "c": TYPES["c"]})
        for name, function in stack.functions.items():
            function.environment["KANON_TYPES"] = types  # type: ignore[index]
            stack.restart(name)
        assert operate(stack, "retire", "a", "--yes")[0] == 0
    if what == "generation":
        assert begin_generation(stack) == DONE + 1
    code, output = replay(stack, BACKUP, "--members", source)
    said = {"generation": f"a log generation begins at step {DONE + 1}", "skip": "the log does not reach back"}
    refusal = said.get(what, f"`kanon operate {what}` changed what is evaluated up to step {DONE + 1}")
    assert (code, refusal in " ".join(output.split())) == (2, True), output


def test_steps_that_were_skipped_are_never_evaluated_again(used: Used) -> None:
    """The log and Statuses still reach back to them: only the record of the skip prevents the replay."""
    oracle = used.oracle()
    stack = oracle.stack
    stack.clock.set(stack.clock.now() + 45 * 3600)
    assert operate(stack, "skip", "--yes")[0] == 0
    last_skipped = newest_change(seen(stack).control)
    assert last_skipped is not None
    assert last_skipped[1] == "skip"
    before = stored(stack)
    code, output = replay(stack, last_skipped[0] - 1)
    refusal = f"`kanon operate skip` changed what is evaluated up to step {last_skipped[0]}: give that step or a later"
    assert (code, refusal in " ".join(output.split())) == (2, True), output
    assert stored(stack) == before
    stack.advance(3600)
    before = stored(stack)
    through = max(progress.evaluated_through or 0 for progress in seen(stack).control.progress())
    assert replay(stack, max(last_skipped[0], through - 6))[0] == 0
    assert stored(stack) == before
    assert wrong(stack) == {}


@pytest.fixture(scope="module")
def moved() -> Iterator[tuple[Snapshot[Oracle], dict[int, list[dict[str, Any]]]]]:
    """A stack whose two slots became four at step BACKUP + 2, and Members after each of its steps."""
    slots = [{"slots": 2, "from_step": 0}, {"slots": 4, "partitions": 2, "from_step": BACKUP + 2}]
    parameters = {
        "Types": json.dumps(TYPES),
        "OutageAllowance": "172800",
        "Slots": json.dumps(slots, separators=(",", ":")),
    }
    with Stack(parameters, start=START, seed=8, name="moved") as stack:
        oracle, chance, after = Oracle(stack), random.Random(1), {}
        for step in range(FIRST, DONE + 1):
            join_some(oracle, chance)
            assert oracle.finish_step() == 0
            after[step] = rows(stack, "Members")
        yield Snapshot(stack, oracle), after


def test_a_replay_over_a_change_of_slots_is_refused_with_the_first_possible_step(
    moved: tuple[Snapshot[Oracle], dict[int, list[dict[str, Any]]]],
) -> None:
    snapshot, after = moved
    oracle = snapshot.restore()
    stack, before = oracle.stack, stored(oracle.stack)
    assert len({progress.slot for progress in seen(stack).control.progress()}) == 4
    put_back(stack, {"Members": after[BACKUP]}, ("Members",))
    code, output = replay(stack, BACKUP)
    refusal = f"the number of slots changes at step {BACKUP + 2}: give step {BACKUP + 1} or later"
    assert (code, refusal in " ".join(output.split())) == (2, True), output
    code, output = replay(stack, BACKUP + 1, "--members", table(stack, after[BACKUP + 1]))
    assert code == 0, output
    assert stored(stack) == before
    assert next_steps(oracle)[0] is False
    assert wrong(stack) == {}


@pytest.mark.parametrize("step", [BACKUP + 1, BACKUP + 2])
def test_members_of_the_new_slots_are_rebuilt_bit_for_bit(
    moved: tuple[Snapshot[Oracle], dict[int, list[dict[str, Any]]]], step: int
) -> None:
    snapshot, after = moved
    oracle = snapshot.restore()
    stack, before = oracle.stack, stored(oracle.stack)
    put_back(stack, {"Members": after[step]}, ("Members",))
    code, output = replay(stack, step)
    assert code == 0, output
    assert stored(stack) == before


LATER = FIRST + 2
"""The first step of the new slots in the two tests that follow."""


@pytest.fixture
def moving() -> Iterator[Oracle]:
    """A stack whose two slots become four at step LATER, after its second step. No set has crossed."""
    slots = [{"slots": 2, "from_step": 0}, {"slots": 4, "partitions": 2, "from_step": LATER}]
    parameters = {
        "Types": json.dumps(TYPES),
        "OutageAllowance": "172800",
        "Slots": json.dumps(slots, separators=(",", ":")),
    }
    with Stack(parameters, start=START, seed=8, name="moving") as stack:
        oracle = Oracle(stack)
        for _ in range(2):
            oracle.join_all([("a", name, "c1") for name in SETS])
            assert oracle.finish_step() == 0
        yield oracle


def test_a_replay_over_a_change_of_slots_is_refused_as_soon_as_one_new_slot_has_evaluated_a_step(
    moving: Oracle,
) -> None:
    stack, control = moving.stack, seen(moving.stack).control
    source = table(stack, rows(stack, "Members"))
    for slot in (0, 1):  # these are late
        assert control.lease(slot, "another", stack.clock.now(), stack.clock.now() + 7200)
    moving.join_all([("a", name, "c2") for name in SETS])
    stack.advance(3600)
    marks = {p.slot: p.evaluated_through for p in control.progress()}
    assert marks == {0: LATER - 1, 1: LATER - 1, 2: LATER, 3: LATER}
    for slot in (0, 1):
        control.release(slot, "another")
    before = stored(stack)
    code, output = replay(stack, LATER - 2, "--members", source)
    assert (code, f"the number of slots changes at step {LATER}" in " ".join(output.split())) == (2, True), output
    assert stored(stack) == before


def test_no_slot_of_any_layout_can_be_evaluated_during_a_replay(
    moving: Oracle, monkeypatch: pytest.MonkeyPatch
) -> None:
    stack, held = moving.stack, []
    compare = module._compare

    def compared(*arguments: Any) -> None:
        held.append({p.slot for p in seen(stack).control.progress() if p.lease_until is not None})
        compare(*arguments)

    monkeypatch.setattr(module, "_compare", compared)
    assert replay(stack, LATER - 2, "--members", table(stack, rows(stack, "Members")))[0] == 0
    assert held == [{0, 1, 2, 3}]
    assert wrong(stack) == {}
    assert next_steps(moving) == (False, [0, 0])


def test_another_noise_key_is_refused_before_anything_is_evaluated(used: Used) -> None:
    stack = used.oracle().stack
    arn = stack.functions["evaluate"].environment["KANON_NOISE_KEY_SECRET"]
    text = json.dumps({"1": "another " * 8})
    stack.session.client("secretsmanager").put_secret_value(SecretId=arn, SecretString=text)
    code, output = replay(stack, BACKUP, "--members", table(stack, used.backup))
    assert (code, "noise-key 1 differ from what this deployment started with" in output) == (2, True), output


def test_the_states_of_the_backup_differ_from_the_current_ones(used: Used) -> None:
    """This shows that the tests above compare different states."""
    now = {item["set_key"]["B"]: item for item in stored(used.oracle().stack) if "members" in item}
    then = [item for item in used.backup if "members" in item]
    assert len(then) == len(SETS)
    assert all(from_item(item) != from_item(now[item["set_key"]["B"]]) for item in then)
    assert {int(x["N"]) for i in now.values() for x in i.get("crossings", {"L": []})["L"]} & {*range(BACKUP + 1, DONE)}
