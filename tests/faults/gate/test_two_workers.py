"""Several evaluators on one slot and the sweeper, interleaved at every call, with faults, pauses and clocks that jump.

A random history of joins, messages in any number and order, and workers that stop anywhere and continue at any later
time. Every answer at every tick equals the naive algorithm on the rows of the log.
"""

import os
import random
from base64 import b64encode
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from kanon.errors import StaleError
from kanon.gate.joining import Join
from kanon.gate.mechanism.steps import instance_of, phase_of, step_at
from tests.faults import failures
from tests.faults.gate.simulated_stack import FIRST_STEP, MAX_STALE, PERIOD, START, SimulatedStack
from tests.faults.gate.stepped_evaluator import SteppedEvaluator, SteppedSweeper, arrives
from tests.integration.gate.tables import states_of

MUCH = {"every": 4, "all": 1}.get(os.environ.get("FAULTS", ""), 0)
"""How much of the disorder: 100 histories at least, or 16 short ones."""
SETS = tuple((name, bytes([i])) for i in range(4) for name in ("two", "one", "next"))
GRACE, DELAY = 120, 1800
JOIN_TIMEOUT = 10.0
MOST_WORKERS = 3
MOST_SKEW = 40.0
CALL_TIMEOUT = 9.0
"""Skew and the time a call may take are together less than the margin and the grace."""

ACTIONS = (
    failures.never_arrives,
    failures.unanswered,
    failures.error("ThrottlingException"),
    failures.error_after_effect,
    failures.dies_before,
    failures.dies_after,
)
BOUNDARIES = (-1.0, 1.0, GRACE - MOST_SKEW + 1, GRACE + 1.0, DELAY - 61.0, DELAY - 59.0, DELAY - 1.0, DELAY + 1.0)
HORIZON_CALL = 29
"""The call that moves the horizon after a step in which every set was joined."""
MOST_BEHIND = 24  # steps; a worker catches up five of them an hour
FORGOTTEN_AFTER = 7 * 24 - 10  # steps, less a window: older rows may have expired
JUMPS = (1.0, 35.0, 151.0, 720.0, 1800.0, 3600.0, 3600.0, 4 * 3600.0)

shared: dict[str, object] = {"horizons after a jump": 0}


class Oracle:
    """The naive algorithm on the joins that are in the log, step after step."""

    def __init__(self, simulation: SimulatedStack) -> None:
        self.simulation = simulation
        self.naive = {name: simulation.new_naive(name) for name in simulation.configured}
        self.stepped = FIRST_STEP - 1

    def join(self, place, token: int, step: int) -> None:
        assert step > self.stepped, "a join came into a step that was already closed"
        self.naive[place[0]].join(self.simulation.keys[place], token, step)

    def crossings(self, place, through: int) -> list[int]:
        """The steps up to ``through`` at which the set crossed, oldest first."""
        while self.stepped < through:
            self.stepped += 1
            for other in SETS:
                self.naive[other[0]].step(self.simulation.keys[other], self.stepped)
        searches = self.naive[place[0]].searches.get(self.simulation.keys[place])
        return [] if searches is None else [step for step in searches.crossings if step <= through]

    def is_true(self, place, visible: int, at: int) -> bool:
        """The answer of a reader with the clock step ``at`` to whom ``visible`` is visible."""
        parameters, crossings = self.simulation.configured[place[0]].parameters, self.crossings(place, min(visible, at))
        if parameters.restart is not None:
            return any(min(visible, at) < x + parameters.restart.hold for x in crossings)
        phase = phase_of(self.simulation.keys[place], parameters.window, parameters.phase)
        now = instance_of(at, phase, parameters.window)
        return any(instance_of(x, phase, parameters.window) == now for x in crossings)

    def members(self, place, step: int) -> list[tuple[int, int]]:
        """(last step, token) of the clients of the window, most recent first."""
        naive, parameters = self.naive[place[0]], self.simulation.configured[place[0]].parameters
        last: dict[int, int] = {}
        for at, tokens in sorted(naive.joins[self.simulation.keys[place]].items()):
            if step - parameters.window < at <= step:
                last.update(dict.fromkeys(tokens, at))
        ordered = sorted((-at, token) for token, at in last.items())
        return [(-at, token) for at, token in ordered][: parameters.members_kept]


class Disorder(RuleBasedStateMachine):
    """Everything that may happen to a slot."""

    @initialize(seed=st.integers(0, 999))
    def begin(self, seed: int) -> None:
        random.seed(seed)
        self.simulation: SimulatedStack = shared["simulation"]  # type: ignore[assignment]
        self.simulation.restore(shared["beginning"])  # type: ignore[arg-type]
        self.simulation.set_time(START + 60.0)
        self.environments = [self.simulation.cold_start() for _ in range(MOST_WORKERS)]
        self.oracle = Oracle(self.simulation)
        self.workers: list[SteppedEvaluator] = []
        self.unwritten: list[tuple[float, tuple, object]] = []
        self.seen: dict[int, tuple] = {}
        self.visible: dict[int, int] = {}

    # Joins

    @rule(
        place=st.sampled_from(SETS),
        first=st.integers(0, 9),
        clients=st.sampled_from((1, 2, 4, 8, 9, 10)),
        skew=st.sampled_from((-20.0, 0.0, 0.0, 20.0)),
    )
    def stamp_joins(self, place, first, clients, skew) -> None:
        now = self.simulation.true_time()
        for client in range(first, first + clients):
            row = self.simulation.joining.row(Join(*place, "client", b"%d" % client), now + skew)
            self.unwritten.append((now + JOIN_TIMEOUT, place, row))

    @precondition(lambda self: self.unwritten)
    @rule(again=st.booleans())
    def write_joins(self, again) -> None:
        """All stamped joins reach the log, perhaps twice; their order does not matter."""
        for _, place, row in random.sample(self.unwritten, len(self.unwritten)):
            self.simulation.joining.log.put(row)
            self.oracle.join(place, row.token, row.step)
        if not again:
            self.unwritten.clear()

    # Evaluators

    @precondition(lambda self: len(self.workers) < MOST_WORKERS)
    @rule(
        slot=st.integers(0, 1),
        skew=st.sampled_from((-MOST_SKEW, 0.0, 0.0, 0.0, MOST_SKEW)),
        unaware=st.booleans(),
        calls=st.sampled_from((0, 1, 2, 5, 9, 14, 20)),
    )
    def deliver_message(self, slot, skew, unaware, calls) -> None:
        busy = [worker.environment for worker in self.workers]  # it works on one event at a time
        environment = random.choice([free for free in self.environments if free not in busy])
        worker = SteppedEvaluator(self.simulation, environment, slot, skew, unaware=unaware)
        self.workers.append(worker)
        self._go_on(worker, calls)

    @precondition(lambda self: len(self.workers) < MOST_WORKERS)
    @rule(calls=st.sampled_from((0, 1, 2, 3, 5, 8, 10_000)))
    def sweep(self, calls) -> None:
        environment = self.simulation.cold_start("sweep")
        worker = SteppedSweeper(self.simulation, environment, -1, 0.0, unaware=True)
        self.workers.append(worker)
        self._go_on(worker, calls)

    @precondition(lambda self: self.workers)
    @rule(which=st.integers(0, 2), calls=st.sampled_from((1, 1, 2, 3, 5, 8)))
    def go_on(self, which, calls) -> None:
        self._go_on(self.workers[which % len(self.workers)], calls)

    @precondition(lambda self: self.workers)
    @rule(which=st.integers(0, 2))
    def finish(self, which) -> None:
        self._go_on(self.workers[which % len(self.workers)], 10_000)

    @precondition(lambda self: self.workers)
    @rule(which=st.integers(0, 2), action=st.sampled_from(ACTIONS))
    def fail(self, which, action) -> None:
        worker = self.workers[which % len(self.workers)]
        self._bury_if_horizon_is_old(worker)
        worker.step(action)
        self._forget_ended()

    @precondition(lambda self: self.workers)
    @rule(
        which=st.integers(0, 2),
        skew=st.sampled_from((-MOST_SKEW, 0.0, MOST_SKEW)),
        moment=st.none() | st.sampled_from(BOUNDARIES),
        calls=st.sampled_from((0, 1, 1, 2, 5)),
    )
    def clock_jumps(self, which, skew, moment, calls) -> None:
        """A worker's clock jumps back or forth while it waits before a call, perhaps at a boundary."""
        worker = self.workers[which % len(self.workers)]
        if moment is not None:
            self.wait_for_a_boundary(moment)
        worker.jump(skew)
        self._go_on(worker, calls)

    @precondition(lambda self: len(self.workers) < MOST_WORKERS)
    @rule(
        moment=st.sampled_from(BOUNDARIES),
        slot=st.integers(0, 1),
        skews=st.permutations((-MOST_SKEW, 0.0, MOST_SKEW)),
        calls=st.integers(0, 12),
        more=st.sampled_from((0, 1, 2, 10_000)),
    )
    def deliver_message_at_a_boundary_and_clock_jumps(self, moment, slot, skews, calls, more) -> None:
        self.wait_for_a_boundary(moment)
        self.deliver_message(slot=slot, skew=skews[0], unaware=True, calls=calls)
        if self.workers:
            self.workers[-1].jump(skews[1])
            self._go_on(self.workers[-1], more)

    @precondition(lambda self: len(self.workers) > 1)
    @rule(rounds=st.integers(1, 8))
    def go_on_in_turn(self, rounds) -> None:
        for _ in range(rounds):
            for worker in list(self.workers):
                self._go_on(worker, 1)

    def _go_on(self, worker: SteppedEvaluator, calls: int) -> None:
        for _ in range(calls):
            self._bury_if_horizon_is_old(worker)
            if worker.ended:
                break
            worker.step(arrives)
            if worker.jumped and worker.horizon_since is not None:
                worker.jumped = False
                shared["horizons after a jump"] += 1  # type: ignore[operator]
        self._forget_ended()

    def _bury_if_horizon_is_old(self, worker: SteppedEvaluator) -> None:
        """No worker may sleep between reading the clock and moving the horizon: docs/evidence/faults.md."""
        since = worker.horizon_since
        if since is not None and self.simulation.true_time() - since > CALL_TIMEOUT:
            worker.finish(failures.dies_before)

    def _forget_ended(self) -> None:
        self.workers = [worker for worker in self.workers if not worker.ended]
        self.simulation.sent()  # any message may come again at any time: deliver_message

    # Time

    @rule(seconds=st.sampled_from(JUMPS))
    def wait(self, seconds) -> None:
        self._advance_to(self.simulation.true_time() + (seconds if self._behind() < MOST_BEHIND else 1.0))

    @rule(moment=st.sampled_from(BOUNDARIES))
    def wait_for_a_boundary(self, moment) -> None:
        """To a moment after the next end of a step."""
        now = self.simulation.true_time()
        self._advance_to((step_at(now - moment, PERIOD) + 1) * PERIOD + moment)

    def _behind(self) -> int:
        """Steps that wait for the slower slot."""
        return step_at(self.simulation.true_time(), PERIOD) - min(self._marks())

    def _marks(self) -> set[int]:
        control = self.simulation.stored("Control")
        return {int(control[f"slot#0#{slot}",]["evaluated_through"]["N"]) for slot in range(2)}

    @rule()
    def expire_rows(self) -> None:
        self.simulation.stack.sweep()

    def _advance_to(self, moment: float) -> None:
        """Requests of joins end in time; answers are checked around every tick on the way."""
        while True:
            now = self.simulation.true_time()
            tick = (step_at(now - DELAY, PERIOD) + 1) * PERIOD + DELAY
            stops = [tick - 0.5, tick, moment, *(ends for ends, _, _ in self.unwritten)]
            at = min(stop for stop in stops if stop > now or stop == moment)
            if at >= moment:
                self.simulation.set_time(max(moment, now))
                return
            self.simulation.set_time(at)
            if any(ends <= at for ends, _, _ in self.unwritten):
                self.write_joins(again=False)
            self.answers_are_the_naive_ones()

    # Invariants

    @invariant()
    def answers_are_the_naive_ones(self) -> None:
        if not hasattr(self, "oracle"):
            return
        now = self.simulation.true_time()
        at = step_at(now - DELAY, PERIOD) - 1
        expected, steps, stale = {}, [], False
        for slot in range(2):
            visible = self._visible(slot, now)
            assert visible is None or visible >= self.visible.get(slot, visible), "a horizon went back"
            assert visible is None or (visible + 1) * PERIOD + DELAY <= now + 0.001, "seen before its tick"
            if visible is not None:
                self.visible[slot] = visible
            steps.append(visible)
            for place in SETS:
                if self.simulation.slot(place) == slot:
                    expected[place] = visible is not None and self.oracle.is_true(place, visible, at)
                    stale |= place[0] == "next" and visible is not None and at >= visible + MAX_STALE
        asked = SETS
        if stale:
            with pytest.raises(StaleError):
                self.simulation.answers()
            asked = tuple(place for place in SETS if place[0] != "next")
        told_step, told = self.simulation.answers(sets=asked)
        assert told == {place: expected[place] for place in asked}
        assert told_step == (None if None in steps else min(at, *steps))
        assert self.seen.setdefault(at, (steps, told)) == (steps, told), "something changed between two ticks"

    def _visible(self, slot: int, now: float) -> int | None:
        horizon = self.simulation.stored("Statuses").get((b64encode(bytes([slot])).decode(),), {})
        for step, since in (("through", "visible_from"), ("earlier", "earlier_from"), ("earliest", None)):
            if "N" in horizon.get(step, {}) and (since is None or now >= int(horizon[since]["N"])):
                return int(horizon[step]["N"])
        return None

    def teardown(self) -> None:
        if not hasattr(self, "oracle"):
            return
        if self.unwritten:
            self.write_joins(again=False)
        for worker in list(self.workers):  # some paused workers continue at the end, the others never
            self._go_on(worker, 3)
        for worker in self.workers:
            worker.finish(failures.dies_before)
        last = -1
        while self._marks() != {last}:  # a worker goes no further than a hold beyond the visible step
            last = step_at(self.simulation.true_time(), PERIOD) + 1
            self._advance_to((last + 1) * PERIOD + 180.0)
            for slot in range(2):
                worker = SteppedEvaluator(self.simulation, self.environments[0], slot, 0.0, unaware=True)
                worker.finish()
                assert worker.acknowledged
        self._advance_to((last + 1) * PERIOD + 1801.0)
        self.answers_are_the_naive_ones()
        assert set(self.visible.values()) == {last}
        self._everything_is_kept_once(last)

    def _everything_is_kept_once(self, last: int) -> None:
        statuses = {i["set_key"]["B"]: i for i in self.simulation.stored("Statuses").values() if "crossings" in i}
        states = {key: state for part in self.simulation.states().values() for key, state in states_of(part).items()}
        for place in SETS:
            key, window = self.simulation.keys[place], self.simulation.configured[place[0]].parameters.window
            stored = [int(x["N"]) for x in statuses[key]["crossings"]["L"]] if key in statuses else []
            crossed, living = self.oracle.crossings(place, last), [x for x in stored if x > last - FORGOTTEN_AFTER]
            assert living[-2:] == [x for x in crossed[-2:] if x > last - FORGOTTEN_AFTER]
            # A set whose state is forgotten between crossings has more of them in its row: the last ones, without gaps.
            assert living == crossed[len(crossed) - len(living) :]
            kept = states[key].members if key in states else ()
            searches = self.oracle.naive[place[0]].searches.get(key)
            begin = max(last + 1 - window + 1, last if searches is None else searches.counted_from)  # for later steps
            counting = [(member.last, member.token) for member in kept if member.last >= begin]
            assert counting == [member for member in self.oracle.members(place, last) if member[0] >= begin]
        assert self.simulation.unreferenced() == set()


@pytest.fixture(scope="module")
def simulation() -> Iterator[SimulatedStack]:
    week = {"OutageAllowance": "604800"}  # a history may wait for longer than two days
    with SimulatedStack(sets=SETS, slots=2, joins_a_range=12, parameters=week) as simulation:
        shared["simulation"] = simulation
        shared["beginning"] = simulation.save()
        yield simulation


def test_any_order_of_workers_messages_and_clocks_gives_the_answers_of_the_reference_algorithm(simulation):
    shared["horizons after a jump"] = 0
    run_state_machine_as_test(
        Disorder,
        settings=settings(
            max_examples=100 * MUCH or 16,
            stateful_step_count=60 if MUCH else 35,
            deadline=None,
            derandomize=os.environ.get("FAULTS") != "every",
            database=None,
            suppress_health_check=list(HealthCheck),
            phases=[Phase.generate],
        ),
    )
    assert shared["horizons after a jump"] >= (40 * MUCH or 3)


def jumping(moment: float, calls: int, before: float, after: float) -> None:
    """A worker on each slot, at a boundary after a step in which every set was joined; its clock jumps."""
    history = Disorder()
    history.begin(seed=calls)
    for place in SETS:
        history.stamp_joins(place=place, first=0, clients=10, skew=0.0)
    history.write_joins(again=False)
    history.wait(seconds=3600.0 - 61.0)
    history.wait_for_a_boundary(moment=moment)
    for slot in range(2):
        history.deliver_message(slot=slot, skew=before, unaware=True, calls=calls)
        if history.workers:
            history.workers[0].jump(after)
            history.finish(which=0)
        history.answers_are_the_naive_ones()
    history.teardown()


@pytest.mark.parametrize("moment", BOUNDARIES)
def test_a_clock_that_jumps_before_any_call_at_a_boundary_changes_nothing(simulation, moment):
    cases = [(calls, after) for calls in range(HORIZON_CALL) for after in (-MOST_SKEW, MOST_SKEW)]
    one_in = 12 // MUCH if MUCH else len(cases)
    for calls, after in cases[(13 * BOUNDARIES.index(moment)) % one_in :: one_in]:
        jumping(moment, calls, -after, after)


def test_a_clock_jump_larger_than_the_margin_is_detected(simulation):
    with pytest.raises(AssertionError, match="something changed between two ticks"):
        jumping(DELAY + 1.0, 3, 0.0, -100.0)
