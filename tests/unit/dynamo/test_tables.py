"""When a table was made, as far as its rows can tell."""

from datetime import UTC, datetime
from typing import Any

from kanon.dynamo.tables import created

MADE = datetime(2026, 7, 1, 12, tzinfo=UTC)


def test_the_age_of_a_table_comes_from_its_description() -> None:
    description: Any = {"CreationDateTime": MADE}
    assert created(description) == MADE.timestamp()


def test_the_rows_of_a_table_made_from_a_backup_may_be_of_any_age() -> None:
    description: Any = {"CreationDateTime": MADE, "RestoreSummary": {"RestoreInProgress": False}}
    assert created(description) == 0.0
