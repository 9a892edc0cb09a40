"""Many sets decided at once, bit for bit like one by one."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kanon.gate.mechanism import vectorised
from kanon.gate.mechanism.above_threshold import SetState, evaluate
from kanon.gate.mechanism.members import Member
from kanon.gate.mechanism.parameters import Parameters
from kanon.gate.mechanism.tape import Tapes
from kanon.gate.mechanism.vectorised import ROWS_A_BLOCK, Sets, decide, evaluate_all
from kanon.noise.laws import two_sided
from kanon.noise.words import NoiseKey
from tests.unit.examples import ASSORTED, PUBLISHED, SMALL, noise, set_key, tapes

TYPES = st.sampled_from(ASSORTED)


@st.composite
def states(draw: st.DrawFn, window: int, keep: int, step: int) -> SetState:
    """A state as an evaluation before ``step`` may have left it."""
    if draw(st.booleans()):
        return SetState()
    evaluated = step - draw(st.integers(1, 3 * window))
    ages = sorted(draw(st.lists(st.integers(0, window - 1), max_size=keep)))
    members = tuple(Member(token, evaluated - age) for token, age in enumerate(ages))
    ago = sorted(draw(st.lists(st.integers(0, 2 * window), max_size=2, unique=True)), reverse=True)
    return SetState(members, tuple(evaluated - a for a in ago), evaluated, draw(st.none()))


@st.composite
def chunks(
    draw: st.DrawFn,
) -> tuple[Parameters, int, list[tuple[bytes, SetState, list[int]]]]:
    """A type, a step, and sets with their states and joins."""
    parameters, step = draw(TYPES), draw(st.integers(-50, 50))
    before = states(parameters.window, parameters.members_kept, step)
    joined = st.lists(st.integers(0, 9), max_size=10)
    names = draw(st.lists(st.integers(0, 10_000), min_size=1, max_size=8, unique=True))
    return parameters, step, [(set_key(n), draw(before), draw(joined)) for n in names]


@pytest.mark.slow
@given(chunks())
@settings(max_examples=150)
def test_many_sets_at_once_get_the_same_decisions_as_one_by_one(
    chunk: tuple[Parameters, int, list[tuple[bytes, SetState, list[int]]]],
) -> None:
    parameters, step, sets = chunk
    together = evaluate_all(parameters, lambda first: tapes(parameters), step, sets)
    assert together == [_alone(parameters, name, state, joined, step) for name, state, joined in sets]
    for state in together:  # plain integers: they are written to tables
        assert all(type(crossing) is int for crossing in state.crossings)
        assert state.wake_up is None or type(state.wake_up) is int


def test_more_sets_than_one_block_get_the_same_decisions_as_one_by_one() -> None:
    sets = [(set_key(n), SetState(), list(range(n % 6))) for n in range(2 * ROWS_A_BLOCK + 3)]
    together = evaluate_all(SMALL, lambda first: tapes(SMALL), 11, sets)
    assert together == [_alone(SMALL, name, state, joined, 11) for name, state, joined in sets]


def test_the_only_row_of_a_last_block_is_decided(monkeypatch: pytest.MonkeyPatch) -> None:
    blocks: list[int] = []
    decide_block = vectorised.Sets.block_crossings

    def counted(*given: Any) -> Any:
        blocks.append(len(given[1]))
        return decide_block(*given)

    def crosses_now(name: int) -> bool:
        return _alone(SMALL, set_key(name), SetState(), range(5), 11).crossings == (11,)

    names = [n for n in range(1_000) if crosses_now(n)][: ROWS_A_BLOCK + 1]
    monkeypatch.setattr(vectorised.Sets, "block_crossings", counted)
    together = evaluate_all(SMALL, lambda first: tapes(SMALL), 11, [(set_key(n), SetState(), range(5)) for n in names])
    assert blocks[:2] == [ROWS_A_BLOCK, 1]
    assert [state.crossings for state in together] == [(11,)] * (ROWS_A_BLOCK + 1)


@pytest.mark.parametrize(("ago", "crosses_again"), [(1, True), (0, False)])
def test_a_crossing_in_the_last_step_of_an_instance_does_not_count_in_the_next(ago: int, crosses_again: bool) -> None:
    zero = replace(SMALL, phase="zero")  # instances begin at the multiples of the window
    first = 2 * zero.window
    state = SetState((), (first - ago,), first)
    sets = [(set_key(n), state, list(range(7))) for n in range(20)]
    together = evaluate_all(zero, lambda _: tapes(zero), first + 1, sets)
    assert together == [_alone(zero, name, state, joined, first + 1) for name, state, joined in sets]
    assert {first + 1 in state.crossings for state in together} == {crosses_again}


@pytest.mark.slow
def test_sets_of_all_sizes_and_ages_get_the_same_decisions_as_one_by_one() -> None:
    chance, step, keep = Random(2), 480_000, PUBLISHED.members_kept
    sets = []
    for n in range(1_500):
        ages = sorted(chance.randrange(PUBLISHED.window) for _ in range(chance.randint(0, keep)))
        members = tuple(Member(token, step - 1 - age) for token, age in enumerate(ages))
        sets.append((set_key(n), SetState(members, (), step - 1), [] if n % 3 else [keep + n]))
    together = evaluate_all(PUBLISHED, lambda first: tapes(PUBLISHED), step, sets)
    assert together == [_alone(PUBLISHED, name, state, joined, step) for name, state, joined in sets]
    crossings = sum(state.crossings != () for state in together)
    wake_ups = {state.wake_up - step for state in together if state.wake_up is not None}
    assert crossings > 100  # the example shows what it is for: crossings now, later, and in the next instance
    assert len(wake_ups) > 100
    assert max(wake_ups) > PUBLISHED.window // 2


def test_the_key_of_a_tape_is_the_one_of_the_first_step_of_its_instance() -> None:
    old, new = tapes(SMALL), replace(tapes(SMALL), key=NoiseKey("2", bytes(32)))
    tapes_of = lambda first: new if first >= 12 else old  # noqa: E731
    sets = [(set_key(n), SetState(), [1, 2, 3, 4]) for n in range(300)]
    plain = [
        evaluate(SMALL, name, state, joined, 9, lambda q, name=name: _rotated(name, q, tapes_of))
        for name, state, joined in sets
    ]
    assert evaluate_all(SMALL, tapes_of, 9, sets) == plain
    assert plain != evaluate_all(SMALL, lambda first: old, 9, sets)  # so the example tells them apart


@dataclass(frozen=True)
class WrittenTape(Tapes):
    """A tape whose words are given: word 0 and then the same word at every step."""

    written: tuple[int, int] = (0, 0)

    def words(self, set_key: bytes, place: int, count: int, page: int = 0) -> bytes:
        first, rest = self.written
        return b"".join(word.to_bytes(8, "big") for word in (first, *[rest] * (count - 1)))


LAW = two_sided(Fraction(1, 2), 2)
BOUNDARIES = sorted({max(0, min(2**64 - 1, c + d)) for c in (0, *LAW.cumulative) for d in (-1, 0, 1)})


@given(st.sampled_from(BOUNDARIES), st.sampled_from(BOUNDARIES), st.integers(1, 11))
@example(2**64 - 1, 2**64 - 1, 6)
def test_words_at_the_boundary_between_two_outcomes_are_distinguished_exactly(mu: int, nu: int, count: int) -> None:
    parameters = replace(SMALL, k=6, threshold_law=LAW, query_law=LAW, phase="zero")
    written = WrittenTape(tapes(parameters).key, "d", "t", parameters, (mu, nu))
    sets = Sets(parameters, lambda first: written, [bytes(32)], np.array([count]), np.zeros(count, np.int64))
    crossed, _ = decide(sets, 0, np.array([np.iinfo(np.int64).min]))
    assert bool(crossed[0]) == (count + LAW.draw(nu) >= parameters.k + LAW.draw(mu))


def _alone(parameters: Parameters, name: bytes, state: SetState, joined: Sequence[int], step: int) -> SetState:
    return evaluate(parameters, name, state, joined, step, lambda q: noise(parameters, name, q))


def _rotated(name, instance, tapes_of):  # type: ignore[no-untyped-def]
    from kanon.gate.mechanism.steps import first_step, phase_of
    from kanon.gate.mechanism.tape import Noise

    first = first_step(instance, phase_of(name, SMALL.window, SMALL.phase), SMALL.window)
    return Noise(tapes_of(first), name, instance)
