"""Statuses: the crossings of each set, and per slot the horizon up to which its answers are complete."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from kanon.dynamo.batches import Item
from kanon.dynamo.conditions import refused_by
from kanon.gate.mechanism.tape import check_set_key
from kanon.gate.storage.slot_rows import SetsAndSlots, crossings_of, key_of_slot

UNLESS_NEWER = "(attribute_not_exists(newest) OR newest < :newest)"
UNLESS_SUPPRESSED = "attribute_not_exists(suppressed)"
IF_SUPPRESSED = "attribute_exists(suppressed)"
IF_LATER_TICK = "through < :step AND visible_from < :from"
IF_STAMPED = "stamped >= :least"
UNLESS_STAMPED = "attribute_not_exists(stamped) OR stamped < :step"
IF_SAME_TICK = "attribute_not_exists(through) OR (through < :step AND visible_from >= :from)"

TTL = {"ExpressionAttributeNames": {"#ttl": "ttl"}}
"""A part of each call that changes the expiry: "ttl" is a reserved word."""
SHOWN = "crossings, suppressed, through, visible_from, earlier, earlier_from, earliest"
"""The attributes that a query reads: the first two from a set's item, the others from a slot's."""


@dataclass(frozen=True)
class Horizon:
    """The visible step of a slot over time.

    It is ``earliest`` until ``earlier_from`` (Unix s), ``earlier`` from then until ``visible_from`` (Unix s),
    and ``through`` from then on. Two steps are not enough: when a step is completed near the tick of the step
    before it, some readers have passed that tick and others have not.
    """

    through: int
    visible_from: int
    earlier: int | None = None
    earlier_from: int = 0
    earliest: int | None = None

    def at(self, now: float) -> int | None:
        """The visible step at ``now``, None before the first one."""
        if now >= self.visible_from:
            return self.through
        return self.earlier if now >= self.earlier_from else self.earliest


class Statuses(SetsAndSlots):
    """The table that queries read."""

    def write(self, set_key: bytes, crossings: tuple[int, ...], expires: int) -> None:
        """Record a crossing (the last of ``crossings``), unless it or a later one is already recorded.

        This is an update, because a put would remove a suppression. The item of a suppressed set never expires, so
        there are two updates: one for suppressed sets and one for others. An operator may suppress the set, or stop
        suppressing it, between them. Then the first one follows again:

            evaluate   update unless suppressed ---> refused
            operator                                          unsuppress ---> stored
            evaluate                                                           update if suppressed ---> refused
            evaluate   update unless suppressed ---> stored
        """
        check_set_key(set_key)
        suppressed = False
        while (item := self._record(set_key, crossings, expires, suppressed=suppressed)) is not None:
            if int(item.get("newest", {"N": "-1"})["N"]) >= crossings[-1]:
                return
            suppressed = "suppressed" in item

    def _record(
        self, set_key: bytes, crossings: tuple[int, ...], expires: int, *, suppressed: bool
    ) -> dict[str, Any] | None:
        """Record crossings if the set is, or is not, ``suppressed``. Returns None, or the item on which it failed."""
        update = "SET crossings = :crossings, newest = :newest"
        values: dict[str, Any] = {
            ":crossings": {"L": [{"N": str(step)} for step in crossings]},
            ":newest": {"N": str(crossings[-1])},
        }
        if not suppressed:
            update += ", #ttl = :expires"
            values[":expires"] = {"N": str(expires)}
        return refused_by(
            self._client.update_item,
            TableName=self._table,
            Key={"set_key": {"B": set_key}},
            UpdateExpression=update,
            ConditionExpression=f"{UNLESS_NEWER} AND {IF_SUPPRESSED if suppressed else UNLESS_SUPPRESSED}",
            ExpressionAttributeValues=values,
            **({} if suppressed else TTL),
        )

    def suppress(self, set_key: bytes) -> None:
        """Force a set to read false, even if it crosses."""
        check_set_key(set_key)
        self._update(set_key, "SET suppressed = :true REMOVE #ttl", UNLESS_SUPPRESSED, {":true": {"BOOL": True}}, **TTL)

    def show(self, set_key: bytes, expires: int) -> bool:
        """Stop suppressing a set; False if it was not suppressed. Its item may expire at ``expires`` (Unix s)."""
        values = {":expires": {"N": str(expires)}}
        return self._update(set_key, "SET #ttl = :expires REMOVE suppressed", IF_SUPPRESSED, values, **TTL) is not None

    def move_horizon(self, slot: int, step: int, visible_from: int) -> None:
        """Complete ``step`` for a slot: it becomes visible at the tick ``visible_from``.

        What readers see before that tick does not change. A horizon already at ``step`` does not change. If the
        stored horizon becomes visible at the same or a later tick, ``step`` becomes visible with it.
        """
        values = {":step": {"N": str(step)}, ":from": {"N": str(visible_from)}}
        shifted = self._update(
            key_of_slot(slot),
            "SET earliest = if_not_exists(earlier, :none), earlier = through, earlier_from = visible_from,"
            " through = :step, visible_from = :from, stamped = :step",
            IF_LATER_TICK,
            {**values, ":none": {"NULL": True}},
        )
        if shifted is None:
            self._update(
                key_of_slot(slot),
                "SET through = :step, visible_from = if_not_exists(visible_from, :from), stamped = :step",
                IF_SAME_TICK,
                values,
            )

    def stamp(self, slot: int, step: int) -> None:
        """Record that the crossings of a slot are stored through ``step``, unless a later step is recorded.

        An operator's command calls it. Evaluation records the step together with the horizon.
        """
        self._update(key_of_slot(slot), "SET stamped = :step", UNLESS_STAMPED, {":step": {"N": str(step)}})

    def is_stamped(self, slot: int, least: int) -> bool:
        """Whether the crossings of a slot are stored through step ``least`` or a later one.

        This is an update without a change, because evaluation may write this table and not read it.
        """
        same = self._update(key_of_slot(slot), "SET stamped = stamped", IF_STAMPED, {":least": {"N": str(least)}})
        return same is not None

    def stamps(self, slots: Iterable[int]) -> dict[int, int]:
        """The step through which the crossings of each slot are stored, strongly consistent.

        Raises:
            ThrottledError: some slots were not answered.
        """
        return self._stamps(slots, "stamped")

    def read(
        self, set_keys: Iterable[bytes], slots: Iterable[int]
    ) -> tuple[dict[bytes, tuple[int, ...]], dict[int, Horizon]]:
        """The crossings of the sets and the horizons of the slots that have any.

        A suppressed set has no crossings here, like an unknown one.

        Raises:
            ThrottledError: some keys were not answered; do not read them as false.
        """
        keys = [*set_keys, *(key_of_slot(slot) for slot in slots)]
        found = self._get(keys, SHOWN, consistent=False)
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
    """The horizons among items, by slot. A slot that an operator's command has stamped may have none yet."""
    return {key[0]: _horizon(item) for key, item in items.items() if len(key) == 1 and "through" in item}


def _horizon(item: Item) -> Horizon:
    through, visible_from, earlier, earlier_from, earliest = (
        int(item[name]["N"]) if "N" in item.get(name, {}) else None
        for name in ("through", "visible_from", "earlier", "earlier_from", "earliest")
    )
    return Horizon(through or 0, visible_from or 0, earlier, earlier_from or 0, earliest)
