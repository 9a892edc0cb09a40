"""Conditional writes of many items in one call: BatchExecuteStatement (PartiQL).

BatchWriteItem has no conditions, and a transaction costs twice the units. A call has at most 25 statements, each of one
item. Each succeeds or fails alone, and the response has the error of each. Source: Amazon DynamoDB Developer Guide,
"PartiQL - a SQL-compatible query language for Amazon DynamoDB".
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from kanon.dynamo.batches import Item, drain

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient

Statement = dict[str, Any]

STATEMENTS_A_CALL = 25

REFUSED = frozenset({"ConditionalCheckFailed", "DuplicateItem"})
"""Nothing was written: the item is not as the statement expects."""
PASSING = frozenset(
    {
        "ProvisionedThroughputExceeded",
        "ThrottlingError",
        "RequestLimitExceeded",
        "TransactionConflict",
        "InternalServerError",
    }
)
"""These say nothing about a condition: the same statement or transaction may succeed later."""


def insert(table: str, item: Item) -> Statement:
    """Put an item, unless there is one with its key."""
    return {"Statement": _insert(table, tuple(item)), "Parameters": list(item.values())}


def replace(table: str, item: Item, key_name: str, absent: Sequence[str], expected: Item) -> Statement:
    """Put an item in the place of one with its key that has the ``expected`` attributes.

    An UPDATE keeps the attributes that it does not name, so ``absent`` ones are removed. It creates no item.
    """
    names = tuple(name for name in item if name != key_name)
    return {
        "Statement": _update(table, names, tuple(absent), (key_name, *expected)),
        "Parameters": [*(item[name] for name in names), item[key_name], *expected.values()],
    }


@lru_cache
def _insert(table: str, names: tuple[str, ...]) -> str:
    values = ", ".join(f"'{name}': ?" for name in names)
    return f'INSERT INTO "{table}" VALUE {{{values}}}'


@lru_cache
def _update(table: str, changed: tuple[str, ...], removed: tuple[str, ...], compared: tuple[str, ...]) -> str:
    changes = [f'SET "{name}"=?' for name in changed] + [f'REMOVE "{name}"' for name in removed]
    conditions = " AND ".join(f'"{name}"=?' for name in compared)
    return f'UPDATE "{table}" {" ".join(changes)} WHERE {conditions}'


def execute_all(client: "DynamoDBClient", statements: Sequence[Statement]) -> tuple[list[int], list[int]]:
    """Execute statements that write different items; retry those whose error may pass.

    Returns:
        The numbers of the statements that were refused by their conditions, and of those not executed after all
        retries.

    Raises:
        ClientError: a statement failed with a permanent error.
    """
    refused: list[int] = []

    def send(numbers: Sequence[int]) -> list[int]:
        answer = client.batch_execute_statement(Statements=[statements[n] for n in numbers])  # type: ignore[misc]
        left: list[int] = []
        for n, response in zip(numbers, answer["Responses"], strict=True):
            error: Mapping[str, Any] | None = response.get("Error")
            if error is None:
                continue
            if error["Code"] in REFUSED:
                refused.append(n)
            elif error["Code"] in PASSING:
                left.append(n)
            else:
                from botocore.exceptions import ClientError

                raise ClientError({"Error": dict(error)}, "BatchExecuteStatement")  # type: ignore[typeddict-item]
        return left

    left = drain(list(range(len(statements))), STATEMENTS_A_CALL, send)
    return refused, left
