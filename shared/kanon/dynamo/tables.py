"""The base of tables with one key attribute, and the ids and ages of tables."""

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from kanon.dynamo.batches import Item, get_all
from kanon.dynamo.conditions import unless_refused

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient
    from mypy_boto3_dynamodb.type_defs import TableDescriptionTypeDef


class KeyedTable:
    """A table whose primary key is one attribute. One whose key is two replaces ``_key``.

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

    def _key(self, key: Any) -> Item:
        return {self.key_name: {self.key_type: key}}

    def _item(self, key: Any) -> Item:
        """The item with this key, strongly consistent; ``{}`` if there is none."""
        answer = self._client.get_item(TableName=self._table, Key=self._key(key), ConsistentRead=True)
        return dict(answer.get("Item", {}))

    def _scan(self, **more: Any) -> Iterator[Item]:
        """Every item, strongly consistent."""
        pages = self._client.get_paginator("scan").paginate(TableName=self._table, ConsistentRead=True, **more)
        return (item for page in pages for item in page["Items"])

    def _update(
        self, key: Any, update: str, condition: str, values: dict[str, Any], **more: Any
    ) -> Mapping[str, Any] | None:
        """The answer of a conditional update; None if its condition failed."""
        return unless_refused(self._client.update_item, **self._conditional(key, update, condition, values), **more)

    def _set(self, key: Any, update: str, **values: Any) -> Mapping[str, Any]:
        """The answer of an unconditional update, with the new values."""
        return self._client.update_item(
            TableName=self._table,
            Key=self._key(key),
            UpdateExpression=update,
            ExpressionAttributeValues=bound(**values),
            ReturnValues="UPDATED_NEW",
        )

    def _part(self, key: Any, update: str, condition: str, values: dict[str, Any], **more: Any) -> dict[str, Any]:
        """A conditional update in a transaction."""
        return {"Update": {**self._conditional(key, update, condition, values), **more}}

    def _conditional(self, key: Any, update: str, condition: str, values: dict[str, Any]) -> dict[str, Any]:
        return {
            "TableName": self._table,
            "Key": self._key(key),
            "UpdateExpression": update,
            "ConditionExpression": condition,
            "ExpressionAttributeValues": values,
        }


def attribute(value: Any) -> dict[str, Any]:
    """A text, bytes, a bool, a number, None or a sequence of such values as the value of an attribute."""
    match value:
        case None:
            return {"NULL": True}
        case str():
            return {"S": value}
        case bytes():
            return {"B": value}
        case bool():
            return {"BOOL": value}
        case list() | tuple():
            return {"L": [attribute(each) for each in value]}
    return {"N": str(+value)}  # TypeError: no number


def item_of(**values: Any) -> Item:
    """An item with these attributes."""
    return {name: attribute(value) for name, value in values.items()}


def bound(**values: Any) -> Item:
    """The values of an expression, which has a colon before each name."""
    return {f":{name}": attribute(value) for name, value in values.items()}


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
