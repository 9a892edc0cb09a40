"""What the items of Members and Statuses share.

Rows of slots lie beside those of sets: the key is the number of the slot in one byte, and a set's key has 32.
"""

from collections.abc import Iterable

from kanon.dynamo.batches import Item
from kanon.dynamo.tables import KeyedTable


def key_of_slot(slot: int) -> bytes:
    """The key of a slot's row."""
    return bytes([slot])


def crossings_of(item: Item) -> tuple[int, ...]:
    """The crossings in the item of a set, oldest first."""
    return tuple(int(step["N"]) for step in item.get("crossings", {"L": []})["L"])


class SetsAndSlots(KeyedTable):
    """A table with a row for each set, and one for each slot."""

    key_name = "set_key"
    key_type = "B"

    def _stamps(self, slots: Iterable[int], attribute: str) -> dict[int, int]:
        """The step in ``attribute`` of the row of each slot that has it, strongly consistent.

        Raises:
            ThrottledError: some slots were not answered.
        """
        found = self._get(map(key_of_slot, slots), attribute)
        return {key[0]: int(item[attribute]["N"]) for key, item in found.items() if attribute in item}
