"""A join is a row under the step of its request; nothing is read."""

from collections import Counter
from dataclasses import replace
from itertools import count
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kanon.dynamo.limits import MOST_ITEM_BYTES
from kanon.dynamo.units import item_size, write_units
from kanon.gate.joining import Join, Joining
from kanon.gate.mechanism.steps import end_of
from kanon.gate.names import client_token, set_key
from kanon.gate.slots import Layout, Layouts
from kanon.gate.storage.aws.step_log import Row, StepLog, key_of, partition, unpack_joins
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


@pytest.mark.parametrize("now", [STEP * 3600, NOW, end_of(STEP, 3600) - 0.001])
def test_a_row_names_its_set_and_client_by_key_and_token_only(now: float) -> None:
    name = set_key(PEPPER, "small", b"set")
    token = client_token(CLIENT_KEY, name, "client", b"me", SMALL.client_bits)
    row = _joining(OnlyWrites()).row(JOIN, now)
    assert row == Row(STEP, name, token, "small", end_of(STEP, 3600) + 604_800)
    assert b"me" not in _joining(OnlyWrites()).log.item(row)["set_token"]["B"]


@pytest.mark.parametrize("slots", [1, 2, 256])
def test_the_slot_of_a_row_depends_on_its_set_alone(slots: int) -> None:
    joining, layout = _joining(OnlyWrites(), slots), Layout(slots, 0)
    rows = [joining.row(Join("small", b"set", "client", client), NOW) for client in (b"me", b"you")]
    assert {key_of(joining.log.item(row))[0] for row in rows} == {
        partition(STEP, layout, layout.slot_of(rows[0].set_key))
    }


def test_a_repeated_join_writes_the_same_row() -> None:
    table = OnlyWrites()
    for later in (0.0, 10.0):
        _joining(table).join(JOIN, NOW + later)
    assert table.items == [_joining(table).log.item(_joining(table).row(JOIN, NOW))] * 2


def test_each_join_of_a_batch_is_answered_separately() -> None:
    table = OnlyWrites()
    joins = [Join("small", b"set", "client", str(n).encode()) for n in range(40)]
    joins += joins[:5]
    keys = [key_of(_joining(table).log.item(_joining(table).row(join, NOW))) for join in joins]
    table.refused = {keys[3][1]}
    assert _joining(table).join_all(joins, NOW) == [key != keys[3] for key in keys]
    assert {item["set_token"]["B"] for item in table.items} == {key[1] for key in keys} - table.refused


def test_an_empty_batch_gets_an_empty_answer() -> None:
    assert _joining(OnlyWrites()).join_all([], NOW) == []


def test_a_join_of_an_unknown_type_is_an_error() -> None:
    with pytest.raises(KeyError, match="unknown"):
        _joining(OnlyWrites()).join(Join("unknown", b"set", "client", b"me"), NOW)


# Packed batches

PACKING = Layouts((Layout(4, 0, 16),))
TYPES = {name: Type(name, SMALL, None) for name in ("small", "other")}
WIDE = Type("wide", replace(SMALL, client_bits=32), None)


def _packing(table: OnlyWrites, layouts: Layouts = PACKING) -> Joining:
    log = StepLog(table, "log", layouts)  # type: ignore[arg-type]
    return Joining({**TYPES, "wide": WIDE}, PEPPER, CLIENT_KEY, log, 3600, 604_800)


def _entries(item: dict[str, Any]) -> list[tuple[str, bytes, int]]:
    """Type, set key and token of every join in an item."""
    if "joins" not in item:
        key = item["set_token"]["B"]
        return [(item["type"]["S"], key[:32], int.from_bytes(key[32:], "big"))]
    return [
        (joins.type_name, entry[:32], int.from_bytes(entry[32:], "big"))
        for joins in unpack_joins(item["joins"]["B"])
        for entry in batched(joins.entries, 32 + joins.token_bytes)
    ]


def batched(content: bytes, size: int) -> list[bytes]:
    return [content[start : start + size] for start in range(0, len(content), size)]


batches = st.lists(
    st.builds(
        Join,
        st.sampled_from(["small", "other", "wide"]),
        st.integers(0, 12).map(lambda n: b"set %d" % n),
        st.sampled_from(["client", "short"]),
        st.integers(0, 6).map(lambda n: b"%d" % n),
    ),
    max_size=60,
)


@pytest.mark.slow
@settings(max_examples=150, deadline=None, derandomize=True)
@given(batch=batches)
def test_a_packed_batch_holds_every_join_once_and_each_client_once_per_item(batch: list[Join]) -> None:
    table = OnlyWrites()
    joining = _packing(table)
    assert joining.join_all(batch, NOW) == [True] * len(batch)
    rows = {join: joining.row(join, NOW) for join in batch}
    entries = [_entries(item) for item in table.items]
    stored = sorted(entry for of_item in entries for entry in of_item)
    assert stored == sorted({(row.type_name, row.set_key, row.token or 0) for row in rows.values()})
    for item, held in zip(table.items, entries, strict=True):
        assert held == sorted(held)
        assert ("joins" in item) == (len(held) > 1)
        slots = {PACKING.entries[0].slot_of(key) for _, key, _ in held}
        assert item["step_slot"]["B"][:10] == partition(STEP, PACKING.entries[0], *slots)[:10]
        clients: Counter[tuple[str, bytes]] = Counter()
        for join, row in rows.items():
            clients[join.kind, join.client] += (row.type_name, row.set_key, row.token or 0) in held
        collided = len(held) < sum(clients.values())  # two clients with one token in one set
        assert collided or max(clients.values()) == 1
        assert item["ttl"] == {"N": str(end_of(STEP, 3600) + 604_800)}
        assert item.keys() == ({"step_slot", "set_token", "ttl"} | ({"joins"} if len(held) > 1 else {"type"}))


def test_a_client_with_several_joins_is_split_over_items_even_if_its_token_collides_with_anothers() -> None:
    collide = [c for c in range(4_000) if _packing(OnlyWrites()).row(_join_of(b"set", c), NOW).token == 7][:2]
    first, second = collide
    batch = [_join_of(b"set", first), _join_of(b"set", second), _join_of(b"other", first), _join_of(b"third", second)]
    table = OnlyWrites()
    _packing(table, Layouts((Layout(1, 0, 1),))).join_all(batch, NOW)
    sets = {name: set_key(PEPPER, "small", name) for name in (b"set", b"other", b"third")}
    held = [{key for _, key, _ in _entries(item)} for item in table.items]
    assert sorted(map(len, held)) == [1, 2]
    assert {sets[b"other"], sets[b"third"]} in held  # of different clients; the shared row is alone


def _join_of(name: bytes, client: int) -> Join:
    return Join("small", name, "client", b"%d" % client)


def test_the_same_batch_twice_has_other_keys_and_the_same_entries() -> None:
    table, batch = OnlyWrites(), [_join_of(b"set %d" % n, n) for n in range(40)]
    for _ in range(2):
        _packing(table).join_all(batch, NOW)
    keys = [item["set_token"]["B"] for item in table.items]
    assert len(set(keys)) == len(keys) == 8
    assert {key[:8] for key in keys} == {bytes(8)}
    assert sorted(map(_entries, table.items[:4])) == sorted(map(_entries, table.items[4:]))


def test_the_partition_of_a_packed_item_does_not_depend_on_its_content(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = list(range(16))
    asked: list[int] = []

    def draw(most: int) -> int:
        asked.append(most)
        return drawn[len(asked) - 1]

    monkeypatch.setattr("kanon.gate.storage.aws.step_log.secrets.randbelow", draw)
    table = OnlyWrites()
    joining = _packing(table, Layouts((Layout(1, 0, 16),)))
    for _ in drawn:
        joining.join_all([_join_of(b"a", 1), _join_of(b"b", 2)], NOW)
    assert [item["step_slot"]["B"][-1] for item in table.items] == drawn
    assert asked == [16] * 16


def test_the_rows_of_one_set_lie_in_all_partitions_of_its_slot() -> None:
    table = OnlyWrites()
    joining = _packing(table, Layouts((Layout(1, 0, 16),)))
    for n in range(400):
        joining.join(_join_of(b"one", n), NOW)
    places = {item["step_slot"]["B"] for item in table.items}
    assert {place[-1] for place in places} == set(range(16))


def test_only_the_joins_of_unstored_items_of_a_packed_batch_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    table, batch = OnlyWrites(), [_join_of(b"set %d" % n, n) for n in range(40)]
    joining = _packing(table)
    refused = bytes(8) + bytes(16)
    ids = iter([bytes(16), *(bytes([n]) * 16 for n in range(1, 9))])
    monkeypatch.setattr("kanon.gate.storage.aws.step_log.secrets.token_bytes", lambda _: next(ids))
    table.refused = {refused}
    logged = joining.join_all(batch, NOW)
    stored = {key for item in table.items for _, key, _ in _entries(item)}
    assert logged == [joining.row(join, NOW).set_key in stored for join in batch]
    assert 0 < sum(logged) < len(batch)


def test_before_the_first_packing_layout_a_batch_is_single_rows() -> None:
    table, batch = OnlyWrites(), [_join_of(b"set %d" % n, n) for n in range(40)]
    layouts = Layouts((Layout(4, 0), Layout(4, STEP + 1, 16)))
    _packing(table, layouts).join_all(batch, NOW)
    assert len(table.items) == 40
    assert not any("joins" in item for item in table.items)
    _packing(table, layouts).join_all(batch, NOW + 3600)
    assert len(table.items) == 44


@pytest.mark.slow
@pytest.mark.parametrize(("joins", "slots", "most"), [(500, 16, 0.06), (100, 16, 0.2), (500, 1, 0.04)])
def test_a_batch_takes_few_write_units(joins: int, slots: int, most: float) -> None:
    """Twenty batches of clients with one join each, of tokens of 16 bits."""
    table = OnlyWrites()
    wide = Type("small", replace(SMALL, client_bits=16), None)
    log = StepLog(table, "log", Layouts((Layout(slots, 0, 16),)))  # type: ignore[arg-type]
    joining = Joining({"small": wide}, PEPPER, CLIENT_KEY, log, 3600, 604_800)
    for batch in range(20):
        joining.join_all([_join_of(b"set %d" % (batch * joins + n), n) for n in range(joins)], NOW)
    assert sum(write_units(item_size(item)) for item in table.items) <= most * 20 * joins


def _sealing(table: OnlyWrites, layouts: Layouts) -> Joining:
    """It seals as long as the longest value, and other bytes each time."""
    joining, sealed = _packing(table, layouts), count()
    return replace(joining, seal=lambda value, key: (b"%d " % next(sealed) + value + key).ljust(592, b"s"))


def _listed(name: bytes, client: int) -> Join:
    return Join("wide", name, "client", b"%d" % client, value=name)


def test_a_packed_batch_has_the_first_sealed_value_of_each_set_and_a_single_join_its_own() -> None:
    table, key = OnlyWrites(), set_key(PEPPER, "wide", b"a")
    joining = _sealing(table, Layouts((Layout(1, 0, 1),)))
    joining.join_all([_listed(b"a", 1), _listed(b"a", 2), _join_of(b"b", 3)], NOW)
    (item,) = table.items
    sealed = [each for joins in unpack_joins(item["joins"]["B"]) for each in joins.sealed]
    assert sealed == [(key, (b"0 a" + key).ljust(592, b"s"))]
    joining.join(_listed(b"a", 1), NOW)
    assert table.items[1]["sealed"] == {"B": (b"2 a" + key).ljust(592, b"s")}
    assert write_units(item_size(table.items[1])) == 1


def test_the_largest_batch_of_a_listed_type_fits_into_one_item() -> None:
    table = OnlyWrites()
    _sealing(table, Layouts((Layout(1, 0, 1),))).join_all([_listed(b"set %d" % n, n) for n in range(500)], NOW)
    (item,) = table.items
    assert 500 * 630 == 315_000 < item_size(item) < 315_200 < MOST_ITEM_BYTES


def test_the_largest_batch_fits_into_one_item() -> None:
    table = OnlyWrites()
    joining = _packing(table, Layouts((Layout(1, 0, 1),)))
    joining.join_all([Join("wide", b"set %d" % n, "client", b"%d" % n) for n in range(500)], NOW)
    (item,) = table.items
    assert 500 * 36 < item_size(item) < 500 * 36 + 200 < MOST_ITEM_BYTES
