"""Ids and ages of tables. A table that was restored, or deleted and created again, has another id under its name."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient
    from mypy_boto3_dynamodb.type_defs import TableDescriptionTypeDef


def table_ids(client: "DynamoDBClient", tables: Mapping[str, str]) -> dict[str, str]:
    """The id of each table, by the caller's names; ``tables`` has the physical names."""
    return ids_of(described(client, tables))


def described(client: "DynamoDBClient", tables: Mapping[str, str]) -> dict[str, "TableDescriptionTypeDef"]:
    """DynamoDB's description of each table."""
    return {name: client.describe_table(TableName=table)["Table"] for name, table in tables.items()}


def ids_of(tables: Mapping[str, "TableDescriptionTypeDef"]) -> dict[str, str]:
    """The id of each described table.

    DynamoDB gives every table a ``TableId`` (a UUID), and no table the id of another one. An emulator may give none.
    There only the name identifies a table, and a new table with an old name is not noticed.
    """
    return {name: table.get("TableId", table["TableName"]) for name, table in tables.items()}


def restored(tables: Mapping[str, "TableDescriptionTypeDef"]) -> list[str]:
    """Which of the described tables were made from a backup. Emulators do not say."""
    return sorted(name for name, table in tables.items() if "RestoreSummary" in table)


def created(table: "TableDescriptionTypeDef") -> float:
    """When a table was made, Unix seconds; 0 if it was made from a backup, because its rows are older."""
    return 0.0 if "RestoreSummary" in table else table["CreationDateTime"].timestamp()
