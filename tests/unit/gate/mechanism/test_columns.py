"""The members of many sets at once are those of each set alone."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kanon.gate.mechanism.above_threshold import SetState
from kanon.gate.mechanism.columns import NEVER, States, Tokens, most_recent_of_all
from kanon.gate.mechanism.members import Member, most_recent
from tests.unit.examples import set_key

STEP = 100
TOKENS = st.sampled_from([0, 1, 2, 5, 6, 7, 255, 256, 2**31, 2**32 - 2, 2**32 - 1])


@st.composite
def sets(draw: st.DrawFn) -> tuple[SetState, list[int]]:
    """A state as an evaluation before STEP left it, and tokens that join at STEP."""
    ages = st.integers(1, 12)
    members = [Member(token, STEP - draw(ages)) for token in draw(st.lists(TOKENS, unique=True))]
    ordered = sorted(members, key=lambda member: (-member.last, member.token))
    return SetState(tuple(ordered), (), STEP - 1), draw(st.lists(TOKENS))


@pytest.mark.slow
@given(st.lists(st.tuples(sets(), st.integers(STEP - 11, STEP)), max_size=6), st.integers(1, 8))
@settings(max_examples=300)
def test_the_most_recent_members_equal_those_of_each_set_alone(
    chunk: list[tuple[tuple[SetState, list[int]], int]], keep: int
) -> None:
    before = States.of([(set_key(n), state) for n, ((state, _), _) in enumerate(chunk)])
    sinces = np.array([since for _, since in chunk], np.int64)
    members, lasts = most_recent_of_all(before, Tokens.of([joined for (_, joined), _ in chunk]), STEP, sinces, keep)
    expected = [most_recent(state.members, joined, STEP, since, keep) for (state, joined), since in chunk]
    assert members.sizes.tolist() == [len(kept) for kept in expected]
    found = list(zip(members.tokens.tolist(), lasts.tolist(), strict=True))
    assert found == [tuple(member) for kept in expected for member in kept]


STATES = [
    SetState(),
    SetState((Member(3, 9), Member(1, 8)), (4,), 9, 12),
    SetState((Member(2**32 - 1, 7),), (1, 5), 9, None),
    SetState((), (), 9, None),
]


@pytest.mark.parametrize("chosen", [[], [0], [1, 3], [0, 1, 2, 3], [2]])
def test_states_survive_the_conversion_to_columns_and_back(chosen: list[int]) -> None:
    columns = States.of([(set_key(n), state) for n, state in enumerate(STATES)])
    assert columns.states() == STATES
    part = columns.part(columns.evaluated * 0 != 0) if not chosen else columns.part(_mask(chosen))
    assert part.states() == [STATES[n] for n in chosen]
    assert list(part.keys) == [set_key(n) for n in chosen]
    assert len(part) == len(chosen)


def _mask(chosen: list[int]):  # type: ignore[no-untyped-def]
    return Tokens.of([[0] * (n in chosen) for n in range(len(STATES))]).sizes == 1


def test_steps_without_an_answer_are_shown_as_never() -> None:
    columns = States.of([(set_key(1), SetState())])
    assert columns.evaluated.tolist() == columns.wake_ups.tolist() == [NEVER]
    assert columns.crossings.tolist() == [[NEVER, NEVER]]
