"""TransactWriteItems: all writes or none; refusals are values, not exceptions."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from kanon.dynamo.batches import ATTEMPTS, Item, back_off, is_throttle
from kanon.errors import ThrottledError

if TYPE_CHECKING:
    from botocore.exceptions import ClientError
    from mypy_boto3_dynamodb import DynamoDBClient

MOST_ITEMS = 100
CONDITION_FAILED = "ConditionalCheckFailed"
PASSING = frozenset(
    {
        "ProvisionedThroughputExceeded",
        "ThrottlingError",
        "RequestLimitExceeded",
        "TransactionConflict",
        "InternalServerError",
    }
)
"""These say nothing about a condition: the same transaction may succeed later."""


def all_or_none(
    client: "DynamoDBClient", writes: Sequence[dict[str, Any]], attempts: int = ATTEMPTS
) -> list[Item | None] | None:
    """Write all items, or none.

    A transaction that conflicts with another one, lacks throughput or meets an internal error is retried. Do not rely
    on its token: after a lost answer, only the conditions show whether the attempt was written.

    Args:
        client: a DynamoDB client.
        writes: ``{"Put": ...}``, ``{"Update": ...}``, ``{"Delete": ...}`` or ``{"ConditionCheck": ...}``, at most 100,
            each with a condition. Each item is named once. DynamoDB cancels a transaction that names an item of
            another one in progress, also if both only check it: many transactions must not name one item.
        attempts: how often it is sent at most.

    Returns:
        None if everything is written. Otherwise, for each write, the stored item on which its condition failed (``{}``
        if there is none), or None if its condition held.

    Raises:
        ThrottledError: it was not written after all attempts. Do not assume that an earlier attempt was not.
    """
    from botocore.exceptions import ClientError

    if len(writes) > MOST_ITEMS:
        raise ValueError(f"a transaction holds at most {MOST_ITEMS} items, not {len(writes)}")
    asked = [
        {kind: {**write, "ReturnValuesOnConditionCheckFailure": "ALL_OLD"} for kind, write in one.items()}
        for one in writes
    ]
    for attempt in range(attempts):
        if attempt:
            back_off(attempt - 1)
        try:
            client.transact_write_items(TransactItems=asked)  # type: ignore[arg-type]
        except ClientError as error:
            reasons = _reasons(error)
            if any(reason["Code"] in PASSING for reason in reasons) or (not reasons and is_throttle(error)):
                continue
            if not any(reason["Code"] == CONDITION_FAILED for reason in reasons):
                raise
            return [dict(r.get("Item", {})) if r["Code"] == CONDITION_FAILED else None for r in reasons]
        return None
    raise ThrottledError("a transaction met others, or too little throughput, in every attempt; repeat it")


def _reasons(error: "ClientError") -> list[dict[str, Any]]:
    response: Any = error.response  # its declared type has no CancellationReasons
    return list(response.get("CancellationReasons", ()))
