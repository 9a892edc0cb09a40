"""Items that DynamoDB would refuse are refused before they are sent."""

import pytest

from kanon.dynamo.limits import MOST_ITEM_BYTES, check_item
from kanon.dynamo.units import item_size
from kanon.gate.slots import Layout
from kanon.gate.storage.aws import statuses, step_log


def test_an_item_of_400_kilobytes_is_the_largest() -> None:
    item = {"key": {"B": b"k"}, "v": {"B": bytes(400 * 1024 - 5)}}
    assert item_size(item) == 400 * 1024
    check_item(item, ["key"])
    item["v"] = {"B": bytes(400 * 1024 - 4)}
    with pytest.raises(ValueError, match=rf"^an item of 409601 bytes exceeds DynamoDB's limit of {MOST_ITEM_BYTES}$"):
        check_item(item, ["key"])


def test_an_empty_key_is_refused_with_the_name_of_its_attribute() -> None:
    item = {"set_key": {"B": b"k"}, "other": {"B": b""}}
    check_item(item, ["set_key"])
    with pytest.raises(ValueError, match=r"^the key attribute other is empty; DynamoDB accepts no empty keys$"):
        check_item(item, ["set_key", "other"])


@pytest.mark.parametrize("key", [b"", b"\x00", bytes(31), bytes(33)])
def test_a_set_key_of_another_length_never_reaches_a_table(key: bytes) -> None:
    message = f"^a set key is 32 bytes, not {len(key)}$"
    with pytest.raises(ValueError, match=message):
        step_log.pack(step_log.Row(5, key, 1, "a", 9), Layout(1, 0))
    with pytest.raises(ValueError, match=message):
        statuses.Statuses(None, "statuses").write({}, [(key, (5,), 9)])  # type: ignore[arg-type]
