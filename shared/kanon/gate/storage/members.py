"""Members: the state of each set between steps. A chunk writes it last; an old step never replaces a newer one.

One more item for each slot, the stamp, names the step through which all states of the slot are stored.
"""

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Executor
from itertools import starmap
from typing import NamedTuple

import numpy as np

from kanon.dynamo.batches import Item, put_all
from kanon.dynamo.conditions import unless_refused
from kanon.dynamo.limits import check_item
from kanon.dynamo.statements import STATEMENTS_A_CALL, Statement, execute_all, insert, replace
from kanon.dynamo.units import WRITE_UNIT, item_size
from kanon.errors import ThrottledError, UndecodableMembersError
from kanon.gate.mechanism.above_threshold import SetState
from kanon.gate.mechanism.columns import NEVER, Bools, Ints, States, Tokens, crossing_columns, step_column
from kanon.gate.mechanism.parameters import token_bytes
from kanon.gate.mechanism.tape import check_set_key
from kanon.gate.storage.packing import FORMAT, pack_all, unpack_all
from kanon.gate.storage.slot_rows import SetsAndSlots, crossings_of, key_of_slot

PAD = "p"
"""The attribute that fills up an item; one letter, so that it can fill a gap of a single byte."""

BYTES_A_CALL = 1_000_000
"""A call of large items ends here: it must be answered within the client's time limit."""

OPTIONAL = ("crossings", "wake_up", PAD)
"""The optional attributes."""

UNLESS_EVALUATED = "attribute_not_exists(evaluated) OR evaluated < :step"
UNLESS_REPLACED = "attribute_not_exists(members) OR members = :damaged"


def to_item(set_key: bytes, type_name: str, state: SetState, client_bits: int, expires: int) -> Item:
    """The state of one set as an item: :func:`to_items`."""
    if state.evaluated is None:
        raise ValueError("only an evaluated state can be packed")
    (item,) = to_items(type_name, States.of([(set_key, state)]), state.evaluated, client_bits, [expires])
    return item


def to_items(type_name: str, states: States, step: int, client_bits: int, expires: Sequence[int]) -> list[Item]:
    """The states of sets of one type that were evaluated at ``step``, as items.

    A token takes as many bytes as ``client_bits`` need. Zeros fill up an item to a whole number of write units. So the
    size of the table reveals only the write units. No code reads the zeros.
    """
    columns = zip(
        states.keys,
        pack_all(states.members, states.lasts, step, token_bytes(client_bits)),
        states.crossings.tolist(),
        states.wake_ups.tolist(),
        expires,
        strict=True,
    )
    items = []
    for set_key, packed, crossings, wake_up, expiry in columns:
        check_set_key(set_key)
        item: Item = {
            "set_key": {"B": set_key},
            "type": {"S": type_name},
            "members": {"B": packed},
            "evaluated": {"N": str(step)},
            "ttl": {"N": str(expiry)},
        }
        if known := [{"N": str(at)} for at in crossings if at != NEVER]:
            item["crossings"] = {"L": known}
        if wake_up != NEVER:
            item["wake_up"] = {"N": str(wake_up)}
        check_item(item, ("set_key",))
        if gap := -item_size(item) % WRITE_UNIT:
            item[PAD] = {"B": bytes(gap - len(PAD))}
        items.append(item)
    return items


def is_newer(item: Item) -> bool:
    """Whether the format number of the packed members is newer than this version's."""
    packed: bytes = item.get("members", {}).get("B", b"")
    return packed[:1] > bytes([FORMAT])


def from_item(item: Item) -> SetState:
    """The state in an item.

    Raises:
        UndecodableMembersError: the item cannot be decoded.
    """
    (state,) = from_items([b""], [item]).states()
    return state


def from_items(set_keys: Sequence[bytes], items: Sequence[Item | None]) -> States:
    """The states in items; None is a set without an item.

    Raises:
        UndecodableMembersError: an item cannot be decoded.
    """
    stored = np.array([item is not None for item in items], bool)
    there = [item for item in items if item is not None]
    try:
        found, members, lasts = unpack_all([item["members"]["B"] for item in there])
        crossings = crossing_columns(map(crossings_of, there))
        wake_ups = step_column(int(item["wake_up"]["N"]) if "wake_up" in item else None for item in there)
        named = step_column(int(item["evaluated"]["N"]) for item in there)
    except (KeyError, ValueError, TypeError, OverflowError) as error:
        raise UndecodableMembersError("a Members item lacks an attribute or has one of the wrong type") from error
    if (found != named).any():
        raise UndecodableMembersError("packed members and their item name different steps")
    return States(
        set_keys,
        Tokens(_spread(stored, members.sizes, 0), members.tokens),
        lasts,
        _spread(stored, crossings, NEVER),
        _spread(stored, found, NEVER),
        _spread(stored, wake_ups, NEVER),
    )


def _spread(stored: Bools, column: Ints, missing: int) -> Ints:
    """A column of the stored sets as one of all sets."""
    whole = np.full((len(stored), *column.shape[1:]), missing, np.int64)
    whole[stored] = column
    return whole


class Update(NamedTuple):
    """The new states of n sets of one type.

    Attributes:
        type_name, client_bits: the name of the type, and the bits of its tokens.
        states: the states after a step.
        stored: the steps of the stored states, (n,), NEVER if there is none.
        expires: when each state may expire, n Unix times in seconds.
    """

    type_name: str
    client_bits: int
    states: States
    stored: Ints
    expires: Sequence[int]


_Change = tuple[Item, int]
"""The new item of a set, and the step of the stored one, NEVER if there is none."""


def _changes(update: Update, step: int) -> Iterator[_Change]:
    items = to_items(update.type_name, update.states, step, update.client_bits, update.expires)
    return zip(items, update.stored.tolist(), strict=True)


def _calls(changes: Sequence[_Change]) -> Iterator[Sequence[_Change]]:
    """Split changes into calls of at most STATEMENTS_A_CALL and about BYTES_A_CALL."""
    first, size = 0, 0
    for number, (item, _) in enumerate(changes):
        size += len(item["members"]["B"])
        if number + 1 - first == STATEMENTS_A_CALL or size >= BYTES_A_CALL:
            yield changes[first : number + 1]
            first, size = number + 1, 0
    if first < len(changes):
        yield changes[first:]


class Members(SetsAndSlots):
    """The states of the sets."""

    def read(self, set_keys: Sequence[bytes]) -> States:
        """The states of the sets, in this order, strongly consistent. A set without an item was never evaluated.

        Raises:
            ThrottledError: some sets were not answered; do not treat them as absent.
            UndecodableMembersError: an item cannot be decoded.
        """
        items = self._get(set_keys, "members, evaluated, crossings, wake_up")
        return from_items(set_keys, [items.get(set_key) for set_key in set_keys])

    def waking(self, before: int) -> Iterator[tuple[bytes, str]]:
        """The set key and type of every set with a wake-up before step ``before``, strongly consistent.

        Reads the whole table.
        """
        found = self._scan(
            FilterExpression="wake_up < :before",
            ProjectionExpression="set_key, #type",
            ExpressionAttributeNames={"#type": "type"},
            ExpressionAttributeValues={":before": {"N": str(before)}},
        )
        return ((item["set_key"]["B"], item["type"]["S"]) for item in found)

    def states(self) -> Iterator[tuple[bytes, str, SetState]]:
        """Set key, type and state of every set, strongly consistent: reads the whole table.

        Raises:
            UndecodableMembersError: an item cannot be read.
        """
        for item in self.items():
            yield item["set_key"]["B"], item["type"]["S"], from_item(item)

    def stamps(self, slots: Iterable[int]) -> dict[int, int]:
        """The step through which the states of each slot are stored, strongly consistent; no entry before the first.

        Raises:
            ThrottledError: some slots were not answered.
        """
        return self._stamps(slots, "evaluated")

    def stamp(self, slot: int, step: int) -> None:
        """Record that all states of a slot are stored through ``step``, unless a later step is recorded."""
        self._put_unless_evaluated({"set_key": {"B": key_of_slot(slot)}, "evaluated": {"N": str(step)}})

    def put(self, set_key: bytes, type_name: str, state: SetState, client_bits: int, expires: int) -> None:
        """Put the state of a set without a condition; only under the lease of its slot."""
        item = to_item(set_key, type_name, state, client_bits, expires)
        self._client.put_item(TableName=self._table, Item=item)

    def items(self) -> Iterator[Item]:
        """The item of every set as it is stored, strongly consistent: reads the whole table."""
        return (item for item in self._scan() if len(item["set_key"]["B"]) > 1)

    def put_all(self, items: Iterable[Item]) -> None:
        """Put items as they were stored in another table, without a condition; only under the leases of their slots.

        Raises:
            ThrottledError: some were not stored.
        """
        if put_all(self._client, self._table, items, ("set_key",)):
            raise ThrottledError("Members did not store every set; run the command again")

    def remove(self, keys: Iterable[bytes]) -> None:
        """Delete the items with these keys; only under the leases of their slots."""
        for key in keys:
            self._client.delete_item(TableName=self._table, Key={"set_key": {"B": key}})

    def undecodable(self) -> Iterator[Item]:
        """Every item that :func:`from_item` refuses, strongly consistent. Reads the whole table."""
        for item in self.items():
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

    def write(self, step: int, updates: Iterable[Update], writers: Executor) -> None:
        """Write the states after ``step``, each unless its stored state is from this step or a later one.

        Calls run in parallel; on return all are done. A statement expects the item that was read. If it is refused,
        another worker has written the set, or the item has expired since, or the first answer of a repeated call was
        lost. So the state is put on the condition that nothing newer is stored, and only if that is refused, the work
        is done:

            evaluate   read Members ---> step 7
            DynamoDB                                the item expires
            evaluate   update if step 7 ---> refused
            evaluate   put unless newer ---> stored

        Raises:
            ThrottledError: some states were not stored.
        """
        changes = [change for update in updates for change in _changes(update, step)]
        list(writers.map(self._write, _calls(changes)))

    def _write(self, changes: Sequence[_Change]) -> None:
        refused, left = execute_all(self._client, list(starmap(self._statement, changes)))
        if left:
            raise ThrottledError("Members did not store every set; evaluate the step again")
        for number in refused:
            self._put_unless_evaluated(changes[number][0])

    def _put_unless_evaluated(self, item: Item) -> None:
        """Put an item, unless the stored one is from its step or a later one."""
        unless_refused(
            self._client.put_item,
            TableName=self._table,
            Item=item,
            ConditionExpression=UNLESS_EVALUATED,
            ExpressionAttributeValues={":step": item["evaluated"]},
        )

    def _statement(self, item: Item, stored: int) -> Statement:
        if stored == NEVER:
            return insert(self._table, item)
        absent = [name for name in OPTIONAL if name not in item]
        return replace(self._table, item, "set_key", absent, {"evaluated": {"N": str(stored)}})
