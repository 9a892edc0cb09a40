"""The independent recount and what a replay keeps of it."""

import random
from collections import Counter
from typing import Any

import pytest

from kanon.joinlog import Join
from kanon.local.replay import ApiError, Client, ExactCounts, History, Result, set_id


def test_the_recount_is_the_number_of_distinct_clients_in_the_window() -> None:
    draw = random.Random(3)
    window, log = 7, []
    exact = ExactCounts(window)
    for step in range(200):
        joins = [Join(step, draw.choice("ab"), str(draw.randrange(9))) for _ in range(draw.choice([0, 0, 1, 4]))]
        log += joins
        exact.step(step, joins)
        for name in "ab":
            recent = {j.client for j in log if j.set == name and step - window < j.time <= step}
            assert exact.counts[name] == len(recent)


def test_a_status_flips_when_it_changes_the_first_true_included() -> None:
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


def test_a_set_id_is_the_hash_of_its_name() -> None:
    assert set_id("hello") == "LPJNul-wow4m6DsqxbninhsWHlwfp0JecwQzYpOLmCQ"


class Answering(Client):
    """A client whose calls are answered by what a test says."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def call(self, method: str, path: str, body: Any = None) -> Any:
        return self.answer(body)


def test_a_refused_join_stops_the_replay() -> None:
    client = Answering(lambda body: {"results": [{}] * (len(body["joins"]) - 1) + [{"error": {"code": 503}}]})
    with pytest.raises(ApiError, match=r"a join was refused: .*503"):
        client.join([Join(0, "a", "1"), Join(0, "a", "2")])


def test_joins_and_queries_go_in_calls_of_the_size_the_api_takes() -> None:
    sizes = []

    def answer(body: Any) -> Any:
        if "joins" in body:
            sizes.append(len(body["joins"]))
            return {"results": [{}] * sizes[-1]}
        hashes = body["setsForType"][0]["hashes"]
        sizes.append(len(hashes))
        return {"kAnonymousSets": [{"type": "fledge", "hashes": hashes[:1]}], "step": 4}

    client = Answering(answer)
    client.join([Join(0, "a", str(n)) for n in range(1200)])
    names = [str(n) for n in range(1001)]
    assert client.true_sets(names) == ({"0", "1000"}, 4)
    assert sizes == [500, 500, 200, 1000, 1]
