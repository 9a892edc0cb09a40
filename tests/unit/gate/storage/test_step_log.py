"""Rows of the log: keys that sort by step, slot, set and token, and pages of a partition."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kanon.errors import ConfigurationError, UndecodableJoinsError
from kanon.gate.slots import Layout, Layouts
from kanon.gate.storage.aws.step_log import (
    PackedJoins,
    PartitionPage,
    Row,
    StepLog,
    key_of,
    pack,
    pack_joins,
    partition,
    unpack_joins,
)
from tests.unit.examples import ONE_SLOT, in_slot

STEPS = st.integers(-(2**63), 2**63 - 1)
SIXTEEN = Layout(16, 0)
(A,) = in_slot(5, Layouts((SIXTEEN,)), 1)


def test_a_join_is_a_row_under_its_step_and_slot_and_its_set_and_token() -> None:
    assert pack(Row(472_000, A, 0x0102, "fledge", 99), SIXTEEN) == {
        "step_slot": {"B": bytes.fromhex("00000000000733c0 05")},
        "set_token": {"B": A + bytes.fromhex("00000102")},
        "type": {"S": "fledge"},
        "ttl": {"N": "99"},
    }


@given(STEPS, st.integers(0, 255))
def test_each_step_and_slot_has_a_separate_partition(step: int, slot: int) -> None:
    assert int.from_bytes(partition(step, SIXTEEN, slot)[:8], "big", signed=True) == step
    assert partition(step, SIXTEEN, slot)[8:] == bytes([slot])


def test_the_key_of_a_row_is_its_primary_key() -> None:
    log = StepLog(None, "log", Layouts((SIXTEEN,)))  # type: ignore[arg-type]
    assert key_of(log.item(Row(1, A, 3, "fledge", 99))) == (partition(1, SIXTEEN, 5), A + bytes([0, 0, 0, 3]))


def test_a_row_lies_in_the_slot_that_the_layout_of_its_step_gives_its_set() -> None:
    log = StepLog(None, "log", Layouts((Layout(1, 0), Layout(16, 100))))  # type: ignore[arg-type]
    for step, slot in ((99, 0), (100, 5)):
        assert key_of(log.item(Row(step, A, 3, "fledge", 99)))[0] == partition(step, SIXTEEN, slot)


def test_a_row_of_a_step_before_every_layout_is_refused() -> None:
    log = StepLog(None, "log", Layouts((Layout(16, 100),)))  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match=r"^Slots has no entry for step 99: put the removed entry back, or"):
        log.item(Row(99, A, 3, "fledge", 99))


class Client:
    """A client whose Query gives this answer."""

    def __init__(self, answer: dict[str, Any]) -> None:
        self.answer = answer
        self.asked: dict[str, Any] = {}

    def query(self, **query: Any) -> dict[str, Any]:
        self.asked = query
        return self.answer


@pytest.mark.parametrize("last", [None, A + b"1234"])
def test_a_page_is_read_consistently_between_two_keys_and_holds_only_what_evaluation_needs(last: bytes | None) -> None:
    item = {"set_token": {"B": A}, "type": {"S": "fledge"}}
    client = Client({"Items": [item], **({"LastEvaluatedKey": {"set_token": {"B": last}}} if last else {})})
    found = StepLog(client, "log", ONE_SLOT).page(partition(7, SIXTEEN, 3), b"a", b"b")  # type: ignore[arg-type]
    assert found == PartitionPage([(A, "fledge")], [], last, [])
    assert client.asked == {
        "TableName": "log",
        "ConsistentRead": True,
        "KeyConditionExpression": "step_slot = :here AND set_token BETWEEN :first AND :last",
        "ProjectionExpression": "set_token, #type, joins, sealed",
        "ExpressionAttributeNames": {"#type": "type"},
        "ExpressionAttributeValues": {
            ":here": {"B": partition(7, SIXTEEN, 3)},
            ":first": {"B": b"a"},
            ":last": {"B": b"b"},
        },
    }


# Sealed values of listed types

B = bytes([A[0] ^ 1]) + A[1:]


def test_the_row_of_a_listed_type_has_its_sealed_value_too() -> None:
    row = Row(472_000, A, 0x0102, "terms", 99, b"sealed")
    assert pack(row, SIXTEEN) == {**pack(Row(472_000, A, 0x0102, "terms", 99), SIXTEEN), "sealed": {"B": b"sealed"}}


def test_a_page_gives_the_sealed_values_of_its_rows_in_order() -> None:
    items = [pack(Row(7, key, token, "t", 9, value), SIXTEEN) for key, token, value in [(A, 1, b"x"), (A, 2, b"y")]]
    client = Client({"Items": [*items, pack(Row(7, B, 1, "t", 9), SIXTEEN)]})
    found = StepLog(client, "log", ONE_SLOT).page(partition(7, SIXTEEN, 5), b"a", b"b")  # type: ignore[arg-type]
    assert found.sealed == [(A, b"x"), (A, b"y")]


def test_packed_joins_without_values_are_those_of_format_1() -> None:
    head = bytes([1, 1]) + b"t" + bytes([1, 0, 2])
    joins = [("t", A, 1), ("t", B, 2)]
    for sealed in (None, {}):
        assert pack_joins(joins, sealed) == head + b"".join(sorted([A + b"\1", B + b"\2"]))
    assert all(each.sealed == [] for each in unpack_joins(pack_joins(joins)))


def test_packed_joins_name_the_value_of_each_set_once() -> None:
    first, last = sorted([A, B])
    joins = [("t", first, 1), ("t", first, 2), ("t", last, 2), ("u", last, 3)]
    packed = pack_joins(joins, {last: b"value"})
    head, other = bytes([2, 1]) + b"t" + bytes([1, 0, 3]), bytes([1]) + b"u" + bytes([1, 0, 1])
    values, entries = bytes([0, 0, 0, 5]) + b"value", first + b"\1" + first + b"\2" + last + b"\2"
    assert packed == head + entries + values + other + last + b"\3" + bytes([0, 5]) + b"value"
    assert list(unpack_joins(packed)) == [
        PackedJoins("t", 1, entries, [(last, b"value")]),
        PackedJoins("u", 1, last + b"\3", [(last, b"value")]),
    ]


@given(st.dictionaries(st.sampled_from([A, B, bytes(32)]), st.binary(min_size=1, max_size=592)), st.data())
def test_packed_joins_that_were_cut_are_refused(sealed: dict[bytes, bytes], data: st.DataObject) -> None:
    packed = pack_joins([("t", key, n) for n, key in enumerate((A, B, bytes(32), A))], sealed)
    (joins,) = unpack_joins(packed)
    assert dict(joins.sealed) == sealed
    with pytest.raises((UndecodableJoinsError, IndexError)):
        list(unpack_joins(packed[: data.draw(st.integers(2, len(packed) - 1))]))
