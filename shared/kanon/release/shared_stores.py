"""A ledger and its secrets in one DynamoDB table, for several operators.

The table has the keys ``kind`` and ``name``, both texts. A line of the ledger is one item, numbered; a secret is one
item. A conditional put adds a line only after the last one that its caller has read. If two operators write at once,
one put fails; that operator reads again and sees the other's spend.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from botocore.exceptions import BotoCoreError, ClientError

from kanon.dynamo.conditions import refused_by
from kanon.release.errors import LedgerError
from kanon.release.stores import SECRET_BYTES, hash_of_last

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient

LINE, SECRET = "line", "secret"
UNLESS_TAKEN = "attribute_not_exists(kind)"


class TableStore:
    """The lines of a ledger as items."""

    def __init__(self, client: "DynamoDBClient", table: str) -> None:
        self._client, self._table = client, table

    def lines(self) -> list[str]:
        """All lines, strongly consistent.

        Raises:
            LedgerError: the table cannot be read, or a line is missing.
        """
        with _one_line_errors(self._table):
            pages = self._client.get_paginator("query").paginate(
                TableName=self._table,
                ConsistentRead=True,
                KeyConditionExpression="kind = :line",
                ExpressionAttributeValues={":line": {"S": LINE}},
            )
            items = [item for page in pages for item in page["Items"]]
        if [item["name"]["S"] for item in items] != [_number(number) for number in range(len(items))]:
            raise LedgerError(f"a line is missing in the table {self._table}: it must not be written by hand")
        return [item["text"]["S"] for item in items]

    def append(self, line: str, after: str) -> bool:
        """Add a line behind the one with the hash ``after``.

        A put whose answer was lost is retried by the client and finds its own line: the line is added.

        Raises:
            LedgerError: the table cannot be written.
        """
        lines = self.lines()
        if hash_of_last(lines) != after:
            return False
        item = {"kind": {"S": LINE}, "name": {"S": _number(len(lines))}, "text": {"S": line}}
        with _one_line_errors(self._table):
            standing = refused_by(
                self._client.put_item, TableName=self._table, Item=item, ConditionExpression=UNLESS_TAKEN
            )
        return standing is None or standing.get("text") == {"S": line}


class TableSecrets:
    """The secrets as items. A reader of these items can remove the noise of a release."""

    def __init__(self, client: "DynamoDBClient", table: str) -> None:
        self._client, self._table = client, table

    def find(self, name: str) -> bytes | None:
        """The secret of that name, strongly consistent.

        Raises:
            LedgerError: the table cannot be read, or the secret is damaged.
        """
        with _one_line_errors(self._table):
            answer = self._client.get_item(TableName=self._table, Key=_secret_key(name), ConsistentRead=True)
        if "Item" not in answer:
            return None
        secret = bytes(answer["Item"].get("secret", {}).get("B", b""))
        if len(secret) != SECRET_BYTES:
            raise LedgerError(f"the secret {name} is damaged: it must not be written by hand")
        return secret

    def keep(self, name: str, secret: bytes) -> None:
        """Keep a secret unless the name has one."""
        item = {**_secret_key(name), "secret": {"B": secret}}
        with _one_line_errors(self._table):
            refused_by(self._client.put_item, TableName=self._table, Item=item, ConditionExpression=UNLESS_TAKEN)

    def destroy(self, name: str) -> None:
        """Remove a secret, if it exists. A backup of the table would still hold it, so make no backups."""
        with _one_line_errors(self._table):
            self._client.delete_item(TableName=self._table, Key=_secret_key(name))


@contextmanager
def _one_line_errors(table: str) -> Iterator[None]:
    try:
        yield
    except ClientError as error:
        code = error.response["Error"]["Code"]
        raise LedgerError(f"the table {table} cannot be used as a ledger ({code}): see the guide to release") from error
    except BotoCoreError as error:
        raise LedgerError(
            f"the table {table} cannot be reached ({type(error).__name__}): check region and credentials"
        ) from error


def _number(number: int) -> str:
    return f"{number:012}"


def _secret_key(name: str) -> dict[str, dict[str, str]]:
    return {"kind": {"S": SECRET}, "name": {"S": name}}
