"""StepLog: one row per (step, slot, set, client token), and the wake-ups. All answers derive from this log."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from kanon.dynamo.batches import Item, put_all
from kanon.errors import ThrottledError
from kanon.gate.mechanism.tape import SET_KEY_BYTES, check_set_key

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


class Page(NamedTuple):
    """The sets that one call completed, and how many rows it read."""

    sets: tuple[Touched, ...]
    rows: int


@dataclass
class _OpenSet:
    """A set whose rows are being read."""

    set_key: bytes
    type_name: str
    joined: list[int] = field(default_factory=list)

    def touched(self) -> Touched:
        """The set with the tokens read so far."""
        return Touched(self.set_key, self.type_name, tuple(self.joined))


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
        """The sets of all :meth:`pages`."""
        return (touched for page in self.pages(step, slot, keep, after) for touched in page.sets)

    def pages(self, step: int, slot: int, keep: int, after: bytes | None = None) -> Iterator[Page]:
        """The sets with rows in ``step``, in the order of their keys, strongly consistent, one call per page.

        A page holds the sets that its call completed, perhaps none. After ``keep`` tokens of a set, its other rows
        are skipped: the next call starts after the set.

        Args:
            step: a closed step.
            slot: the slot to read.
            keep: the largest number of tokens kept per set; more tokens cannot change a decision.
            after: start after this set.
        """
        if after is not None:
            after += PAST_ANY_TOKEN
        open_: _OpenSet | None = None
        while True:
            answer = self._client.query(**self._query(step, slot, after))
            done: list[Touched] = []
            for item in answer["Items"]:
                key = item["set_token"]["B"]
                set_key, token = key[:SET_KEY_BYTES], key[SET_KEY_BYTES:]
                if open_ is None or open_.set_key != set_key:
                    if open_ is not None:
                        done.append(open_.touched())
                    open_ = _OpenSet(set_key, item["type"]["S"])
                if token and len(open_.joined) < keep:
                    open_.joined.append(int.from_bytes(token, "big"))
            last = "LastEvaluatedKey" not in answer
            if open_ is not None and (last or len(open_.joined) >= keep):
                done.append(open_.touched())
                after, open_ = open_.set_key + PAST_ANY_TOKEN, None
            elif not last:
                after = answer["LastEvaluatedKey"]["set_token"]["B"]
            yield Page(tuple(done), len(answer["Items"]))
            if last:
                return

    def _query(self, step: int, slot: int, after: bytes | None) -> dict[str, Any]:
        query: dict[str, Any] = {
            "TableName": self._table,
            "ConsistentRead": True,
            "KeyConditionExpression": "step_slot = :here",
            "ProjectionExpression": "set_token, #type",
            "ExpressionAttributeNames": {"#type": "type"},
            "ExpressionAttributeValues": {":here": {"B": partition(step, slot)}},
        }
        if after is not None:
            query["KeyConditionExpression"] += " AND set_token > :after"
            query["ExpressionAttributeValues"][":after"] = {"B": after}
        return query


def key_of(row: Row) -> tuple[bytes, bytes]:
    """The primary key of a row."""
    item = pack(row)
    return item["step_slot"]["B"], item["set_token"]["B"]
