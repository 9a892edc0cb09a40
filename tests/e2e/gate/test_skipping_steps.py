"""After an outage longer than the log reaches, evaluation stops. An operator skips steps, and it resumes.

The answers then equal those of the published algorithm on a log without the skipped steps.
"""

import json
import random
from collections import defaultdict
from collections.abc import Iterator

import pytest
from kanon.gate.storage.members import Members

from kanon.errors import LeaseLostError
from kanon.gate.mechanism.steps import end_of
from kanon.local import Stack
from kanon.operate import skip as skipping
from kanon.operate.changes import SKIP, ChangeRefusedError, newest_change
from kanon.operate.skip import gaps, skip
from tests.conftest import START
from tests.e2e.gate.oracle import Oracle
from tests.integration.gate.doctor_view import operate, seen, wrong
from tests.snapshot import Snapshot

LAWS = {
    "threshold": {"shape": "two-sided", "epsilon": "0.7", "truncation": 3},
    "query": {"shape": "two-sided", "epsilon": "0.7", "truncation": 4},
}
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
    return {progress.slot: progress.evaluated_through for progress in seen(outage.stack).control.progress()}


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


def test_sets_whose_wake_ups_were_skipped_are_evaluated_again(outage: Outage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without that they would be false until a client joins them and then true at once, which would reveal that
    join."""
    now = outage.stack.clock.now()
    lost = list(seen(outage.stack).members.waking(seen(outage.stack).schedule.first_after_skip(now)))
    assert len(lost) > 5
    monkeypatch.setattr(Members, "waking", lambda *_: [])
    found = gaps(seen(outage.stack), now)
    skip(seen(outage.stack), found, now)
    differences = outage.catch_up(found[0].first) + sum(outage.finish(1) for _ in range(10))
    assert differences > 0


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
    seen(stack).control.advance(1, outage.mark, last - 1)
    assert [gap.slot for gap in gaps(seen(stack), now)] == [0]
    skip(seen(stack), gaps(seen(stack), now), now)
    assert marks(outage)[1] == last - 1


def test_a_skip_moves_no_slot_while_a_worker_holds_one(outage: Outage) -> None:
    stack, now = outage.stack, outage.stack.clock.now()
    control = seen(stack).control
    control.lease(1, "worker", now, now + 150)
    with pytest.raises(ChangeRefusedError, match=r"^a worker holds slot 1: wait until its lease expires$"):
        skip(seen(stack), gaps(seen(stack), now), now)
    assert set(marks(outage).values()) == {outage.mark}
    assert control.lease(0, "another", now, now + 150) is not None  # given back


def test_a_skip_is_refused_if_a_slot_was_evaluated_since_it_was_examined(outage: Outage) -> None:
    stack, now = outage.stack, outage.stack.clock.now()
    found = gaps(seen(stack), now)
    seen(stack).control.advance(0, outage.mark, outage.mark + 1)
    with pytest.raises(ChangeRefusedError, match=r"^slot 0 was evaluated meanwhile: run the command again$"):
        skip(seen(stack), found, now)


def test_a_skip_is_refused_if_the_operator_waited_too_long(outage: Outage) -> None:
    found = gaps(seen(outage.stack), outage.stack.clock.now())
    with pytest.raises(
        ChangeRefusedError, match="too much time has passed since the steps were listed: run the command again"
    ):
        skip(seen(outage.stack), found, outage.stack.clock.now() + 4 * 3600)


def test_a_skip_never_moves_a_mark_back(outage: Outage, monkeypatch: pytest.MonkeyPatch) -> None:
    stack, now = outage.stack, outage.stack.clock.now()
    waking = Members.waking

    def meanwhile(members: Members, before: int) -> list[tuple[bytes, str]]:
        seen(stack).control.advance(0, outage.mark, outage.mark + 1)
        return list(waking(members, before))

    monkeypatch.setattr(Members, "waking", meanwhile)
    with pytest.raises(LeaseLostError):
        skip(seen(stack), gaps(seen(stack), now), now)
    assert marks(outage)[0] == outage.mark + 1


def test_a_skip_that_was_interrupted_can_be_repeated(outage: Outage, monkeypatch: pytest.MonkeyPatch) -> None:
    stack, now = outage.stack, outage.stack.clock.now()
    found = gaps(seen(stack), now)
    with monkeypatch.context() as patch:
        patch.setattr(skipping, "ROWS_A_BATCH", 2)
        patch.setattr(type(seen(stack).control), "advance", _cut_short)
        with pytest.raises(KeyboardInterrupt):
            skip(seen(stack), found, now)
    assert set(marks(outage).values()) == {outage.mark}
    # What a replay and the comparison of tables need is there before the first mark moves.
    last = found[0].first - 1
    assert newest_change(seen(stack).control) == (last, SKIP)
    assert seen(stack).members.stamps([0]) == seen(stack).statuses.stamps([0]) == {0: last}
    skip(seen(stack), gaps(seen(stack), now), now)
    assert outage.catch_up(found[0].first) == 0
    assert sum(outage.finish(1) for _ in range(20)) == 0


def _cut_short(*_: object) -> None:
    raise KeyboardInterrupt
