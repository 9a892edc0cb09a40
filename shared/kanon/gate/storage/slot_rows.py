"""Rows of slots beside those of sets: the key is the number of the slot in one byte, and a set's key has 32."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from kanon.dynamo.batches import get_all
from kanon.errors import ThrottledError

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient


def key_of_slot(slot: int) -> bytes:
    """The key of a slot's row."""
    return bytes([slot])


def read_stamps(client: "DynamoDBClient", table: str, slots: Iterable[int], attribute: str) -> dict[int, int]:
    """The step in ``attribute`` of the row of each slot that has it, strongly consistent.

    Raises:
        ThrottledError: some slots were not answered.
    """
    found, unanswered = get_all(client, table, map(key_of_slot, slots), "set_key", attribute, consistent=True)
    if unanswered:
        raise ThrottledError("a table did not answer for every slot; run again")
    return {key[0]: int(item[attribute]["N"]) for key, item in found.items() if attribute in item}
