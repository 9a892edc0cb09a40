"""The independent recount and what a replay keeps of it."""

import random
from collections import Counter

from kanon.demo.replay import ExactCounts, History, Result
from kanon.joinlog import LoggedJoin


def test_the_recount_is_the_number_of_distinct_clients_in_the_window() -> None:
    draw = random.Random(3)
    window, log = 7, []
    exact = ExactCounts(window)
    for step in range(200):
        joins = [LoggedJoin(step, draw.choice("ab"), str(draw.randrange(9))) for _ in range(draw.choice([0, 0, 1, 4]))]
        log += joins
        exact.step(step, joins)
        for name in "ab":
            recent = {j.client for j in log if j.set == name and step - window < j.time <= step}
            assert exact.counts[name] == len(recent)


def test_the_first_true_status_counts_as_a_change() -> None:
    assert History(0, [1] * 5, [False, True, True, False, True]).flips == 3
    assert History(0, [1], [True]).flips == 1
    assert History(0, [1], [False]).flips == 0


def test_answers_are_compared_with_the_counts() -> None:
    result = Result(k=2, window=7, period=3600, start=0)
    result.note(5, Counter(a=1, b=2), {"a"})
    result.note(6, Counter(a=2, b=2, c=0), {"a", "b"})
    confusion = result.confusion()
    assert confusion[True, False] == 1  # a at step 5
    assert confusion[False, True] == 1  # b at step 5
    assert confusion[True, True] == 2
    assert confusion[False, False] == 1
    assert result.histories["c"] == History(6, [0], [False])
    assert (result.flips, result.steps) == (2, 2)
