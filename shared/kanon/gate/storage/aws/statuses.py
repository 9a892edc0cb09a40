"""Statuses: the crossings of each set, and per slot the horizon up to which its answers are complete.

Rows of slots lie beside those of sets: the key is the number of the slot in one byte, and a set's key has 32.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kanon.dynamo.batches import Item
from kanon.dynamo.tables import KeyedTable
from kanon.dynamo.transactions import MOST_ITEMS, all_or_none
from kanon.gate.mechanism.tape import check_set_key
from kanon.gate.publishing import Horizon

if TYPE_CHECKING:  # it names columns of numpy, which `query` does not load
    from kanon.gate.storage.protocols import Status

UNLESS_NEWER = "(attribute_not_exists(newest) OR newest < :newest)"
UNLESS_SUPPRESSED = "attribute_not_exists(suppressed)"
IF_SUPPRESSED = "attribute_exists(suppressed)"
IF_LATER_TICK = "through < :step AND visible_from < :from"
IF_SAME_TICK = "attribute_not_exists(through) OR (through < :step AND visible_from >= :from)"

TTL = {"ExpressionAttributeNames": {"#ttl": "ttl"}}
"""A part of each call that changes the expiry: "ttl" is a reserved word."""
SHOWN = "crossings, suppressed, through, visible_from, earlier, earlier_from, earliest"
"""The attributes that a query reads: the first two from a set's item, the others from a slot's."""
MOST_STATUSES = MOST_ITEMS - 1
"""The crossings of one transaction, beside its fence."""


def key_of_slot(slot: int) -> bytes:
    """The key of a slot's row."""
    return bytes([slot])


def crossings_of(item: Item) -> tuple[int, ...]:
    """The last two crossings in the item of a set, oldest first."""
    return tuple(int(step["N"]) for step in item.get("crossings", {"L": []})["L"][-2:])


class Statuses(KeyedTable):
    """The table that queries read: a row for each set, and one for each slot."""

    key_name = "set_key"
    key_type = "B"

    def write(self, fence: dict[str, Any], statuses: "Sequence[Status]") -> bool:
        """Record crossings with a fence, in one transaction; each unless it or a later one is recorded already.

        A crossing is an update, because a put would remove a suppression. The item of a suppressed set never expires,
        so there are two updates: one for suppressed sets and one for others. An operator may suppress a set, or stop
        suppressing it, between them. Then the first one follows again.

        Args:
            fence: a conditional write of another table (:meth:`Control.fence`).
            statuses: crossings of different sets, at most :data:`MOST_STATUSES`.

        Returns:
            Whether they are recorded. False: the fence was refused.
        """
        pending = [(status, False) for status in statuses]
        while True:
            writes = [fence, *(self._record(*each) for each in pending)]
            refused = all_or_none(self._client, writes)
            if refused is None:
                return True
            if refused[0] is not None:
                return False
            pending = [
                (status, suppressed if item is None else "suppressed" in item)
                for (status, suppressed), item in zip(pending, refused[1:], strict=True)
                if item is None or int(item.get("newest", {"N": "-1"})["N"]) < status[1][-1]
            ]

    def _record(self, status: "Status", suppressed: bool) -> dict[str, Any]:
        """The update that records the crossings of a set that is, or is not, ``suppressed``.

        A set that was forgotten has one crossing. The one before it stays in the item: until the tick readers need it.
        """
        set_key, crossings, expires = status
        check_set_key(set_key)
        values: dict[str, Any] = {
            ":crossings": {"L": [{"N": str(step)} for step in crossings]},
            ":newest": {"N": str(crossings[-1])},
        }
        stored = ":crossings"
        if len(crossings) == 1:
            stored = "list_append(if_not_exists(crossings, :none), :crossings)"
            values[":none"] = {"L": []}
        update = f"SET crossings = {stored}, newest = :newest"
        if not suppressed:
            update += ", #ttl = :expires"
            values[":expires"] = {"N": str(expires)}
        condition = f"{UNLESS_NEWER} AND {IF_SUPPRESSED if suppressed else UNLESS_SUPPRESSED}"
        return self._part(set_key, update, condition, values, **({} if suppressed else TTL))

    def suppress(self, set_key: bytes) -> None:
        """Force a set to read false, even if it crosses."""
        check_set_key(set_key)
        self._update(set_key, "SET suppressed = :true REMOVE #ttl", UNLESS_SUPPRESSED, {":true": {"BOOL": True}}, **TTL)

    def show(self, set_key: bytes, expires: int) -> bool:
        """Stop suppressing a set; False if it was not suppressed. Its item may expire at ``expires`` (Unix s)."""
        values = {":expires": {"N": str(expires)}}
        return self._update(set_key, "SET #ttl = :expires REMOVE suppressed", IF_SUPPRESSED, values, **TTL) is not None

    def horizon_moves(self, slot: int, step: int, visible_from: int) -> list[dict[str, Any]]:
        """The parts of transactions that complete ``step`` for a slot: it becomes visible at the tick ``visible_from``.

        At most one applies; none if the horizon is already at ``step``. What readers see before that tick does not
        change. If the stored horizon becomes visible at the same or a later tick, ``step`` becomes visible with it.
        """
        values = {":step": {"N": str(step)}, ":from": {"N": str(visible_from)}}
        later = (
            "SET earliest = if_not_exists(earlier, :none), earlier = through, earlier_from = visible_from,"
            " through = :step, visible_from = :from"
        )
        same = "SET through = :step, visible_from = if_not_exists(visible_from, :from)"
        key = key_of_slot(slot)
        return [
            self._part(key, later, IF_LATER_TICK, {**values, ":none": {"NULL": True}}),
            self._part(key, same, IF_SAME_TICK, values),
        ]

    def _part(self, key: bytes, update: str, condition: str, values: dict[str, Any], **more: Any) -> dict[str, Any]:
        """An update in a transaction."""
        return {
            "Update": {
                "TableName": self._table,
                "Key": {"set_key": {"B": key}},
                "UpdateExpression": update,
                "ConditionExpression": condition,
                "ExpressionAttributeValues": values,
                **more,
            }
        }

    def read(
        self, set_keys: Iterable[bytes], slots: Iterable[int], *, consistent: bool = False
    ) -> tuple[dict[bytes, tuple[int, ...]], dict[int, Horizon]]:
        """The crossings of the sets and the horizons of the slots that have any.

        A suppressed set has no crossings here, like an unknown one.

        Raises:
            ThrottledError: some keys were not answered; do not read them as false.
        """
        keys = [*set_keys, *(key_of_slot(slot) for slot in slots)]
        found = self._get(keys, SHOWN, consistent=consistent)
        crossings = {key: _shown(item) for key, item in found.items() if len(key) > 1}
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
        return any(map(_is_suppressed, self._get([set_key], "suppressed").values()))

    def released(self) -> tuple[dict[bytes, tuple[int, ...]], dict[int, Horizon]]:
        """Every set's crossings and every slot's horizon, strongly consistent: reads the whole table."""
        items = {item["set_key"]["B"]: item for item in self._scan()}
        crossings = {key: crossings_of(item) for key, item in items.items() if len(key) > 1}
        return crossings, _horizons(items)


def _is_suppressed(item: Item) -> bool:
    return bool(item.get("suppressed", {}).get("BOOL"))


def _shown(item: Item) -> tuple[int, ...]:
    return () if _is_suppressed(item) else crossings_of(item)


def _horizons(items: Mapping[bytes, Item]) -> dict[int, Horizon]:
    """The horizons among items, by slot."""
    return {key[0]: _horizon(item) for key, item in items.items() if len(key) == 1}


def _horizon(item: Item) -> Horizon:
    through, visible_from, earlier, earlier_from, earliest = (
        int(item[name]["N"]) if "N" in item.get(name, {}) else None
        for name in ("through", "visible_from", "earlier", "earlier_from", "earliest")
    )
    return Horizon(through or 0, visible_from or 0, earlier, earlier_from or 0, earliest)
