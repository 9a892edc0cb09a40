"""The base of tables with one key attribute, and the ids and ages of tables."""

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from kanon.dynamo.batches import Item, get_all
from kanon.dynamo.conditions import unless_refused

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient
    from mypy_boto3_dynamodb.type_defs import TableDescriptionTypeDef


class KeyedTable:
    """A table whose primary key is one attribute.

    Attributes:
        key_name: the name of this attribute.
        key_type: its DynamoDB type.
    """

    key_name: str
    key_type: str

    def __init__(self, client: "DynamoDBClient", table: str) -> None:
        self._client = client
        self._table = table

    def _get(self, keys: Iterable[bytes], attributes: str, *, consistent: bool = True) -> dict[bytes, Item]:
        """:func:`get_all` of this table."""
        return get_all(self._client, self._table, keys, self.key_name, attributes, consistent=consistent)

    def _item(self, key: Any) -> Item:
        """The item with this key, strongly consistent; ``{}`` if there is none."""
        key_of_item = {self.key_name: {self.key_type: key}}
        answer = self._client.get_item(TableName=self._table, Key=key_of_item, ConsistentRead=True)
        return dict(answer.get("Item", {}))

    def _scan(self, **more: Any) -> Iterator[Item]:
        """Every item, strongly consistent."""
        pages = self._client.get_paginator("scan").paginate(TableName=self._table, ConsistentRead=True, **more)
        return (item for page in pages for item in page["Items"])

    def _update(
        self, key: Any, update: str, condition: str, values: dict[str, Any], **more: Any
    ) -> Mapping[str, Any] | None:
        """The answer of a conditional update; None if its condition failed."""
        return unless_refused(
            self._client.update_item,
            TableName=self._table,
            Key={self.key_name: {self.key_type: key}},
            UpdateExpression=update,
            ConditionExpression=condition,
            ExpressionAttributeValues=values,
            **more,
        )


def attribute(value: int | str | None) -> dict[str, Any]:
    """A number or a text as the value of an attribute; None is null."""
    if value is None:
        return {"NULL": True}
    return {"S": value} if isinstance(value, str) else {"N": str(value)}


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


def key_of(table: "TableDescriptionTypeDef") -> str | None:
    """The KMS key of a table; None if it has none of its own. Emulators do not say."""
    return table.get("SSEDescription", {}).get("KMSMasterKeyArn")


def created(table: "TableDescriptionTypeDef") -> float:
    """When a table was made, Unix seconds; 0 if it was made from a backup, because its rows are older."""
    return 0.0 if "RestoreSummary" in table else table["CreationDateTime"].timestamp()
