"""StepLog: the joins. All answers derive from this log.

A join is a row of its own or an entry of a packed item, which holds joins of several clients.
"""

import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

from kanon.dynamo.batches import Item, get_all, put_all
from kanon.dynamo.conditions import unless_refused
from kanon.dynamo.tables import bound, item_of
from kanon.errors import UndecodableJoinsError
from kanon.gate.mechanism.tape import SET_KEY_BYTES, check_set_key
from kanon.gate.slots import Layout, Layouts

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient

KEY = ("step_slot", "set_token")
TOKEN_BYTES = 4
PAST_ANY_TOKEN = b"\xff" * (TOKEN_BYTES + 1)
"""A suffix for a set key: the result sorts after every row of the set."""


FORMAT, WITH_VALUES = 1, 2
LENGTH_BYTES = 2
"""Of a sealed value."""
BEFORE_ANY_SET = bytes(8)
"""The key of a packed item begins with it: packed items come before the sets. No set key is so small (2**-64)."""
FIRST_PACKED, LAST_PACKED = BEFORE_ANY_SET, BEFORE_ANY_SET + b"\xff" * 16


@dataclass(frozen=True)
class Row:
    """A join. ``expires`` is in Unix seconds; ``sealed`` is the value of a listed type, other bytes each time."""

    step: int
    set_key: bytes
    token: int
    type_name: str
    expires: int
    sealed: bytes = field(default=b"", compare=False)


class PartitionPage(NamedTuple):
    """The result of one call on a partition.

    Attributes:
        rows: the set key and token of each row and its type, in order.
        packed: the joins of each packed item.
        last: the last row read if the partition has more rows; None if it has not.
        sealed: the set key and the sealed value of each row that has one, in order.
    """

    rows: list[tuple[bytes, str]]
    packed: list[bytes]
    last: bytes | None
    sealed: list[tuple[bytes, bytes]]


class PackedJoins(NamedTuple):
    """The joins of one type in a packed item.

    Attributes:
        type_name: the type.
        token_bytes: the bytes of a token.
        entries: set key and token, one after the other.
        sealed: the set key and the sealed value of each set that has one, in order.
    """

    type_name: str
    token_bytes: int
    entries: bytes
    sealed: list[tuple[bytes, bytes]]


def pack(row: Row, layout: Layout) -> Item:
    """The row as an item, under the layout in force at its step."""
    check_set_key(row.set_key)
    entry = row.set_key + row.token.to_bytes(TOKEN_BYTES, "big")
    place = _partition_of(row.step, layout, entry)
    item = item_of(step_slot=place, set_token=entry, type=row.type_name, ttl=row.expires)
    return item | item_of(sealed=row.sealed) if row.sealed else item


def pack_all(rows: Sequence[Row], layout: Layout) -> Item:
    """Rows of different clients, all of one step and slot, as one packed item.

    Its partition and its key are random, and its entries are sorted, so it reveals nothing about the request.
    """
    first = rows[0]
    number = secrets.randbelow(layout.partitions or 1)
    sealed = {row.set_key: row.sealed for row in reversed(rows) if row.sealed}  # the first one of each set
    return item_of(
        step_slot=partition(first.step, layout, layout.slot_of(first.set_key), number),
        set_token=BEFORE_ANY_SET + secrets.token_bytes(16),
        joins=pack_joins(((row.type_name, row.set_key, row.token) for row in rows), sealed),
        ttl=first.expires,
    )


def pack_joins(joins: Iterable[tuple[str, bytes, int]], sealed: Mapping[bytes, bytes] | None = None) -> bytes:
    """Format 1: version, then for each type its name (its length in a byte), the bytes of a token, the number of joins
    (2 bytes), and the joins: set key and token, sorted.

    Format 2 is written if sets have sealed values: after the joins of each type come the length of the sealed value of
    each of its sets (2 bytes; 0: it has none), in their order, and these values.
    """
    packed = [bytes([WITH_VALUES if sealed else FORMAT])]
    for type_name, group in groupby(sorted(set(joins)), key=lambda join: join[0]):
        entries, name = list(group), type_name.encode()
        width = -(-max(token for _, _, token in entries).bit_length() // 8) or 1
        width = 4 if width == 3 else width
        packed.append(bytes([len(name)]) + name + bytes([width]) + len(entries).to_bytes(2, "big"))
        packed += [set_key + token.to_bytes(width, "big") for _, set_key, token in entries]
        if sealed:
            values = [sealed.get(set_key, b"") for set_key in dict.fromkeys(set_key for _, set_key, _ in entries)]
            packed += [*(len(value).to_bytes(LENGTH_BYTES, "big") for value in values), *values]
    return b"".join(packed)


def unpack_joins(packed: bytes) -> Iterator[PackedJoins]:
    """The joins of a packed item of any format ever written, type by type.

    Raises:
        UndecodableJoinsError: the bytes are of no known format.
    """
    if packed[:1] not in (bytes([FORMAT]), bytes([WITH_VALUES])):
        raise UndecodableJoinsError(f"packed joins of unknown format {packed[:1].hex() or 'empty'}")
    at = 1
    while at < len(packed):
        name, head = at + 1, at + 1 + packed[at]
        width, count = packed[head : head + 1], int.from_bytes(packed[head + 1 : head + 3], "big")
        end = head + 3 + count * (SET_KEY_BYTES + (width[0] if width else 0))
        if width not in (b"\x01", b"\x02", b"\x04") or end > len(packed):
            raise UndecodableJoinsError(f"packed joins of format {packed[0]} end inside a join")
        entries, sealed, at = packed[head + 3 : end], list[tuple[bytes, bytes]](), end
        if packed[0] == WITH_VALUES:
            sealed, at = _values(packed, end, entries, SET_KEY_BYTES + width[0])
        yield PackedJoins(packed[name:head].decode(), width[0], entries, sealed)


def _values(packed: bytes, at: int, entries: bytes, size: int) -> tuple[list[tuple[bytes, bytes]], int]:
    """The sealed values of the sets of some joins, which begin at a place in a packed item, and where they end."""
    sets = dict.fromkeys(entries[n : n + SET_KEY_BYTES] for n in range(0, len(entries), size))
    found, end = [], at + len(sets) * LENGTH_BYTES
    for set_key in sets:
        start, length = end, int.from_bytes(packed[at : at + LENGTH_BYTES], "big")
        at, end = at + LENGTH_BYTES, end + length
        if length:
            found.append((set_key, packed[start:end]))
    if end > len(packed):
        raise UndecodableJoinsError("packed joins of format 2 end inside a sealed value")
    return found, end


def partition(step: int, layout: Layout, slot: int, number: int = 0) -> bytes:
    """The partition key: the step (8 bytes, signed, big-endian), then the slot (1 byte).

    If slots have several partitions, the binary logarithm of the number of slots comes before the slot, and the number
    of the partition after it: two layouts share no partition.
    """
    place = [slot] if layout.partitions is None else [layout.slots.bit_length() - 1, slot, number]
    return step.to_bytes(8, "big", signed=True) + bytes(place)


class StepLog:
    """The log of joins."""

    def __init__(self, client: "DynamoDBClient", table: str, layouts: Layouts) -> None:
        self._client = client
        self._table = table
        self.layouts = layouts

    def item(self, row: Row) -> Item:
        """The item of a row.

        Raises:
            ConfigurationError: no layout covers its step.
        """
        return pack(row, self.layouts.at(row.step))

    def put(self, row: Row) -> None:
        """Put one row. Putting the same row again changes nothing."""
        self._client.put_item(TableName=self._table, Item=self.item(row))

    def put_all(self, rows: Iterable[Row]) -> list[Item]:
        """Put many rows; rows that were not stored are retried. Returns the items not stored."""
        return put_all(self._client, self._table, map(self.item, rows), KEY)

    def put_groups(self, groups: Sequence[Sequence[Row]]) -> list[bool]:
        """Put each group of rows of one step and slot as one packed item, and a row alone as itself.

        Returns:
            For each group, whether it was stored.
        """
        items = [
            self.item(group[0]) if len(group) == 1 else pack_all(group, self.layouts.at(group[0].step))
            for group in groups
        ]
        left = {key_of(item) for item in put_all(self._client, self._table, items, KEY)}
        return [key_of(item) not in left for item in items]

    def partitions(self, step: int, slot: int) -> dict[bytes, Layout]:
        """The partitions in which joins of the sets of ``slot`` may lie at ``step``, with their layouts.

        The arguments and errors are those of :meth:`Layouts.read`.
        """
        return {
            partition(step, layout, each, number): layout
            for layout, each in self.layouts.read(slot, step)
            for number in range(layout.partitions or 1)
        }

    def page(self, partition: bytes, first: bytes, last: bytes) -> PartitionPage:
        """The rows of a partition from ``first`` to ``last``, strongly consistent; one call, at most 1 MB."""
        answer = self._client.query(
            TableName=self._table,
            ConsistentRead=True,
            KeyConditionExpression="step_slot = :here AND set_token BETWEEN :first AND :last",
            ProjectionExpression="set_token, #type, joins, sealed",
            ExpressionAttributeNames={"#type": "type"},
            ExpressionAttributeValues=bound(here=partition, first=first, last=last),
        )
        rows = [(item["set_token"]["B"], item["type"]["S"]) for item in answer["Items"] if "joins" not in item]
        packed = [item["joins"]["B"] for item in answer["Items"] if "joins" in item]
        read_to = answer["LastEvaluatedKey"]["set_token"]["B"] if "LastEvaluatedKey" in answer else None
        sealed = [
            (item["set_token"]["B"][:SET_KEY_BYTES], item["sealed"]["B"])
            for item in answer["Items"]
            if "sealed" in item
        ]
        return PartitionPage(rows, packed, read_to, sealed)

    def replace(self, step: int, slot: int, replaced: Mapping[bytes, int]) -> set[bytes]:
        """Give joins of a step other tokens. For a command; it may be interrupted and repeated.

        Args:
            step: the step.
            slot: a slot of its layout.
            replaced: by set key and token, as in the key of a row, the new token; of sets of this slot.

        Returns:
            Those that were found.
        """
        found = set[bytes]()
        for place, layout in self.partitions(step, slot).items():
            own = [entry for entry in replaced if place == _partition_of(step, layout, entry)]
            for entry in self._rows(place, own):
                self._replace_row(step, place, entry, replaced[entry])
                found.add(entry)
            for item in self._packed(place):
                found |= self._replace_packed(item, replaced)
        return found

    def _rows(self, place: bytes, entries: Iterable[bytes]) -> Iterable[bytes]:
        """Those of the entries that are rows of a partition, strongly consistent."""
        key, other = KEY[1], {KEY[0]: {"B": place}}
        return get_all(self._client, self._table, entries, key, KEY[0], consistent=True, partition=other)

    def _replace_row(self, step: int, place: bytes, entry: bytes, token: int) -> None:
        """Give a row another token, unless it has expired. The new row is there before the old one goes."""
        key = item_of(step_slot=place, set_token=entry)
        item = self._client.get_item(TableName=self._table, Key=key, ConsistentRead=True).get("Item")
        if item is not None:
            sealed = item["sealed"]["B"] if "sealed" in item else b""
            self.put(Row(step, entry[:SET_KEY_BYTES], token, item["type"]["S"], int(item["ttl"]["N"]), sealed))
            self._client.delete_item(TableName=self._table, Key=key)

    def _packed(self, place: bytes) -> Iterator[Item]:
        """The packed items of a partition, strongly consistent."""
        pages = self._client.get_paginator("query").paginate(
            TableName=self._table,
            ConsistentRead=True,
            KeyConditionExpression="step_slot = :here AND set_token BETWEEN :first AND :last",
            ExpressionAttributeValues=bound(here=place, first=FIRST_PACKED, last=LAST_PACKED),
        )
        return (item for page in pages for item in page["Items"])

    def _replace_packed(self, item: Item, replaced: Mapping[bytes, int]) -> set[bytes]:
        """Give joins of a packed item other tokens."""
        joins = list(_unpacked(item["joins"]["B"]))
        found = {entry for _, entry in joins} & replaced.keys()
        if found:
            sealed = {key: value for of_type in unpack_joins(item["joins"]["B"]) for key, value in of_type.sealed}
            packed = pack_joins(
                ((name, entry[:SET_KEY_BYTES], replaced.get(entry, _token(entry))) for name, entry in joins), sealed
            )
            unless_refused(
                self._client.update_item,
                TableName=self._table,
                Key={name: item[name] for name in KEY},
                UpdateExpression="SET joins = :new",
                ConditionExpression="joins = :old",  # it may have expired
                ExpressionAttributeValues={":new": {"B": packed}, ":old": item["joins"]},
            )
        return found


def _token(entry: bytes) -> int:
    return int.from_bytes(entry[SET_KEY_BYTES:], "big")


def _partition_of(step: int, layout: Layout, entry: bytes) -> bytes:
    """The partition of a row under a layout, by set key and token.

    The last bits of the token choose it, so that the joins of one set spread over all partitions of the slot.
    """
    number = _token(entry) % (layout.partitions or 1)
    return partition(step, layout, layout.slot_of(entry[:SET_KEY_BYTES]), number)


def _unpacked(packed: bytes) -> Iterator[tuple[str, bytes]]:
    """The type of each join of a packed item, and its set key and token, as in the key of a row."""
    for name, width, entries, _ in unpack_joins(packed):
        for at in range(0, len(entries), SET_KEY_BYTES + width):
            token = at + SET_KEY_BYTES
            yield name, entries[at:token] + entries[token : token + width].rjust(TOKEN_BYTES, b"\0")


def key_of(item: Item) -> tuple[bytes, bytes]:
    """The primary key of an item."""
    return item["step_slot"]["B"], item["set_token"]["B"]
