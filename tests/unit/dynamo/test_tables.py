"""When a table was made, as far as its rows can tell."""

from datetime import UTC, datetime
from typing import Any

import pytest

from kanon.dynamo.tables import created

MADE = datetime(2026, 7, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("more", "age"), [({}, MADE.timestamp()), ({"RestoreSummary": {"RestoreInProgress": False}}, 0)]
)
def test_the_age_of_a_table_comes_from_its_description_and_rows_of_a_backup_may_be_older(more: Any, age: float) -> None:
    description: Any = {"CreationDateTime": MADE, **more}
    assert created(description) == age
