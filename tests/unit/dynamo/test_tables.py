"""When a table was made, as far as its rows can tell, and the attributes of values."""

from datetime import UTC, datetime
from typing import Any

import numpy as np
import pytest

from kanon.dynamo.tables import attribute, bound, created, item_of

MADE = datetime(2026, 7, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("more", "age"), [({}, MADE.timestamp()), ({"RestoreSummary": {"RestoreInProgress": False}}, 0)]
)
def test_the_age_of_a_table_comes_from_its_description_and_rows_of_a_backup_may_be_older(more: Any, age: float) -> None:
    description: Any = {"CreationDateTime": MADE, **more}
    assert created(description) == age


@pytest.mark.parametrize(
    ("value", "stored"),
    [
        (None, {"NULL": True}),
        ("text", {"S": "text"}),
        (b"\0", {"B": b"\0"}),
        (True, {"BOOL": True}),
        (7, {"N": "7"}),
        (np.int64(7), {"N": "7"}),
        (1.5, {"N": "1.5"}),
        ((1, "a", (b"b",)), {"L": [{"N": "1"}, {"S": "a"}, {"L": [{"B": b"b"}]}]}),
        ([], {"L": []}),
    ],
)
def test_each_kind_of_value_has_its_attribute(value: object, stored: dict[str, object]) -> None:
    assert attribute(value) == stored
    assert item_of(name=value) == {"name": stored}
    assert bound(name=value) == {":name": stored}


@pytest.mark.parametrize("value", [bytearray(b"a key"), memoryview(b"a key"), {"a": 1}, object()])
def test_what_has_no_attribute_is_no_number_either(value: object) -> None:
    with pytest.raises(TypeError):
        attribute(value)
