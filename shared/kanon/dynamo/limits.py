"""Limits of DynamoDB that emulators do not enforce, checked before an item is sent.

Source: Amazon DynamoDB Developer Guide, "Service, account, and table quotas".
"""

from collections.abc import Sequence
from typing import Any

from kanon.dynamo.units import item_size

MOST_ITEM_BYTES = 400 * 1024
MOST_EXPRESSION_BYTES = 4096


def check_item(item: dict[str, Any], key_names: Sequence[str]) -> None:
    """Check that DynamoDB accepts an item.

    Raises:
        ValueError: a key attribute is empty, or the item is too large.
    """
    for name in key_names:
        if not item[name]["B"]:
            raise ValueError(f"the key attribute {name} is empty; DynamoDB accepts no empty keys")
    if (size := item_size(item)) > MOST_ITEM_BYTES:
        raise ValueError(f"an item of {size} bytes exceeds DynamoDB's limit of {MOST_ITEM_BYTES}")
