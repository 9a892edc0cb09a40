"""A join is a row under the step of its request; nothing is read."""

from typing import Any

import pytest

from kanon.gate.joining import Join, Joining
from kanon.gate.mechanism.steps import end_of
from kanon.gate.names import client_token, set_key, slot_of
from kanon.gate.slots import Layout, Layouts
from kanon.gate.storage.step_log import Row, StepLog, partition
from kanon.gate.types import Type
from kanon.keys import Secret
from tests.unit.examples import SMALL

PEPPER, CLIENT_KEY = Secret.derived("set-pepper", "a"), Secret.derived("client-key", "b")
NOW = 1_700_000_000.5
STEP = int(NOW // 3600)
JOIN = Join("small", b"set", "client", b"me")


class OnlyWrites:
    """A table that can be written and not read, and refuses some keys."""

    def __init__(self) -> None:
        self.items: list[dict[str, Any]] = []
        self.refused: set[bytes] = set()

    def put_item(self, TableName: str, Item: dict[str, Any]) -> None:  # noqa: N803
        self.items.append(Item)

    def batch_write_item(self, RequestItems: dict[str, Any]) -> dict[str, Any]:  # noqa: N803
        ((table, requests),) = RequestItems.items()
        left = [r for r in requests if r["PutRequest"]["Item"]["set_token"]["B"] in self.refused]
        self.items += [r["PutRequest"]["Item"] for r in requests if r not in left]
        return {"UnprocessedItems": {table: left} if left else {}}


def _joining(table: OnlyWrites, slots: int = 8) -> Joining:
    log = StepLog(table, "log", Layouts((Layout(slots, 0),)))  # type: ignore[arg-type]
    return Joining({"small": Type("small", SMALL, None)}, PEPPER, CLIENT_KEY, log, 3600, 604_800)


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kanon.clock.sleep", lambda seconds: None)


def test_a_row_names_its_set_and_client_by_key_and_token_only() -> None:
    name = set_key(PEPPER, "small", b"set")
    token = client_token(CLIENT_KEY, name, "client", b"me", SMALL.client_bits)
    row = _joining(OnlyWrites()).row(JOIN, NOW)
    assert row == Row(STEP, name, token, "small", end_of(STEP, 3600) + 604_800)
    assert b"me" not in _joining(OnlyWrites()).log.item(row)["set_token"]["B"]


@pytest.mark.parametrize("slots", [1, 2, 256])
def test_the_slot_of_a_row_depends_on_its_set_alone(slots: int) -> None:
    joining = _joining(OnlyWrites(), slots)
    rows = [joining.row(Join("small", b"set", "client", client), NOW) for client in (b"me", b"you")]
    assert {joining.log.key_of(row)[0] for row in rows} == {partition(STEP, slot_of(rows[0].set_key, slots))}


def test_a_join_writes_one_row_and_again_the_same_one() -> None:
    table = OnlyWrites()
    for later in (0.0, 10.0):
        _joining(table).join(JOIN, NOW + later)
    assert table.items == [_joining(table).log.item(_joining(table).row(JOIN, NOW))] * 2


def test_each_join_of_a_batch_is_answered_by_itself() -> None:
    table = OnlyWrites()
    joins = [Join("small", b"set", "client", str(n).encode()) for n in range(40)]
    joins += joins[:5]
    keys = [_joining(table).log.key_of(_joining(table).row(join, NOW)) for join in joins]
    table.refused = {keys[3][1]}
    assert _joining(table).join_all(joins, NOW) == [key != keys[3] for key in keys]
    assert {item["set_token"]["B"] for item in table.items} == {key[1] for key in keys} - table.refused


def test_an_empty_batch_gets_an_empty_answer() -> None:
    assert _joining(OnlyWrites()).join_all([], NOW) == []


def test_a_join_of_an_unknown_type_is_an_error() -> None:
    with pytest.raises(KeyError):
        _joining(OnlyWrites()).join(Join("unknown", b"set", "client", b"me"), NOW)
