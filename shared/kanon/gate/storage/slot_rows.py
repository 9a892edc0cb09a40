"""Rows of slots beside those of sets: the key is the number of the slot in one byte, and a set's key has 32."""

from collections.abc import Iterable

from kanon.dynamo.tables import Table


def key_of_slot(slot: int) -> bytes:
    """The key of a slot's row."""
    return bytes([slot])


class SetsAndSlots(Table):
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
