"""StepLog: one row per (step, slot, set, client token), and the wake-ups. All answers derive from this log."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from kanon.dynamo.batches import Item, put_all
from kanon.errors import ThrottledError
from kanon.gate.mechanism.tape import check_set_key
from kanon.gate.slots import Layout, Layouts

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient

KEY = ("step_slot", "set_token")
TOKEN_BYTES = 4
PAST_ANY_TOKEN = b"\xff" * (TOKEN_BYTES + 1)
"""A suffix for a set key: the result sorts after every row of the set."""


@dataclass(frozen=True)
class Row:
    """A row of the log: a join, or a wake-up if it has no token.

    ``expires`` is in Unix seconds.
    """

    step: int
    set_key: bytes
    token: int | None
    type_name: str
    expires: int


class Found(NamedTuple):
    """What one call read of a partition.

    Attributes:
        rows: the set key and token of each row (the set key alone: a wake-up) and its type, in order.
        last: the last row read if the partition has more rows; None if it has not.
    """

    rows: list[tuple[bytes, str]]
    last: bytes | None


def pack(row: Row, layout: Layout) -> Item:
    """The row as an item, under the layout in force at its step."""
    check_set_key(row.set_key)
    token = b"" if row.token is None else row.token.to_bytes(TOKEN_BYTES, "big")
    return {
        "step_slot": {"B": partition(row.step, layout.slot_of(row.set_key))},
        "set_token": {"B": row.set_key + token},
        "type": {"S": row.type_name},
        "ttl": {"N": str(row.expires)},
    }


def partition(step: int, slot: int) -> bytes:
    """The partition key: the step (8 bytes, signed, big-endian), then the slot (1 byte)."""
    return step.to_bytes(8, "big", signed=True) + bytes([slot])


class StepLog:
    """The log of joins and wake-ups."""

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

    def put_all(self, rows: Iterable[Row]) -> set[tuple[bytes, bytes]]:
        """Put many rows; rows that were not stored are retried.

        Returns:
            The keys (:meth:`key_of`) of the rows not stored.
        """
        left = put_all(self._client, self._table, map(self.item, rows), KEY)
        return {_key(item) for item in left}

    def key_of(self, row: Row) -> tuple[bytes, bytes]:
        """The primary key of a row."""
        return _key(self.item(row))

    def put_wake_ups(self, rows: Iterable[Row]) -> None:
        """Put wake-ups.

        Raises:
            ThrottledError: some were not stored; do not commit their sets.
        """
        if self.put_all(rows):
            raise ThrottledError("the log did not store every wake-up; evaluate the step again")

    def partitions(self, step: int, slot: int, window: int) -> list[bytes]:
        """The partitions in which rows of the sets of ``slot`` may lie at ``step``, each once.

        Args:
            step: the step to read.
            slot: a slot of the layout at ``step``.
            window: the longest window of a type, in steps.

        Raises:
            ConfigurationError: an older layout is no longer listed.
        """
        places = self.layouts.read(slot, step, window)
        return list(dict.fromkeys(partition(step, number) for _, number in places))

    def page(self, partition: bytes, first: bytes, last: bytes) -> Found:
        """The rows of a partition from ``first`` to ``last``, strongly consistent; one call, at most 1 MB."""
        answer = self._client.query(
            TableName=self._table,
            ConsistentRead=True,
            KeyConditionExpression="step_slot = :here AND set_token BETWEEN :first AND :last",
            ProjectionExpression="set_token, #type",
            ExpressionAttributeNames={"#type": "type"},
            ExpressionAttributeValues={":here": {"B": partition}, ":first": {"B": first}, ":last": {"B": last}},
        )
        rows = [(item["set_token"]["B"], item["type"]["S"]) for item in answer["Items"]]
        return Found(rows, answer["LastEvaluatedKey"]["set_token"]["B"] if "LastEvaluatedKey" in answer else None)


def _key(item: Item) -> tuple[bytes, bytes]:
    return item["step_slot"]["B"], item["set_token"]["B"]
