"""Rows of the log: keys that sort by step, slot, set and token, and sets read back page by page."""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kanon.gate.storage.step_log import PAST_ANY_TOKEN, Page, Row, StepLog, Touched, key_of, pack, partition
from tests.unit.examples import set_key

STEPS = st.integers(-(2**63), 2**63 - 1)
A, B = sorted((set_key("a"), set_key("b")))


def test_a_join_is_a_row_under_its_step_and_slot_and_its_set_and_token() -> None:
    assert pack(Row(472_000, 5, A, 0x0102, "fledge", 99)) == {
        "step_slot": {"B": bytes.fromhex("00000000000733c0 05")},
        "set_token": {"B": A + bytes.fromhex("00000102")},
        "type": {"S": "fledge"},
        "ttl": {"N": "99"},
    }


def test_a_wake_up_is_a_row_without_a_token() -> None:
    assert pack(Row(472_000, 5, A, None, "fledge", 99))["set_token"] == {"B": A}


@given(STEPS, st.integers(0, 255))
def test_each_step_and_slot_has_a_partition_of_its_own(step: int, slot: int) -> None:
    assert int.from_bytes(partition(step, slot)[:8], "big", signed=True) == step
    assert partition(step, slot)[8:] == bytes([slot])


def test_the_key_of_a_row_is_its_primary_key() -> None:
    assert key_of(Row(1, 2, A, 3, "fledge", 99)) == (partition(1, 2), A + bytes([0, 0, 0, 3]))


class Pages:
    """A client whose Query answers these pages in turn."""

    def __init__(self, pages: Sequence[Sequence[Row]]) -> None:
        self.pages = pages
        self.asked: list[dict[str, Any]] = []

    def query(self, **query: Any) -> dict[str, Any]:
        at = len(self.asked)
        self.asked.append(dict(query))
        answer: dict[str, Any] = {"Items": [pack(row) for row in self.pages[at]]}
        if at + 1 < len(self.pages):
            rows = [row for page in self.pages[: at + 1] for row in page]
            answer["LastEvaluatedKey"] = {"set_token": pack(rows[-1])["set_token"] if rows else {"B": bytes(32)}}
        return answer


def _touched(pages: Sequence[Sequence[Row]], keep: int = 99) -> list[Touched]:
    return list(StepLog(Pages(pages), "log").touched(7, 0, keep))  # type: ignore[arg-type]


def _join(name: bytes, token: int) -> Row:
    return Row(7, 0, name, token, "fledge", 99)


WAKE_UP = Row(7, 0, A, None, "fledge", 99)


def test_the_rows_of_a_set_are_one_set_touched_even_across_pages() -> None:
    pages = [[WAKE_UP, _join(A, 1)], [_join(A, 2)], [_join(A, 3), _join(B, 1)]]
    assert _touched(pages) == [Touched(A, "fledge", (1, 2, 3)), Touched(B, "fledge", (1,))]


def test_a_wake_up_alone_touches_a_set_that_nobody_joined() -> None:
    assert _touched([[WAKE_UP]]) == [Touched(A, "fledge", ())]


def test_of_more_tokens_than_can_matter_the_first_are_kept() -> None:
    assert _touched([[_join(A, n) for n in range(9)]], keep=3) == [Touched(A, "fledge", (0, 1, 2))]


def test_a_set_with_as_many_tokens_as_are_kept_is_not_read_to_its_end() -> None:
    client = Pages([[_join(A, 1), _join(A, 2), _join(A, 3)], [_join(B, 1)]])
    pages = list(StepLog(client, "log").pages(7, 0, keep=2))  # type: ignore[arg-type]
    assert pages == [Page((Touched(A, "fledge", (1, 2)),), 3), Page((Touched(B, "fledge", (1,)),), 1)]
    assert client.asked[1]["ExpressionAttributeValues"][":after"]["B"] == A + PAST_ANY_TOKEN


def test_a_page_holds_the_sets_its_call_completed_and_says_how_many_rows_it_read() -> None:
    client = Pages([[_join(A, 1)], [_join(A, 2), _join(B, 1)], []])
    pages = list(StepLog(client, "log").pages(7, 0, keep=9))  # type: ignore[arg-type]
    assert pages == [Page((), 1), Page((Touched(A, "fledge", (1, 2)),), 2), Page((Touched(B, "fledge", (1,)),), 0)]


def test_only_what_evaluation_needs_of_a_row_is_read() -> None:
    client = Pages([[]])
    list(StepLog(client, "log").pages(7, 0, 9))  # type: ignore[arg-type]
    assert client.asked[0]["ProjectionExpression"] == "set_token, #type"
    assert client.asked[0]["ExpressionAttributeNames"] == {"#type": "type"}


def test_an_empty_step_is_one_call_and_an_empty_page_is_not_the_end() -> None:
    client = Pages([[]])
    assert list(StepLog(client, "log").touched(7, 0, 9)) == []  # type: ignore[arg-type]
    assert len(client.asked) == 1
    assert _touched([[], [WAKE_UP], []]) == [Touched(A, "fledge", ())]


def test_every_page_is_read_consistently_and_begins_where_the_last_one_ended() -> None:
    client = Pages([[_join(A, 1)], [_join(A, 2)], []])
    assert list(StepLog(client, "log").touched(7, 3, 9)) == [Touched(A, "fledge", (1, 2))]  # type: ignore[arg-type]
    assert all(query["ConsistentRead"] for query in client.asked)
    bounds = [query["ExpressionAttributeValues"].get(":after") for query in client.asked]
    assert bounds == [None, pack(_join(A, 1))["set_token"], pack(_join(A, 2))["set_token"]]
    assert {query["ExpressionAttributeValues"][":here"]["B"] for query in client.asked} == {partition(7, 3)}


@pytest.mark.parametrize("token", [None, 0, 2**32 - 1])
def test_reading_after_a_set_starts_after_all_its_rows_and_before_every_later_set(token: int | None) -> None:
    client = Pages([[]])
    list(StepLog(client, "log").touched(7, 0, 9, after=A))  # type: ignore[arg-type]
    (query,) = client.asked
    bound = query["ExpressionAttributeValues"][":after"]["B"]
    assert query["KeyConditionExpression"] == "step_slot = :here AND set_token > :after"
    assert pack(Row(7, 0, A, token, "fledge", 99))["set_token"]["B"] < bound
    following = (int.from_bytes(A, "big") + 1).to_bytes(32, "big")
    assert bound < following
