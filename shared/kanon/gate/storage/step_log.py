"""StepLog: one row per (step, slot, set, client token), and the wake-ups. All answers derive from this log."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any

from kanon.dynamo.batches import Item, put_all
from kanon.errors import ThrottledError
from kanon.gate.mechanism.tape import SET_KEY_BYTES, check_set_key

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient

KEY = ("step_slot", "set_token")
TOKEN_BYTES = 4


@dataclass(frozen=True)
class Row:
    """A row of the log: a join, or a wake-up if it has no token.

    ``expires`` is in Unix seconds.
    """

    step: int
    slot: int
    set_key: bytes
    token: int | None
    type_name: str
    expires: int


@dataclass(frozen=True)
class Touched:
    """A set with rows in a step, and the distinct tokens that joined, at most as many as requested."""

    set_key: bytes
    type_name: str
    joined: tuple[int, ...]


def pack(row: Row) -> Item:
    """The row as an item."""
    check_set_key(row.set_key)
    token = b"" if row.token is None else row.token.to_bytes(TOKEN_BYTES, "big")
    return {
        "step_slot": {"B": partition(row.step, row.slot)},
        "set_token": {"B": row.set_key + token},
        "type": {"S": row.type_name},
        "ttl": {"N": str(row.expires)},
    }


def partition(step: int, slot: int) -> bytes:
    """The partition key: the step (8 bytes, signed, big-endian), then the slot (1 byte)."""
    return step.to_bytes(8, "big", signed=True) + bytes([slot])


class StepLog:
    """The log of joins and wake-ups."""

    def __init__(self, client: "DynamoDBClient", table: str) -> None:
        self._client = client
        self._table = table

    def put(self, row: Row) -> None:
        """Put one row. Putting the same row again changes nothing."""
        self._client.put_item(TableName=self._table, Item=pack(row))

    def put_all(self, rows: Iterable[Row]) -> set[tuple[bytes, bytes]]:
        """Put many rows; rows that were not stored are retried.

        Returns:
            The keys (:func:`key_of`) of the rows not stored.
        """
        left = put_all(self._client, self._table, map(pack, rows), KEY)
        return {(item["step_slot"]["B"], item["set_token"]["B"]) for item in left}

    def put_wake_ups(self, rows: Iterable[Row]) -> None:
        """Put wake-ups.

        Raises:
            ThrottledError: some were not stored; do not commit their sets.
        """
        if self.put_all(rows):
            raise ThrottledError("the log did not store every wake-up; evaluate the step again")

    def touched(self, step: int, slot: int, keep: int, after: bytes | None = None) -> Iterator[Touched]:
        """The sets with rows in ``step``, in the order of their keys, strongly consistent, page by page.

        Args:
            step: a closed step.
            slot: the slot to read.
            keep: the largest number of tokens returned per set; more tokens cannot change a decision.
            after: start after this set key.
        """
        for set_key, items in groupby(self._items(step, slot, after), key=_set_key):
            type_name = ""
            joined: list[int] = []
            for item in items:
                type_name = item["type"]["S"]
                token = item["set_token"]["B"][SET_KEY_BYTES:]
                if token and len(joined) < keep:
                    joined.append(int.from_bytes(token, "big"))
            yield Touched(set_key, type_name, tuple(joined))

    def _items(self, step: int, slot: int, after: bytes | None) -> Iterator[Item]:
        query: dict[str, Any] = {
            "TableName": self._table,
            "ConsistentRead": True,
            "KeyConditionExpression": "step_slot = :here",
            "ExpressionAttributeValues": {":here": {"B": partition(step, slot)}},
        }
        if after is not None:
            # This key sorts after every row of the set: its suffix is one byte longer than a token.
            query["KeyConditionExpression"] += " AND set_token > :after"
            query["ExpressionAttributeValues"][":after"] = {"B": after + b"\xff" * (TOKEN_BYTES + 1)}
        while True:
            page = self._client.query(**query)
            yield from page["Items"]
            if "LastEvaluatedKey" not in page:
                return
            query["ExclusiveStartKey"] = page["LastEvaluatedKey"]


def key_of(row: Row) -> tuple[bytes, bytes]:
    """The primary key of a row."""
    item = pack(row)
    return item["step_slot"]["B"], item["set_token"]["B"]


def _set_key(item: Item) -> bytes:
    key: bytes = item["set_token"]["B"]
    return key[:SET_KEY_BYTES]
