"""AboveThreshold with both restarts: lazily and ahead, it equals the algorithm as printed."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kanon.gate.mechanism.above_threshold import SetState, crosses, evaluate, is_above, next_crossing
from kanon.gate.mechanism.members import Member, most_recent
from kanon.gate.mechanism.parameters import Parameters
from kanon.gate.mechanism.searches import Searches
from kanon.gate.mechanism.steps import instance_of, phase_of
from kanon.gate.mechanism.tape import Noise, Tapes
from tests.naive import Naive, NaiveSearches
from tests.unit.examples import ASSORTED, CROSSING, KEY, SMALL, noise, set_key, tapes

TYPES = st.sampled_from(ASSORTED)
SETS = st.integers(0, 10_000).map(set_key)
JOINS = st.lists(st.one_of(st.just(frozenset()), st.frozensets(st.integers(0, 11), max_size=9)), max_size=30)
"""The tokens that join at step 0, 1, 2, ...; silence is common."""


@pytest.mark.slow
@given(TYPES, SETS, JOINS, st.integers(-50, 50))
@settings(max_examples=200)
def test_a_set_evaluated_only_when_touched_has_the_answers_of_the_algorithm(
    parameters: Parameters, name: bytes, joins: list[frozenset[int]], start: int
) -> None:
    naive = Naive(parameters, tapes(parameters))
    searches = Searches.of(parameters, name)
    state = SetState()
    wake_ups: set[int] = set()
    # Silence long enough at the end that every member leaves and two instances, or an epoch, pass.
    steps = [*joins, *[frozenset()] * (2 * parameters.window + parameters.cycle)]
    for step, joined in enumerate(steps, start):
        for token in joined:
            naive.join(name, token, step)
        if joined or step in wake_ups:
            state = evaluate(parameters, name, state, joined, step, _noise(parameters, name))
            if state.wake_up is not None:
                wake_ups.add(state.wake_up)
        shown = is_above(searches, state.crossings, step, step)
        assert shown == naive.step(name, step)


@pytest.mark.slow
@given(TYPES, SETS, JOINS, st.integers(-50, 50))
def test_evaluating_a_set_without_new_joins_changes_no_answer(
    parameters: Parameters, name: bytes, joins: list[frozenset[int]], start: int
) -> None:
    seldom = often = SetState()
    for step, joined in enumerate(joins, start):
        often = evaluate(parameters, name, often, joined, step, _noise(parameters, name))
        if joined or seldom.wake_up == step:
            seldom = evaluate(parameters, name, seldom, joined, step, _noise(parameters, name))
        assert often.crossings == seldom.crossings
        assert often.wake_up == seldom.wake_up


@pytest.mark.slow
@given(TYPES, SETS, st.lists(st.tuples(st.integers(0, 11), st.integers(0, 40))), st.integers(0, 40), st.integers(0, 30))
@settings(max_examples=200)
def test_the_look_ahead_finds_the_same_step_as_trying_every_later_step(
    parameters: Parameters, name: bytes, joins: list[tuple[int, int]], ago: int, crossed_ago: int
) -> None:
    window = parameters.window
    step = max((at for _, at in joins), default=0) + ago % window
    last = dict(sorted(joins, key=lambda join: join[1]))
    kept = [Member(token, at) for token, at in last.items() if at > step - window]
    members = most_recent(kept, (), step, step - window + 1, parameters.members_kept)
    searches = Searches.of(parameters, name)
    for crossing in (None, step - crossed_ago):
        found = next_crossing(searches, members, step, crossing, _noise(parameters, name))
        assert found == _tried(parameters, name, members, step, crossing)


def test_the_look_ahead_of_a_set_without_members_is_empty_and_reads_no_noise() -> None:
    assert next_crossing(Searches(SMALL, 0), (), 5, None, _no_noise) is None


def test_a_count_that_can_never_cross_reads_no_noise() -> None:
    state = evaluate(replace(SMALL, k=9), set_key(1), SetState(), [1, 2, 3], 7, _no_noise)
    assert state == SetState((Member(1, 7), Member(2, 7), Member(3, 7)), (), 7, None)


def test_a_count_equal_to_the_threshold_crosses() -> None:
    assert crosses(count=50, nu=2, k=50, mu=2)
    assert not crosses(count=49, nu=2, k=50, mu=2)
    assert crosses(count=48, nu=0, k=50, mu=-2)


def test_a_crossing_keeps_the_status_true_to_the_end_of_its_instance_and_no_longer() -> None:
    assert [is_above(Searches(SMALL, 1), (7,), 99, step) for step in range(5, 15)] == [
        *[False] * 2,  # the instance 1..6
        *[True] * 6,  # 7..12
        *[False] * 2,
    ]


def test_a_crossing_is_not_seen_before_it_is_visible() -> None:
    assert not is_above(Searches(SMALL, 1), (9,), 8, 10)
    assert is_above(Searches(SMALL, 1), (9,), 9, 10)
    assert not is_above(Searches(CROSSING, 1), (9,), 8, 10)
    assert is_above(Searches(CROSSING, 1), (9,), 9, 10)


def test_with_restart_after_the_crossing_the_visible_step_gives_the_answer() -> None:
    searches = Searches(CROSSING, 1)
    shown = [visible for visible in range(30) if is_above(searches, (9,), visible, 29)]
    assert shown == list(range(9, 9 + CROSSING.restart.hold))
    assert is_above(searches, (9, 17), 16, 99)  # a newer crossing is not visible yet


def test_an_older_crossing_is_seen_while_a_newer_one_is_not_visible_yet() -> None:
    assert is_above(Searches(SMALL, 1), (9, 13), 12, 12)


class Observed(int):
    """A crossing that notes what is done with it."""

    seen: list[str]

    def __le__(self, other: int) -> bool:
        self.seen.append("visible?")
        return int(self) <= other

    def __sub__(self, other: int) -> int:
        self.seen.append("in time?")
        return int(self) - other

    def __add__(self, other: int) -> int:
        self.seen.append("in time?")
        return int(self) + other


@pytest.mark.parametrize("visible", [0, 8, 9, 12, 13, 99])
@pytest.mark.parametrize("step", [3, 9, 14, 99])
@pytest.mark.parametrize("parameters", [SMALL, CROSSING], ids=["grid", "crossing"])
def test_every_crossing_is_tested_for_every_answer(parameters: Parameters, visible: int, step: int) -> None:
    seen: list[list[str]] = []
    crossings = []
    for at in (9, 13):
        crossing = Observed(at)
        crossing.seen = []
        crossings.append(crossing)
        seen.append(crossing.seen)
    is_above(Searches(parameters, 1), crossings, visible, step)
    assert seen == [["visible?", "in time?"]] * 2


@given(SETS, st.integers(0, 100))
def test_a_set_of_m_clients_crosses_immediately_and_again_one_instance_later(name: bytes, step: int) -> None:
    clients = range(SMALL.members_kept)
    state = evaluate(SMALL, name, SetState(), clients, step, _noise(SMALL, name))
    assert state.crossings == (step,)
    phase = phase_of(name, SMALL.window, SMALL.phase)
    if state.wake_up is not None:
        assert instance_of(state.wake_up, phase, SMALL.window) == instance_of(step, phase, SMALL.window) + 1


def test_only_the_last_two_crossings_are_kept() -> None:
    name = set_key(1)
    state = SetState()
    for step in range(0, 60, 6):
        state = evaluate(SMALL, name, state, range(20), step, _noise(SMALL, name))
    assert state.crossings == (48, 54)


def test_a_set_that_crossed_does_not_cross_again_in_the_same_instance() -> None:
    name = set_key(1)
    state = SetState()
    for step in range(phase_of(name, 6, "hash"), phase_of(name, 6, "hash") + 6):
        state = evaluate(SMALL, name, state, range(20), step, _noise(SMALL, name))
    assert state.crossings == (phase_of(name, 6, "hash"),)


@pytest.mark.parametrize("order", [(1, 2, 3, 4, 5), (5, 4, 3, 2, 1), (3, 1, 3, 5, 2, 4, 4)])
def test_the_order_of_the_joins_does_not_matter(order: tuple[int, ...]) -> None:
    name = set_key(2)
    state = evaluate(SMALL, name, SetState(), order, 3, _noise(SMALL, name))
    assert state == evaluate(SMALL, name, SetState(), (1, 2, 3, 4, 5), 3, _noise(SMALL, name))


def _noise(parameters: Parameters, name: bytes):  # type: ignore[no-untyped-def]
    return lambda instance: noise(parameters, name, instance)


class _Unreadable(Tapes):
    def words(self, set_key: bytes, place: int, count: int, page: int = 0) -> bytes:
        raise AssertionError("the tape was read where nothing was open")


def _no_noise(instance: int) -> Noise:
    return Noise(_Unreadable(KEY, "deployment", "type", SMALL), set_key(1), instance)


def _tried(
    parameters: Parameters, name: bytes, members: tuple[Member, ...], step: int, crossing: int | None
) -> int | None:
    """The test at every later step that belongs to a search, longer than any member can stay."""
    naive = NaiveSearches(parameters, name, crossing, step)
    for at in range(step + 1, step + 4 * parameters.window):
        if (search := naive.search_at(at)) is not None:
            place, i = search
            drawn = Noise(tapes(parameters, KEY), name, place)
            count = sum(at - parameters.window < member.last <= at for member in members)
            if count + drawn.nu(i) >= parameters.k + drawn.mu:
                return at
    return None
