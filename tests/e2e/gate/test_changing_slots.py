"""The number of slots changes while joins go on: every answer, status and state of a set stays the same."""

import json
import random
from collections.abc import Iterator
from itertools import pairwise

import pytest

from kanon.gate.mechanism.above_threshold import SetState
from kanon.gate.parts import keys_of
from kanon.gate.storage.aws.control import Place, Progress
from kanon.local import Stack
from kanon.operate.changes import ChangeRefusedError
from kanon.operate.generation import begin
from kanon.operate.replay import plan
from kanon.operate.skip import gaps
from tests.conftest import START
from tests.e2e.gate.backups import parts_of, rows, states
from tests.e2e.gate.operating import deploy, stops
from tests.e2e.gate.oracle import Oracle, laws
from tests.integration.gate.doctor_view import findings, operate, seen, wrong

LAWS = laws("two-sided", "0.5", 3, 4)
TYPES = {
    "a": {"k": 8, "window": 5, "laws": LAWS},
    "b": {"k": 9, "window": 7, "laws": LAWS, "client_bits": 8},
    "c": {"k": 8, "window": 5, "laws": LAWS, "restart": "crossing", "hold": 6, "epoch": 13},
}
WINDOW = 7
SETS = [(name, b"set %d" % n) for n in range(8) for name in TYPES]
HOUR = 3600
ALLOWANCE = 48
FUNCTIONS = ("evaluate", "join", "query", "sweep")
Entry = tuple[int, int] | tuple[int, int, int]
"""Slots, first step, and partitions."""
Sets = tuple[dict[bytes, tuple[int, SetState]], list[str]]


class Changing:
    """A stack in use, with the same joins in the same steps for any slots."""

    def __init__(self, stack: Stack) -> None:
        self.stack = stack
        self.random = random.Random(4)
        self.oracle = Oracle(stack)
        self.answers: list[dict[tuple[str, bytes], bool]] = []

    @property
    def step(self) -> int:
        return int(self.stack.clock.now() // HOUR)

    def join(self) -> None:
        """Join some sets. The others are idle, and cross in the step of a wake-up."""
        joined = self.random.sample(SETS, 6)
        self.oracle.join_all([(*name, f"c{self.random.randrange(14)}") for name in joined for _ in range(9)])

    def steps(self, count: int, *, joins: bool = True) -> None:
        """Some steps with their ticks; every answer is that of the plain algorithm."""
        for _ in range(count):
            if joins:
                self.join()
            assert self.oracle.finish_step() == 0
            self.answers.append(self.oracle.answered)

    def deploy(self, *entries: Entry, functions: tuple[str, ...] = FUNCTIONS) -> None:
        """Deploy with these entries of the parameter Slots."""
        names = ("slots", "from_step", "partitions")
        value = json.dumps([dict(zip(names, entry, strict=False)) for entry in entries])
        deploy(self.stack, *functions, KANON_SLOTS=value)

    def sets(self) -> Sets:
        """The state of every set that a later step needs, and every item of Statuses that belongs to a set."""
        self.stack.invoke("sweep", {})  # retires old slots
        parts = [part.rows(part.ends >= self.step) for part in parts_of(self.stack)]
        needed = {key for part in parts for key in keys_of(part.keys)}
        statuses = sorted(
            json.dumps(item, sort_keys=True, default=bytes.hex)
            for item in rows(self.stack, "Statuses")
            if len(item["set_key"]["B"]) == 32
        )
        return {key: state for key, state in states(self.stack).items() if key in needed}, statuses

    def marks(self) -> dict[int, int | None]:
        return seen(self.stack).marks


def packed_items(stack: Stack) -> int:
    """The number of packed items in the log."""
    return sum("joins" in item for item in rows(stack, "StepLog"))


@pytest.fixture
def stacks() -> Iterator[list[Stack]]:
    """Stacks entered by a test, left after it."""
    entered: list[Stack] = []
    yield entered
    for stack in reversed(entered):
        stack.__exit__(None, None, None)


def begun(stacks: list[Stack], slots: int, steps: int = 3) -> Changing:
    """A stack with the given number of slots, after some steps in use."""
    parameters = {"Types": json.dumps(TYPES), "Slots": str(slots), "OutageAllowance": str(ALLOWANCE * HOUR)}
    stacks.append(Stack(parameters, start=START, seed=8).__enter__())
    changing = Changing(stacks[-1])
    changing.steps(steps)
    return changing


def test_from_one_slot_to_eight_under_traffic_everything_stays_bit_for_bit(stacks: list[Stack]) -> None:
    def go_on(changing: Changing) -> tuple[list[dict[tuple[str, bytes], bool]], Sets]:
        changing.steps(6)
        changing.steps(4, joins=False)
        return changing.answers, changing.sets()

    stayed = go_on(begun(stacks, 1, 2))
    stacks.pop().__exit__(None, None, None)
    moved = begun(stacks, 1, 2)
    first = moved.step + 3
    moved.deploy((1, 0), (8, first, 2))
    answers, _ = found = go_on(moved)
    assert found == stayed
    assert packed_items(moved.stack) > 10
    assert sum(old[name] != new[name] for old, new in pairwise(answers[5:]) for name in old) > 5  # with eight slots
    assert moved.marks() == dict.fromkeys(range(8), moved.step - 1)
    assert wrong(moved.stack) == {}
    assert findings(moved.stack)["slots"][0].seen == f"1, and 8 x 2 from step {first} on; no others recorded"

    for _ in range(ALLOWANCE // 4):
        moved.stack.clock.set(moved.stack.clock.now() + 4 * HOUR)
        moved.stack.tick()
    moved.deploy((8, first, 2))  # an outage allowance later, the old entry is removed
    moved.stack.advance(2 * HOUR)
    assert moved.marks() == dict.fromkeys(range(8), moved.step - 1)
    assert wrong(moved.stack) == {}


def test_an_outage_across_two_changes_is_caught_up_in_one_tick(stacks: list[Stack]) -> None:
    """Eight slots become two, then four. Nothing is evaluated in between."""
    changing = begun(stacks, 8, 2)
    first, second = changing.step + 4, changing.step + 6
    changing.deploy((8, 0), (2, first), (4, second))
    changing.steps(1)
    missed = 6
    for _ in range(missed):
        changing.join()
        changing.oracle.pass_step()
        changing.stack.clock.set(changing.stack.clock.now() + HOUR)  # the schedule does not fire
    changing.steps(2)
    assert changing.marks() == {slot: changing.step - 1 if slot < 4 else first - 1 for slot in range(8)}
    assert wrong(changing.stack) == {}
    changing.steps(WINDOW, joins=False)


def test_a_layout_that_begins_too_early_is_refused_and_no_join_is_lost(stacks: list[Stack]) -> None:
    changing = begun(stacks, 1)
    late = changing.step + 1
    changing.deploy((1, 0), (8, late))
    reason = f"the entry of Slots that begins at step {late} is new: let it begin at step {late + 1} or later"
    assert stops(changing.stack) == reason
    response = changing.stack.request("POST", "/v1/types/a/sets/aGVsbG8:join", {"client": "me"})
    assert response.status == 503
    changing.deploy((1, 0), (8, late + 1))
    changing.stack.tick()
    changing.steps(4)


def test_an_entry_recorded_by_join_in_time_is_valid_even_if_evaluation_was_down(
    stacks: list[Stack],
) -> None:
    changing = begun(stacks, 1)
    changing.deploy((1, 0), (4, changing.step + 2))
    for _ in range(4):
        changing.join()
        changing.oracle.pass_step()
        changing.stack.clock.set(changing.stack.clock.now() + HOUR)  # the schedule does not fire
    changing.steps(3)


def test_after_a_rollback_evaluation_stops_before_the_missing_entry_and_no_join_is_lost(
    stacks: list[Stack],
) -> None:
    changing = begun(stacks, 1, 2)
    first = changing.step + 4
    changing.deploy((1, 0), (2, first, 2))
    changing.steps(1)
    changing.deploy((1, 0))
    value = f'[{{"slots":1,"from_step":0}},{{"slots":2,"partitions":2,"from_step":{first}}}]'
    finding = findings(changing.stack)["slots"][0]
    assert (finding.verdict, finding.advice) == ("WARN", f"deploy again with Slots='{value}'")
    while changing.step < first:
        changing.steps(1)
    assert {*changing.marks().values()} == {first - 1}
    for late in range(WINDOW + 2):  # longer than the rows of an older entry are read for wake-ups
        if late > WINDOW:
            changing.join()
        changing.oracle.pass_step()
        changing.stack.advance(HOUR)
    assert stops(changing.stack).startswith(f"the entry of Slots that begins at step {first} is missing: put it back;")
    assert {*changing.marks().values()} == {first - 1}
    assert findings(changing.stack)["slots"][0].verdict == "FAIL"
    stack, now = seen(changing.stack), changing.stack.clock.now()
    for command in (lambda: gaps(stack, now), lambda: begin(stack, now), lambda: plan(stack, first - 3, now)):
        with pytest.raises(ChangeRefusedError, match="because a deployment was rolled back: deploy it again first"):
            command()
    changing.deploy((1, 0), (2, first, 2))
    changing.stack.tick()
    for _ in range(2):  # what is more than a hold behind waits for ticks
        changing.oracle.pass_step()
        changing.stack.advance(HOUR)
    changing.steps(3)
    assert wrong(changing.stack).keys() == {"dead letters"}


def test_an_entry_that_is_removed_too_early_stops_evaluation_until_it_is_back(stacks: list[Stack]) -> None:
    changing = begun(stacks, 1)
    first = changing.step + 3
    changing.deploy((1, 0), (2, first))
    changing.steps(4)
    changing.deploy((2, first), functions=("evaluate",))
    changing.join()
    changing.stack.advance(HOUR - 900)  # the schedule fires; the tick is still to come
    assert stops(changing.stack).startswith(f"Slots has no entry before step {first}, and step ")
    changing.deploy((1, 0), (2, first))
    changing.stack.tick()
    changing.steps(4, joins=False)


def test_join_first_started_after_a_layout_began_writes_where_evaluation_reads(stacks: list[Stack]) -> None:
    changing = begun(stacks, 1)
    changing.deploy((1, 0), (2, changing.step + 3))
    changing.steps(5, joins=False)  # join does not start with the new entry before it begins
    changing.steps(3)


def test_a_slot_of_a_new_layout_that_does_not_begin_is_late(stacks: list[Stack]) -> None:
    changing = begun(stacks, 1, 2)
    first = changing.step + 3
    changing.deploy((1, 0), (2, first, 2))
    changing.steps(3)
    now = changing.stack.clock.now()
    seen(changing.stack).control.lease(Place(first, 1), "stuck", now, now + 100 * HOUR)
    for _ in range(4):
        changing.stack.advance(HOUR)
    begun_, stuck = findings(changing.stack)["evaluation"]
    assert (begun_.verdict, begun_.seen.partition(":")[0]) == ("OK", "slot 0")
    assert (stuck.verdict, stuck.seen.partition(" (")[0]) == ("WARN", f"slot 1: evaluated through step {first - 1}")


def test_a_lost_list_of_the_first_step_of_a_new_slot_is_repaired_and_no_state_is_lost(stacks: list[Stack]) -> None:
    changing = begun(stacks, 1, 2)
    first = changing.step + 3
    changing.deploy((1, 0), (2, first, 2))
    changing.steps(3)
    control, place, now = seen(changing.stack).control, Place(first, 1), changing.stack.clock.now()
    row = control.lease(place, "dead", now, now + 1)
    assert row is not None
    control.record_decided(place, row.run, first, Progress(control.row(Place(0, 0)).manifest or "", "lost", 0))
    control.release(place, row.run)
    assert wrong(changing.stack)["states"] == ("FAIL", "states-are-lost-or-wrong")
    code, output = operate(changing.stack, "repair", "--yes")
    assert (code, "slot 1: what is decided of its next step cannot be read" in output) == (0, True), output
    assert "emptied: for one window" not in output
    assert "states" not in wrong(changing.stack)
    changing.steps(WINDOW)
