"""Complete batches: in chunks, without duplicates, retried with backoff, with the unprocessed rest as the result."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from botocore.exceptions import ClientError

from kanon import aws, clock
from kanon.dynamo.batches import (
    ATTEMPTS,
    ATTEMPTS_OF_THE_CLIENT,
    THROTTLES,
    back_off,
    chunks,
    get_all,
    is_throttle,
    put_all,
)
from kanon.errors import ThrottledError

Keep = Callable[[int, list[Any]], int]
"""How many of the requests of the n-th call are left unprocessed."""


def _none(call: int, requests: list[Any]) -> int:
    return 0


class Table:
    """A table that leaves the last requests of a call unprocessed, or throttles some calls whole."""

    def __init__(self, keep: Keep = _none, throttled: int = 0, code: str = "ThrottlingException") -> None:
        self.keep, self.throttled, self.code = keep, throttled, code
        self.calls: list[list[Any]] = []
        self.items: dict[bytes, dict[str, Any]] = {}

    def _take(self, operation: str, requests: list[Any]) -> tuple[list[Any], list[Any]]:
        self.calls.append(requests)
        if len(self.calls) <= self.throttled:
            raise ClientError({"Error": {"Code": self.code, "Message": ""}}, operation)
        cut = len(requests) - self.keep(len(self.calls), requests)
        return requests[:cut], requests[cut:]

    def batch_write_item(self, RequestItems: dict[str, Any]) -> dict[str, Any]:  # noqa: N803
        taken, left = self._take("BatchWriteItem", RequestItems["t"])
        for request in taken:
            item = request["PutRequest"]["Item"]
            self.items[item["key"]["B"]] = item
        return {"UnprocessedItems": {"t": left} if left else {}}

    def batch_get_item(self, RequestItems: dict[str, Any]) -> dict[str, Any]:  # noqa: N803
        taken, left = self._take("BatchGetItem", RequestItems["t"]["Keys"])
        found = [self.items[key["key"]["B"]] for key in taken if key["key"]["B"] in self.items]
        unprocessed = {"t": {"Keys": left}} if left else {}
        return {"Responses": {"t": found}, "UnprocessedKeys": unprocessed}


@pytest.fixture(autouse=True)
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """How long every sleep would have been."""
    waits: list[float] = []
    monkeypatch.setattr(clock, "sleep", waits.append)
    return waits


def _items(count: int) -> list[dict[str, Any]]:
    return [{"key": {"B": n.to_bytes(2, "big")}} for n in range(count)]


def _keys(count: int) -> list[bytes]:
    return [n.to_bytes(2, "big") for n in range(count)]


def _put(table: Table, items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return put_all(table, "t", items, ["key"])  # type: ignore[arg-type]


def _get(table: Table, keys: list[bytes]) -> dict[bytes, Any]:
    return get_all(table, "t", keys, "key", "value", consistent=True)  # type: ignore[arg-type]


@pytest.mark.parametrize(("count", "calls"), [(0, []), (1, [1]), (25, [25]), (26, [25, 1]), (60, [25, 25, 10])])
def test_a_call_writes_at_most_25_items(count: int, calls: list[int]) -> None:
    table = Table()
    assert _put(table, _items(count)) == []
    assert [len(call) for call in table.calls] == calls
    assert len(table.items) == count


@pytest.mark.parametrize(("count", "calls"), [(0, []), (100, [100]), (101, [100, 1])])
def test_a_call_reads_at_most_100_keys(count: int, calls: list[int]) -> None:
    table = Table()
    _put(table, _items(count))
    table.calls.clear()
    found = _get(table, _keys(count))
    assert [len(call) for call in table.calls] == calls
    assert set(found) == set(_keys(count))


def test_only_the_last_item_with_a_key_is_put() -> None:
    table = Table()
    twice = [{"key": {"B": b"k"}, "n": {"N": str(n)}} for n in range(40)]
    assert _put(table, twice) == []
    assert table.calls == [[{"PutRequest": {"Item": twice[-1]}}]]


def test_a_repeated_key_is_read_once() -> None:
    table = Table()
    _put(table, _items(1))
    table.calls.clear()
    assert _get(table, [b"\0\0", b"\0\1", b"\0\0"]) == {b"\0\0": _items(1)[0]}
    assert table.calls == [[{"key": {"B": b"\0\0"}}, {"key": {"B": b"\0\1"}}]]


def test_unprocessed_items_are_sent_again_until_all_are_stored(slept: list[float]) -> None:
    table = Table(keep=lambda call, requests: 10 - call if call < 4 else 0)
    assert _put(table, _items(25)) == []
    assert [len(call) for call in table.calls] == [25, 9, 8, 7]
    assert Counter(len(item["key"]["B"]) for item in table.items.values()) == {2: 25}
    assert len(slept) == 3


def test_only_unprocessed_keys_are_read_again_until_all_are_answered(slept: list[float]) -> None:
    table = Table()
    _put(table, _items(50))
    table.calls.clear()
    table.keep = lambda call, requests: 30 if call == 1 else 0
    found = _get(table, _keys(50))
    assert (len(found), [len(call) for call in table.calls]) == (50, [50, 30])
    assert len(slept) == 1


@pytest.mark.parametrize("code", sorted(THROTTLES))
def test_a_throttled_call_is_repeated_completely(code: str) -> None:
    table = Table(throttled=1, code=code)
    assert _put(table, _items(3)) == []
    assert [len(call) for call in table.calls] == [3, 3]
    again = Table(throttled=1, code=code)
    again.items = table.items
    assert len(_get(again, _keys(3))) == 3


def test_items_that_are_never_accepted_are_reported_and_the_rest_is_written(slept: list[float]) -> None:
    table = Table(keep=lambda call, requests: 2 if len(requests) != 5 else 0)
    left = _put(table, _items(30))
    assert [item["key"]["B"] for item in left] == _keys(25)[-2:]
    assert set(table.items) == set(_keys(30)) - set(_keys(25)[-2:])
    assert len(slept) == ATTEMPTS - 1


def test_the_waits_do_not_grow_with_the_number_of_calls(slept: list[float]) -> None:
    assert len(_put(Table(keep=lambda call, requests: len(requests)), _items(500))) == 500
    assert len(slept) == ATTEMPTS - 1


def test_no_further_call_is_made_in_a_round_after_a_throttled_one(slept: list[float]) -> None:
    table = Table(throttled=1)
    assert _put(table, _items(60)) == []
    assert [len(call) for call in table.calls] == [25, 25, 25, 10]
    hopeless = Table(throttled=99)
    assert len(_put(hopeless, _items(500))) == 500
    assert len(hopeless.calls) == 2  # the client repeats each of them by itself


def test_keys_that_are_never_answered_are_an_error_and_not_treated_as_missing() -> None:
    table = Table()
    _put(table, _items(3))
    table.keep = lambda call, requests: 1
    with pytest.raises(ThrottledError, match=r"^a table did not answer for every key; try again$"):
        _get(table, _keys(3))


def test_calls_that_are_throttled_to_the_end_leave_everything_undone() -> None:
    assert _put(Table(throttled=99), _items(3)) == _items(3)
    with pytest.raises(ThrottledError):
        _get(Table(throttled=99), _keys(3))


def test_a_permanent_error_is_raised_immediately(slept: list[float]) -> None:
    for call in (lambda t: _put(t, _items(1)), lambda t: _get(t, _keys(1))):
        with pytest.raises(ClientError):
            call(Table(throttled=99, code="AccessDeniedException"))
    assert slept == []


def test_the_waits_grow_and_stay_short_enough_for_a_handler(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    monkeypatch.setattr(clock, "sleep", waits.append)
    monkeypatch.setattr("random.uniform", lambda low, high: high)
    for attempt in range(ATTEMPTS):
        back_off(attempt)
    assert waits == [0.05, 0.1, 0.2, 0.4, 0.8, 0.8]


def test_only_an_error_that_may_pass_is_a_throttle() -> None:
    def error(code: str) -> ClientError:
        return ClientError({"Error": {"Code": code, "Message": ""}}, "PutItem")

    assert is_throttle(error("ProvisionedThroughputExceededException"))
    assert not is_throttle(error("ConditionalCheckFailedException"))
    assert not is_throttle(error("ValidationException"))


def test_an_item_that_a_table_refuses_stops_the_whole_batch_before_it_is_sent() -> None:
    table = Table()
    for wrong in ({"key": {"B": b""}}, {"key": {"B": b"k"}, "v": {"B": bytes(400 * 1024)}}):
        with pytest.raises(ValueError, match="DynamoDB"):
            _put(table, [*_items(1), wrong])
    assert table.calls == []


def test_chunks_keep_order_and_lose_nothing() -> None:
    assert [list(chunk) for chunk in chunks(range(7), 3)] == [[0, 1, 2], [3, 4, 5], [6]]
    assert list(chunks([], 3)) == []


def test_the_client_repeats_a_throttled_call_as_often_as_is_counted_here() -> None:
    assert aws.CONFIG.retries["total_max_attempts"] == ATTEMPTS_OF_THE_CLIENT  # type: ignore[attr-defined]


@pytest.mark.parametrize("answer", [{}, {"Responses": {}}, {"Responses": {"another table": []}}])
def test_an_answer_without_the_table_is_an_error_and_never_reads_as_missing_items(answer: dict[str, Any]) -> None:
    class Broken(Table):
        def batch_get_item(self, RequestItems: dict[str, Any]) -> dict[str, Any]:  # noqa: N803
            return answer

    with pytest.raises(KeyError, match=r"Responses|'t'"):
        get_all(Broken(), "t", [b"1"], "key", "value", consistent=True)  # type: ignore[arg-type]
