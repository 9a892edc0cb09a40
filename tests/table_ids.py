"""Ids of tables on an engine that gives none."""

from typing import Any
from uuid import uuid4

import pytest
from moto.dynamodb.models.table import Table


def give_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give every table an id of its own, as DynamoDB does and moto does not."""
    describe = Table.describe

    def with_id(table: Any, *args: Any, **options: Any) -> Any:
        described = describe(table, *args, **options)
        inner = described.get("Table", described.get("TableDescription", described))
        inner["TableId"] = table.__dict__.setdefault("an_id", str(uuid4()))
        return described

    monkeypatch.setattr(Table, "describe", with_id)
