"""Which table is behind a name: a table that was restored, or deleted and made again, has another id."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient


def table_ids(client: "DynamoDBClient", tables: Mapping[str, str]) -> dict[str, str]:
    """The id of each table, by what the caller calls it; ``tables`` holds their names.

    DynamoDB gives every table a ``TableId`` (a UUID) and never the same one again. An emulator may give none; its
    tables are told apart by their names alone, so a table replaced there under the same name is not noticed.
    """
    described = {name: client.describe_table(TableName=table)["Table"] for name, table in tables.items()}
    return {name: table.get("TableId", table["TableName"]) for name, table in described.items()}
