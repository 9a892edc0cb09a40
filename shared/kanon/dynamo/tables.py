"""The ids of tables. A table that was restored, or deleted and created again, has another id under the same name."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient


def table_ids(client: "DynamoDBClient", tables: Mapping[str, str]) -> dict[str, str]:
    """The id of each table, under the key of its name in ``tables``.

    DynamoDB gives every table a ``TableId`` (a UUID) that is never used again. An emulator may give none; then the name
    is the id, so a table that is replaced under the same name is not noticed.
    """
    described = {name: client.describe_table(TableName=table)["Table"] for name, table in tables.items()}
    return {name: table.get("TableId", table["TableName"]) for name, table in described.items()}
