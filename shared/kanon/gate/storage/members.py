"""Members: the state of each set between steps. A chunk writes it last; an old step never replaces a newer one."""

import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from kanon.dynamo.batches import Item, get_all
from kanon.dynamo.conditions import unless_refused
from kanon.dynamo.limits import check_item
from kanon.dynamo.statements import Statement, execute_all, insert, replace
from kanon.dynamo.units import WRITE_UNIT, item_size
from kanon.errors import ThrottledError, UndecodableMembersError
from kanon.gate.mechanism.above_threshold import SetState
from kanon.gate.mechanism.members import Member
from kanon.gate.mechanism.tape import check_set_key

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient

FORMAT = 1
PAD = "p"
"""The attribute that fills up an item; one letter, so that it can fill a gap of a single byte."""

OPTIONAL = ("crossings", "wake_up", PAD)
"""The attributes that not every item has."""

UNLESS_EVALUATED = "attribute_not_exists(evaluated) OR evaluated < :step"
UNLESS_REPLACED = "attribute_not_exists(members) OR members = :damaged"


def pack(state: SetState, token_bytes: int) -> bytes:
    """Format 1: version, bytes per token, evaluated step (8 bytes), then each member's token and age (2 bytes).

    The age is the number of steps between the last join and the evaluated step; it is less than the window.
    """
    if state.evaluated is None:
        raise ValueError("only an evaluated state can be packed")
    head = struct.pack(">BBq", FORMAT, token_bytes, state.evaluated)
    body = (
        member.token.to_bytes(token_bytes, "big") + (state.evaluated - member.last).to_bytes(2, "big")
        for member in state.members
    )
    return head + b"".join(body)


def unpack(packed: bytes) -> tuple[int, tuple[Member, ...]]:
    """The evaluated step and the members of a packed value of any format ever written.

    Raises:
        UndecodableMembersError: the bytes are of no known format.
    """
    if len(packed) < 10 or packed[0] != FORMAT:
        raise UndecodableMembersError(f"packed members of unknown format {packed[:1].hex() or 'empty'}")
    _, token_bytes, evaluated = struct.unpack_from(">BBq", packed)
    body, width = packed[10:], token_bytes + 2
    if not 1 <= token_bytes <= 4 or len(body) % width:
        raise UndecodableMembersError("packed members of format 1 end inside a member")
    entries = (body[start : start + width] for start in range(0, len(body), width))
    members = (
        Member(int.from_bytes(entry[:token_bytes], "big"), evaluated - int.from_bytes(entry[token_bytes:], "big"))
        for entry in entries
    )
    return evaluated, tuple(members)


def to_item(set_key: bytes, type_name: str, state: SetState, client_bits: int, expires: int) -> Item:
    """The state of a set as an item; a token takes as many bytes as ``client_bits`` need.

    Zeros fill it up to a whole number of write units, so that the size of the table tells no more than the write
    units it took. No code reads them.
    """
    check_set_key(set_key)
    item: Item = {
        "set_key": {"B": set_key},
        "type": {"S": type_name},
        "members": {"B": pack(state, -(-client_bits // 8))},
        "evaluated": {"N": str(state.evaluated)},
        "ttl": {"N": str(expires)},
    }
    if state.crossings:
        item["crossings"] = {"L": [{"N": str(step)} for step in state.crossings]}
    if state.wake_up is not None:
        item["wake_up"] = {"N": str(state.wake_up)}
    check_item(item, ("set_key",))
    if gap := -item_size(item) % WRITE_UNIT:
        item[PAD] = {"B": bytes(gap - len(PAD))}
    return item


def is_newer(item: Item) -> bool:
    """Whether the format number of the packed members is newer than this version's."""
    packed: bytes = item.get("members", {}).get("B", b"")
    return packed[:1] > bytes([FORMAT])


def from_item(item: Item) -> SetState:
    """The state in an item.

    Raises:
        UndecodableMembersError: the item cannot be decoded.
    """
    try:
        evaluated, members = unpack(item["members"]["B"])
        crossings = tuple(int(step["N"]) for step in item.get("crossings", {"L": []})["L"])
        wake_up = int(item["wake_up"]["N"]) if "wake_up" in item else None
        if evaluated != int(item["evaluated"]["N"]):
            raise UndecodableMembersError("packed members and their item name different steps")
    except (KeyError, ValueError, TypeError) as error:
        raise UndecodableMembersError("a Members item lacks an attribute or has one of the wrong type") from error
    return SetState(members, crossings, evaluated, wake_up)


class Change(NamedTuple):
    """The new item of a set, and the evaluated step of the stored one, None if there is none."""

    item: Item
    stored: int | None


class Members:
    """The states of the sets."""

    def __init__(self, client: "DynamoDBClient", table: str) -> None:
        self._client = client
        self._table = table

    def read(self, set_keys: Iterable[bytes]) -> dict[bytes, SetState]:
        """The states of the sets that have one, strongly consistent.

        Raises:
            ThrottledError: some sets were not answered; do not treat them as absent.
            UndecodableMembersError: an item cannot be decoded.
        """
        found, unanswered = get_all(
            self._client, self._table, set_keys, "set_key", "members, evaluated, crossings, wake_up", consistent=True
        )
        if unanswered:
            raise ThrottledError("Members did not answer for every set; evaluate the step again")
        return {set_key: from_item(item) for set_key, item in found.items()}

    def waking(self, before: int) -> Iterator[tuple[bytes, str]]:
        """The set key and type of every set with a wake-up before step ``before``, strongly consistent.

        Reads the whole table.
        """
        pages = self._client.get_paginator("scan").paginate(
            TableName=self._table,
            ConsistentRead=True,
            FilterExpression="wake_up < :before",
            ProjectionExpression="set_key, #type",
            ExpressionAttributeNames={"#type": "type"},
            ExpressionAttributeValues={":before": {"N": str(before)}},
        )
        for item in (item for page in pages for item in page["Items"]):
            yield item["set_key"]["B"], item["type"]["S"]

    def states(self) -> Iterator[tuple[bytes, str, SetState]]:
        """Set key, type and state of every set, strongly consistent: reads the whole table.

        Raises:
            UndecodableMembersError: an item cannot be read.
        """
        pages = self._client.get_paginator("scan").paginate(TableName=self._table, ConsistentRead=True)
        for item in (item for page in pages for item in page["Items"]):
            yield item["set_key"]["B"], item["type"]["S"], from_item(item)

    def put(self, set_key: bytes, type_name: str, state: SetState, client_bits: int, expires: int) -> None:
        """Put the state of a set whatever is there; only under the lease of its slot."""
        item = to_item(set_key, type_name, state, client_bits, expires)
        self._client.put_item(TableName=self._table, Item=item)

    def undecodable(self) -> Iterator[Item]:
        """Every item that :func:`from_item` refuses, strongly consistent. Reads the whole table."""
        pages = self._client.get_paginator("scan").paginate(TableName=self._table, ConsistentRead=True)
        for item in (item for page in pages for item in page["Items"]):
            try:
                from_item(item)
            except UndecodableMembersError:
                yield item

    def replace(self, damaged: Item, type_name: str, state: SetState, client_bits: int, expires: int) -> None:
        """Replace an item that cannot be decoded by ``state``, unless its members have changed meanwhile."""
        item = to_item(damaged["set_key"]["B"], type_name, state, client_bits, expires)
        unless_refused(
            self._client.put_item,
            TableName=self._table,
            Item=item,
            ConditionExpression=UNLESS_REPLACED,
            ExpressionAttributeValues={":damaged": damaged.get("members", {"NULL": True})},
        )

    def write(self, changes: Sequence[Change]) -> None:
        """Write the states of some sets in one call, each unless its stored state is from this step or a later one.

        A statement expects the item that was read. If it is refused, another worker has written the set, or the item
        has expired since, or the first answer of a repeated call was lost. So the state is put on the condition that
        nothing newer is stored, and only if that is refused, the work is done:

            evaluate   read Members ---> step 7
            DynamoDB                                the item expires
            evaluate   update if step 7 ---> refused
            evaluate   put unless newer ---> stored

        Raises:
            ThrottledError: some states were not stored.
        """
        refused, left = execute_all(self._client, [self._statement(change) for change in changes])
        if left:
            raise ThrottledError("Members did not store every set; evaluate the step again")
        for number in refused:
            item = changes[number].item
            unless_refused(
                self._client.put_item,
                TableName=self._table,
                Item=item,
                ConditionExpression=UNLESS_EVALUATED,
                ExpressionAttributeValues={":step": item["evaluated"]},
            )

    def _statement(self, change: Change) -> Statement:
        item, stored = change
        if stored is None:
            return insert(self._table, item)
        absent = [name for name in OPTIONAL if name not in item]
        return replace(self._table, item, "set_key", absent, {"evaluated": {"N": str(stored)}})
