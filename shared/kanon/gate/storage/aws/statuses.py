"""Statuses: the crossings of each set, per slot the horizon up to which its answers are complete, and suppressions.

Rows of slots lie beside those of sets: the key is the number of the slot in one byte, and a set's key has 32. Two rows
with keys of two bytes have the suppressed sets: one lists them, the other one is small and has only the *stamp* of the
list, which is new with every change. So each read sees whether the list changed, and it is read when it did.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from kanon.dynamo.batches import Item
from kanon.dynamo.tables import KeyedTable, attribute, bound, item_of
from kanon.dynamo.transactions import MOST_ITEMS, all_or_none
from kanon.errors import ConfigurationError
from kanon.gate.mechanism.tape import SET_KEY_BYTES, check_set_key
from kanon.gate.publishing import Horizon

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient

    from kanon.gate.storage.protocols import Status  # it names columns of numpy, which `query` does not load

UNLESS_NEWER = "attribute_not_exists(newest) OR newest < :newest"
IF_AS_READ = "newest = :read"
IF_LATER_TICK = "through >= :known AND through < :step AND visible_from < :from"
IF_SAME_TICK = "through >= :known AND through < :step AND visible_from >= :from"
OR_FIRST = "attribute_not_exists(through) OR"
IF_MOVED = "through >= :step"

TTL = {"ExpressionAttributeNames": {"#ttl": "ttl"}}
"""A part of each call that changes the expiry: "ttl" is a reserved word."""
_NUMBERS = ("through", "visible_from", "earlier", "earlier_from", "earliest")
_NAMES = ("shows", "earlier_shows", "earliest_shows")
SHOWN = ", ".join(("crossings", *_NUMBERS, *_NAMES, "stamp"))
"""The attributes that a query reads: the first from a set's item, the last from the stamp's, others from a slot's."""
MOST_STATUSES = MOST_ITEMS - 1
"""The crossings of one transaction, beside its fence."""
MOST_CROSSINGS = 8
"""An item with so many crossings is cut to the last two by the next one: no reader and no command needs others."""
MOST_SUPPRESSED = 10_000
"""The suppressed sets in one item of at most 400 KB."""
_SUPPRESSED, _STAMP = b"su", b"st"


def key_of_slot(slot: int) -> bytes:
    """The key of a slot's row."""
    return bytes([slot])


def crossings_of(item: Item) -> tuple[int, ...]:
    """The last two crossings in the item of a set, oldest first."""
    return tuple(int(step["N"]) for step in item.get("crossings", {"L": []})["L"][-2:])


class Statuses(KeyedTable):
    """The table that queries read: a row for each set, one for each slot, and the suppressed sets."""

    key_name = "set_key"
    key_type = "B"

    def __init__(self, client: "DynamoDBClient", table: str) -> None:
        super().__init__(client, table)
        self._stamp, self.suppressed = "", frozenset[bytes]()
        """The suppressed sets as :meth:`read` has seen them last, and the stamp of that list; "" of none."""

    def write(self, fence: dict[str, Any], statuses: "Sequence[Status]") -> bool:
        """Record crossings with a fence, in one transaction; each unless it or a later one is recorded already.

        Args:
            fence: a conditional write of another table (:meth:`Control.fence`).
            statuses: crossings of different sets, at most :data:`MOST_STATUSES`.

        Returns:
            Whether they are recorded. False: the fence was refused.
        """
        pending = [(status, self._record(status)) for status in statuses]
        while True:
            refused = all_or_none(self._client, [fence, *(write for _, write in pending)])
            if refused is None:
                return True
            if refused[0] is not None:
                return False
            found = zip(pending, refused[1:], strict=True)
            pending = [
                (status, write if item is None else self._record(status, item))
                for (status, write), item in found
                if item is None or not _has_newer(item, status)
            ]

    def _record(self, status: "Status", full: Item | None = None) -> dict[str, Any]:
        """The update that records the crossings of a set.

        A set that was forgotten has one crossing. The one before it stays in the item: until the tick readers need it.

        Args:
            status: the set and its crossings.
            full: the item as it is, if it has no room for one more. Then only its last crossing stays.
        """
        set_key, crossings, expires = status
        check_set_key(set_key)
        condition, stored = UNLESS_NEWER, ":crossings"
        values = bound(newest=crossings[-1], expires=expires)
        if full:
            crossings = (*crossings_of(full), *crossings)[-2:]
            condition, values[":read"] = IF_AS_READ, full["newest"]
        elif len(crossings) == 1:
            stored = "list_append(if_not_exists(crossings, :none), :crossings)"
            condition = f"({UNLESS_NEWER}) AND attribute_not_exists(crossings[{MOST_CROSSINGS - 1}])"
            values |= bound(none=())
        values |= bound(crossings=crossings)
        update = f"SET crossings = {stored}, newest = :newest, #ttl = :expires"
        return self._part(set_key, update, condition, values, **TTL)

    def suppress(self, set_key: bytes) -> None:
        """Force a set to read false, even if it crosses.

        Raises:
            ConfigurationError: too many sets are suppressed.
        """
        check_set_key(set_key)
        self._change_suppressed(set_key, wanted=True)

    def show(self, set_key: bytes) -> bool:
        """Stop suppressing a set; False if it was not suppressed."""
        return self._change_suppressed(set_key, wanted=False)

    def _change_suppressed(self, set_key: bytes, *, wanted: bool) -> bool:
        """Add a set to the suppressed ones, or remove it; False if there was nothing to do."""
        changed = False
        while True:
            stamp, keys = self._read_suppressed()
            if (set_key in keys) == wanted:
                return changed
            keys ^= {set_key}
            if len(keys) > MOST_SUPPRESSED:
                raise ConfigurationError(
                    f"{MOST_SUPPRESSED} sets are suppressed, and that is the most: unsuppress one (retired types count)"
                )
            new = uuid4().hex
            writes = [
                self._stamped(item_of(set_key=_SUPPRESSED, keys_of_sets=b"".join(sorted(keys)), stamp=new), stamp),
                self._stamped(item_of(set_key=_STAMP, stamp=new), stamp),
            ]
            changed = True
            if all_or_none(self._client, writes) is None:
                return True

    def _stamped(self, item: dict[str, Any], before: str) -> dict[str, Any]:
        """A put in a transaction, if the stored item has the stamp ``before``."""
        put: dict[str, Any] = {
            "TableName": self._table,
            "Item": item,
            "ConditionExpression": "attribute_not_exists(stamp)",
        }
        if before:
            put |= {"ConditionExpression": "stamp = :stamp", "ExpressionAttributeValues": bound(stamp=before)}
        return {"Put": put}

    def _read_suppressed(self) -> tuple[str, frozenset[bytes]]:
        """The stamp of the list of suppressed sets and the sets, strongly consistent; "" if there never was one.

        Raises:
            ThrottledError: the table did not answer.
        """
        item = self._get([_SUPPRESSED], "keys_of_sets, stamp").get(_SUPPRESSED)
        if item is None:
            return "", frozenset()
        keys = item["keys_of_sets"]["B"]
        return item["stamp"]["S"], frozenset(keys[at : at + SET_KEY_BYTES] for at in range(0, len(keys), SET_KEY_BYTES))

    def horizon_moves(
        self, slot: int, step: int, visible_from: int, known: int | None, shows: str | None = None
    ) -> list[dict[str, Any]]:
        """The parts of transactions that complete ``step`` for a slot: it becomes visible at the tick ``visible_from``.

        One of them applies; none if the table is older than ``known``. What readers see before that tick does not
        change. If the stored horizon becomes visible at the same or a later tick, ``step`` becomes visible with it.
        The last part is for a horizon that is at ``step`` already, and changes nothing.

        Args:
            slot: the slot.
            step: the step that is complete.
            visible_from: the tick, in Unix s.
            known: the step to which this slot has moved the horizon before; None if it never has.
            shows: the name of the object of the sets that are true at ``step``; None if there is none.
        """
        key = key_of_slot(slot)
        values = bound(step=step, known=-1 if known is None else known, shows=shows)
        values[":from"] = attribute(visible_from)
        later = (
            "SET earliest = if_not_exists(earlier, :none), earlier = through, earlier_from = visible_from,"
            " through = :step, visible_from = :from, earliest_shows = if_not_exists(earlier_shows, :none),"
            " earlier_shows = if_not_exists(shows, :none), shows = :shows"
        )
        same = "SET through = :step, visible_from = if_not_exists(visible_from, :from), shows = :shows"
        return [
            self._part(key, later, IF_LATER_TICK, {**values, **bound(none=None)}),
            self._part(key, same, f"{OR_FIRST} ({IF_SAME_TICK})" if known is None else IF_SAME_TICK, values),
            self._moved(slot, step),
        ]

    def has_moved(self, slot: int, step: int) -> bool:
        """Whether the horizon of a slot is at ``step`` or later. `evaluate` may not read it, so this is a write."""
        return all_or_none(self._client, [self._moved(slot, step)]) is None

    def _moved(self, slot: int, step: int) -> dict[str, Any]:
        """A part that changes nothing, and is refused if the horizon is before ``step``."""
        return self._part(key_of_slot(slot), "SET through = through", IF_MOVED, bound(step=step))

    def horizon(self, slot: int, horizon: Horizon) -> dict[str, Any]:
        """The part of a transaction that puts a horizon in the place of one that is not newer. For a command."""
        values = asdict(horizon)
        update = f"SET {', '.join(f'{name} = :{name}' for name in values)}"
        return self._part(key_of_slot(slot), update, f"{OR_FIRST} through <= :through", bound(**values))

    def read(
        self, set_keys: Iterable[bytes], slots: Iterable[int], *, consistent: bool = False
    ) -> tuple[dict[bytes, tuple[int, ...]], dict[int, Horizon]]:
        """The crossings of the sets and the horizons of the slots that have any.

        A suppressed set has no crossings here, like an unknown one. ``suppressed`` is up to date afterwards.

        Raises:
            ThrottledError: some keys were not answered; do not read them as false.
        """
        keys = [*set_keys, *(key_of_slot(slot) for slot in slots), _STAMP]
        found = self._get(keys, SHOWN, consistent=consistent)
        if found.get(_STAMP, {"stamp": {"S": ""}})["stamp"]["S"] != self._stamp:
            self._stamp, self.suppressed = self._read_suppressed()
        crossings = {key: () if key in self.suppressed else at for key, at in _crossings(found).items()}
        return crossings, _horizons(found)

    def crossings(self, set_keys: Iterable[bytes]) -> dict[bytes, tuple[int, ...]]:
        """The stored crossings of the sets that have an item, suppressed or not, strongly consistent.

        Raises:
            ThrottledError: some keys were not answered.
        """
        return {key: crossings_of(item) for key, item in self._get(set_keys, "crossings").items()}

    def is_suppressed(self, set_key: bytes) -> bool:
        """Whether a set is suppressed, strongly consistent.

        Raises:
            ThrottledError: the table did not answer.
        """
        return set_key in self._read_suppressed()[1]

    def released(self) -> tuple[dict[bytes, tuple[int, ...]], dict[int, Horizon]]:
        """Every set's crossings and every slot's horizon, strongly consistent: reads the whole table."""
        items = {item["set_key"]["B"]: item for item in self._scan()}
        return _crossings(items), _horizons(items)


def _has_newer(item: Item, status: "Status") -> bool:
    """Whether the item of a set has this crossing or a later one."""
    return "newest" in item and int(item["newest"]["N"]) >= status[1][-1]


def _crossings(items: Mapping[bytes, Item]) -> dict[bytes, tuple[int, ...]]:
    """The crossings of the sets among items."""
    return {key: crossings_of(item) for key, item in items.items() if len(key) == SET_KEY_BYTES}


def _horizons(items: Mapping[bytes, Item]) -> dict[int, Horizon]:
    """The horizons among items, by slot."""
    return {key[0]: _horizon(item) for key, item in items.items() if len(key) == 1}


def _horizon(item: Item) -> Horizon:
    through, visible_from, earlier, earlier_from, earliest = (
        int(item[name]["N"]) if "N" in item.get(name, {}) else None for name in _NUMBERS
    )
    shows = (item.get(name, {}).get("S") for name in _NAMES)
    return Horizon(through or 0, visible_from or 0, earlier, earlier_from or 0, earliest, *shows)
