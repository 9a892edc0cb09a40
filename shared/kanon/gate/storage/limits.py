"""What DynamoDB refuses and emulators accept, refused before it is sent.

Source: Amazon DynamoDB Developer Guide, "Service, account, and table quotas".
"""

from collections.abc import Sequence
from typing import Any

from kanon.gate.storage.units import item_size

SET_KEY_BYTES = 32
MOST_ITEM_BYTES = 400 * 1024
MOST_EXPRESSION_BYTES = 4096


def check_set_key(set_key: bytes) -> None:
    """A set key is never empty, and never as short as the name of a slot's horizon.

    Raises:
        ValueError: it has another length.
    """
    if len(set_key) != SET_KEY_BYTES:
        raise ValueError(f"a set key is {SET_KEY_BYTES} bytes, not {len(set_key)}")


def check_item(item: dict[str, Any], key_names: Sequence[str]) -> None:
    """An item that a table takes.

    Raises:
        ValueError: a key attribute is empty, or the item is too large.
    """
    for name in key_names:
        if not item[name]["B"]:
            raise ValueError(f"the key attribute {name} is empty; DynamoDB takes no empty keys")
    if (size := item_size(item)) > MOST_ITEM_BYTES:
        raise ValueError(f"an item of {size} bytes is larger than DynamoDB's {MOST_ITEM_BYTES}")
