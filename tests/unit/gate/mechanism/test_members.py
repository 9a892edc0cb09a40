"""The M most recent members: all that a later decision can depend on."""

from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kanon.gate.mechanism.members import Member, count_since, most_recent

JOINS = st.lists(st.sets(st.integers(0, 12), max_size=6), min_size=1, max_size=25)
"""The tokens that join at step 0, 1, 2, ..."""


def test_the_latest_members_come_first_and_equally_late_ones_by_token() -> None:
    members = most_recent([Member(9, 3), Member(1, 2)], [7, 5], step=4, since=2, keep=10)
    assert members == (Member(5, 4), Member(7, 4), Member(9, 3), Member(1, 2))


def test_a_member_that_joins_again_is_one_member_with_a_later_last_step() -> None:
    assert most_recent([Member(9, 3)], [9, 9], step=4, since=2, keep=10) == (Member(9, 4),)


def test_a_member_whose_last_join_is_too_early_is_dropped() -> None:
    member = Member(9, 3)
    assert count_since([member], 3) == 1
    assert count_since([member], 4) == 0
    assert most_recent([member], [], step=5, since=3, keep=10) == (member,)
    assert most_recent([member], [], step=5, since=4, keep=10) == ()


def test_no_more_members_are_kept_than_asked_for() -> None:
    members = most_recent([Member(9, 3), Member(8, 2)], [5], step=4, since=0, keep=2)
    assert members == (Member(5, 4), Member(9, 3))


@pytest.mark.slow
@given(st.lists(st.integers(0, 20)), st.randoms(use_true_random=False))
def test_order_and_repetition_of_joins_do_not_matter(joined: list[int], random: object) -> None:
    shuffled = [*joined, *joined]
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    before = (Member(3, 1), Member(4, 0))
    assert most_recent(before, shuffled, 2, 0, 4) == most_recent(before, joined, 2, 0, 4)


@pytest.mark.slow
@given(JOINS, st.integers(2, 8), st.integers(1, 9))
def test_the_kept_members_count_like_all_members_up_to_as_many_as_are_kept(
    joins: list[set[int]], window: int, keep: int
) -> None:
    members: tuple[Member, ...] = ()
    joined_at: dict[int, set[int]] = defaultdict(set)
    for step, joined in enumerate(joins):
        joined_at[step] = joined
        members = most_recent(members, joined, step, step - window + 1, keep)
        for later in range(step, step + window + 2):  # every window of the future, if nobody joins
            in_window = (joined_at[at] for at in range(later - window + 1, min(later, step) + 1))
            exact = len(set().union(*in_window))
            assert count_since(members, later - window + 1) == min(exact, keep)
