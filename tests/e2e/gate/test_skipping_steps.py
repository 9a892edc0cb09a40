"""After an outage longer than the log reaches, evaluation stops. An operator skips steps, and it resumes.

The answers then equal those of the published algorithm on a log without the skipped steps.
"""

import json
import random
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import pytest

from kanon.errors import LeaseLostError
from kanon.gate.mechanism.steps import end_of
from kanon.gate.merging import UNKNOWN
from kanon.gate.storage.aws.control import Control, Place
from kanon.local import Stack
from kanon.operate import skip as skipping
from kanon.operate.changes import ChangeRefusedError
from kanon.operate.skip import gaps, skip
from tests.conftest import START
from tests.e2e.gate.backups import states
from tests.e2e.gate.oracle import Oracle, laws
from tests.integration.gate.doctor_view import operate, seen, wrong
from tests.snapshot import Snapshot

LAWS = laws("two-sided", "0.7", 3, 4)
WINDOW = 64
TYPES = {"a": {"k": 8, "window": WINDOW, "laws": LAWS}}
SETS = [b"set %d" % n for n in range(48)]
OUTAGE = 55
"""Steps; the log reaches back 48, and evaluation goes on by itself from at most 42 ago."""

Joins = list[tuple[str, bytes, str]]


class Outage:
    """A stack that was used, then not evaluated for 55 steps, in which joins went on."""

    def __init__(self, stack: Stack) -> None:
        self.stack = stack
        self.whole, self.kept = Oracle(stack), Oracle(stack)
        random_ = random.Random(3)
        crowd = [("a", name, f"c{n}") for name in SETS for n in range(random_.randrange(3, 16))]
        self.join(crowd)
        for _ in range(4):
            self.kept.hear(crowd)
            assert self.whole.finish_step() == 0
            self.kept.pass_step()
            crowd = [("a", random_.choice(SETS), f"d{random_.randrange(9)}") for _ in range(3)]
            self.join(crowd)
        self.mark = self.whole.now_step - 1
        self.missed: dict[int, Joins] = defaultdict(list, {self.whole.now_step: crowd})
        for step in range(self.mark + 1, self.mark + 1 + OUTAGE):
            while self.whole.now_step < step:
                self.whole.pass_step()
            stack.clock.set(step * 3600.0 + 600)
            joins = [("a", random_.choice(SETS[:30]), f"e{random_.randrange(20)}") for _ in range(2)]
            self.join(joins)
            self.missed[step] += joins
        stack.sweep()  # what has expired is gone

    def join(self, joins: Joins) -> None:
        """Join over HTTP and in the complete log."""
        self.whole.join_all(joins)

    def next_tick(self) -> int:
        """Let the schedule and a tick come. Returns the step that the tick shows."""
        step = int(self.stack.clock.now() // 3600)
        self.stack.advance_to(end_of(step, 3600) + 1800)
        return step

    def catch_up(self, first: int) -> int:
        """Feed the steps from ``first`` on to the log without the gap; how many answers differ at the next tick."""
        step = self.next_tick()
        self.kept.now_step = first
        while self.kept.now_step <= step:
            self.kept.hear(self.missed[self.kept.now_step])
            expected = self.kept.pass_step()
        while self.whole.now_step <= step:
            most = self.whole.pass_step()
        answered = self.whole.answers(step)
        assert all(most[place] for place, above in answered.items() if above)  # never too high
        return sum(answered[place] != expected[place] for place in expected)

    def finish(self, steps: int) -> int:
        """Further steps, which one worker evaluates; how many answers differ after the last."""
        self.stack.clock.set(self.stack.clock.now() + (steps - 1) * 3600)  # the schedule does not fire
        step = self.next_tick()
        for _ in range(steps):
            expected, most = self.kept.pass_step(), self.whole.pass_step()
        answered = self.whole.answers(step)
        assert all(most[place] for place, above in answered.items() if above)
        return sum(answered[place] != expected[place] for place in expected)


@pytest.fixture(scope="module")
def stack_after_outage() -> Iterator[Snapshot[Outage]]:
    parameters = {"Types": json.dumps(TYPES), "OutageAllowance": "172800", "Slots": "2"}
    with Stack(parameters, start=START, seed=4) as stack:
        yield Snapshot(stack, Outage(stack))


@pytest.fixture
def outage(stack_after_outage: Snapshot[Outage]) -> Outage:
    return stack_after_outage.restore()


def marks(outage: Outage) -> dict[int, int | None]:
    return seen(outage.stack).marks


def move(outage: Outage, slot: int, step: int) -> None:
    """Another worker evaluates a slot without joins through a step."""
    control, place = seen(outage.stack).control, Place(0, slot)
    row = control.lease(place, "another", 0, 1)
    assert row is not None
    control.restate(place, row.run, step, row.kept)
    control.release(place, row.run)


def test_evaluation_stops_after_a_long_outage_and_resumes_once_an_operator_skips_steps(outage: Outage) -> None:
    stack = outage.stack
    outage.next_tick()
    logs = stack.logs.getvalue()  # type: ignore[attr-defined]
    assert "TooFarBehindError" in logs
    assert f"step {outage.mark + 1} may have lost rows; move the mark with `kanon operate skip`" in logs
    assert "giving-up-steps" in wrong(stack)["evaluation"]
    assert marks(outage) == {0: outage.mark, 1: outage.mark}

    code, output = operate(stack, "skip", answer="n\n")
    assert (code, "Skip them?" in output) == (1, True)
    assert marks(outage) == {0: outage.mark, 1: outage.mark}
    code, output = operate(stack, "skip", "--yes")
    assert code == 0, output
    first = seen(stack).schedule.first_after_skip(stack.clock.now())
    for slot in (0, 1):
        assert f"slot {slot}: to skip steps {outage.mark + 1} to {first - 1}" in output
        assert f"slot {slot}: continues with step {first}" in output
    assert marks(outage) == {0: first - 1, 1: first - 1}

    assert outage.catch_up(first) == 0
    assert "evaluation" not in wrong(stack)
    assert any(outage.whole.answers().values())
    for steps in [1] * 16 + [4] * (WINDOW // 4 - 4):  # until no earlier step matters any more
        assert outage.finish(steps) == 0
    code, output = operate(stack, "skip", "--yes")
    assert (code, "loses nothing" in output) == (2, True)


def test_a_set_whose_wake_up_is_skipped_is_decided_in_the_first_step_that_follows(outage: Outage) -> None:
    """Otherwise it would be false until a client joins it and then true at once, which would reveal that join."""
    now = outage.stack.clock.now()
    found = gaps(seen(outage.stack), now)
    waking = {
        key for key, (_, state) in states(outage.stack).items() if (state.wake_up or found[0].first) < found[0].first
    }
    assert len(waking) > 5
    skip(seen(outage.stack), found, now)
    assert waking <= states(outage.stack).keys()
    assert outage.catch_up(found[0].first) == 0
    after = states(outage.stack)
    assert all((after[key][1].wake_up or now) > found[0].first for key in waking)


@pytest.mark.parametrize("known", [True, False], ids=["joined before", "new"])
def test_a_crossing_of_a_step_that_a_worker_has_begun_is_kept(outage: Outage, known: bool) -> None:
    """A worker wrote a crossing and died. Its step is skipped: the set does not cross a second time."""
    stack, now = outage.stack, outage.stack.clock.now()
    key = min(states(stack)) if known else bytes(32)
    place = Place(0, seen(stack).evaluate.layouts.entries[0].slot_of(key))
    row = seen(stack).control.lease(place, "worker", 0, 1)
    assert row is not None
    seen(stack).statuses.write(seen(stack).control.fence(place, row.run, 1), [(key, (outage.mark + 1,), 10**10)])
    skip(seen(stack), gaps(seen(stack), now), now)
    number, state = states(stack)[key]
    assert (state.crossings[-1], number == UNKNOWN) == (outage.mark + 1, not known)


def test_the_first_step_after_a_skip_is_complete_and_may_be_evaluated_for_two_more_periods(outage: Outage) -> None:
    stack, now = outage.stack, outage.stack.clock.now()
    (first,) = {gap.first for gap in gaps(seen(stack), now)}
    schedule = seen(stack).schedule
    assert schedule.oldest_in_log(now) < schedule.oldest_allowed(now + 2 * 3600) == first
    skip(seen(stack), gaps(seen(stack), now), now)
    stack.clock.set(now + 2 * 3600)
    stack.tick()
    assert set(marks(outage).values()) == {schedule.last_closed(stack.clock.now())}


def test_a_skip_moves_only_slots_that_are_too_far_behind(outage: Outage) -> None:
    stack, now = outage.stack, outage.stack.clock.now()
    last = seen(stack).schedule.oldest_allowed(now)
    move(outage, 1, last - 1)
    assert [gap.slot for gap in gaps(seen(stack), now)] == [0]
    skip(seen(stack), gaps(seen(stack), now), now)
    assert marks(outage)[1] == last - 1


def test_a_skip_moves_no_slot_while_a_worker_holds_one(outage: Outage) -> None:
    stack, now = outage.stack, outage.stack.clock.now()
    control = seen(stack).control
    assert control.lease(Place(0, 1), "worker", now, now + 150) is not None
    with pytest.raises(ChangeRefusedError, match=r"holds slot 1: wait until its lease expires, at 20.* UTC$"):
        skip(seen(stack), gaps(seen(stack), now), now)
    assert set(marks(outage).values()) == {outage.mark}
    assert control.lease(Place(0, 0), "another", now, now + 150) is not None  # given back


def test_a_skip_is_refused_if_a_slot_was_evaluated_since_it_was_examined(outage: Outage) -> None:
    stack, now = outage.stack, outage.stack.clock.now()
    found = gaps(seen(stack), now)
    move(outage, 0, outage.mark + 1)
    with pytest.raises(ChangeRefusedError, match=r"^slot 0 was evaluated meanwhile: run the command again$"):
        skip(seen(stack), found, now)


def test_a_skip_is_refused_if_the_operator_waited_too_long(outage: Outage) -> None:
    found = gaps(seen(outage.stack), outage.stack.clock.now())
    with pytest.raises(
        ChangeRefusedError, match="too much time has passed since the steps were listed: run the command again"
    ):
        skip(seen(outage.stack), found, outage.stack.clock.now() + 4 * 3600)


def test_a_skip_whose_lease_was_taken_changes_nothing(outage: Outage, monkeypatch: pytest.MonkeyPatch) -> None:
    stack, now = outage.stack, outage.stack.clock.now()
    put_states = skipping.put_states

    def meanwhile(*arguments: Any) -> None:
        seen(stack).control.lease(Place(0, 0), "another", now + 7200, now + 7300)
        put_states(*arguments)

    monkeypatch.setattr(skipping, "put_states", meanwhile)
    with pytest.raises(LeaseLostError):
        skip(seen(stack), gaps(seen(stack), now), now)
    assert marks(outage)[0] == outage.mark


def test_a_skip_that_was_interrupted_can_be_repeated(outage: Outage, monkeypatch: pytest.MonkeyPatch) -> None:
    stack, now = outage.stack, outage.stack.clock.now()
    found = gaps(seen(stack), now)
    with monkeypatch.context() as patch:
        patch.setattr(Control, "restate", _cut_short)
        with pytest.raises(KeyboardInterrupt):
            skip(seen(stack), found, now)
    assert set(marks(outage).values()) == {outage.mark}
    skip(seen(stack), gaps(seen(stack), now), now)
    assert all(len(row.kept) == 1 for _, row in seen(stack).control.rows())
    assert outage.catch_up(found[0].first) == 0
    assert sum(outage.finish(1) for _ in range(20)) == 0


def _cut_short(*_: object) -> None:
    raise KeyboardInterrupt
