"""Complete BatchWriteItem and BatchGetItem: chunks, no duplicate keys, retries of unprocessed items.

DynamoDB refuses a batch with two requests for one key, takes at most 25 writes or 100 keys per call, and may
leave any of them unprocessed.
"""

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar

from kanon import clock
from kanon.dynamo.limits import check_item
from kanon.errors import ThrottledError

if TYPE_CHECKING:
    from botocore.exceptions import ClientError
    from mypy_boto3_dynamodb import DynamoDBClient

T = TypeVar("T")
Item = dict[str, Any]

WRITES_A_CALL = 25
KEYS_A_CALL = 100
ATTEMPTS = 6
ATTEMPTS_OF_THE_CLIENT = 3
"""The AWS client has already retried a call that was throttled as a whole (``kanon.aws``)."""

THROTTLES = frozenset(
    {
        "ProvisionedThroughputExceededException",
        "ThrottlingException",
        "RequestLimitExceeded",
        "LimitExceededException",
        "InternalServerError",
        "ServiceUnavailable",
    }
)


def is_throttle(error: "ClientError") -> bool:
    """Whether the same call may succeed later."""
    return error.response["Error"]["Code"] in THROTTLES


def put_all(client: "DynamoDBClient", table: str, items: Iterable[Item], key_names: Sequence[str]) -> list[Item]:
    """Put every item without a condition. Of several items with the same key, the last one is put.

    Returns:
        The items that were not stored after all retries; empty if everything is stored.
    """
    distinct = {tuple(item[name]["B"] for name in key_names): item for item in items}
    for item in distinct.values():
        check_item(item, key_names)

    def send(requests: Sequence[Any]) -> list[Any]:
        answer = client.batch_write_item(RequestItems={table: requests})
        return answer.get("UnprocessedItems", {}).get(table, [])

    left = drain([{"PutRequest": {"Item": item}} for item in distinct.values()], WRITES_A_CALL, send)
    return [request["PutRequest"]["Item"] for request in left]


def get_all(
    client: "DynamoDBClient", table: str, keys: Iterable[bytes], key_name: str, attributes: str, *, consistent: bool,
    partition: Item | None = None,
) -> dict[bytes, Item]:  # fmt: skip
    """Get the ``attributes`` (a projection expression) of the items with these keys, by key. Missing ones are left out.

    ``partition`` is the other attribute of the key, if it has two.

    Raises:
        ThrottledError: some keys were not answered after all retries; do not treat their items as absent.
    """
    found: dict[bytes, Item] = {}

    def ask(wanted: Sequence[Any]) -> list[Any]:
        answer = client.batch_get_item(
            RequestItems={
                table: {
                    "Keys": wanted,
                    "ConsistentRead": consistent,
                    "ProjectionExpression": f"{key_name}, {attributes}",
                }
            }
        )
        unprocessed = answer.get("UnprocessedKeys", {})
        left = list(unprocessed[table]["Keys"]) if table in unprocessed else []
        if len(left) < len(wanted):  # then the answer must contain the table
            found.update((item[key_name]["B"], item) for item in answer["Responses"][table])
        return left

    if drain([{**(partition or {}), key_name: {"B": key}} for key in dict.fromkeys(keys)], KEYS_A_CALL, ask):
        raise ThrottledError("a table did not answer for every key; try again")
    return found


def drain(requests: list[Any], size: int, send: Callable[[Sequence[Any]], list[Any]]) -> list[Any]:
    """Send all requests, ``size`` per call, in rounds with a pause between them. Returns what is left at the end.

    Each round sends every call once, so the number of pauses does not grow with the number of calls.
    """
    from botocore.exceptions import ClientError

    attempt = 0
    while requests and attempt < ATTEMPTS:
        if attempt:
            back_off(attempt - 1)
        left: list[Any] = []
        for start in range(0, len(requests), size):
            try:
                left += send(requests[start : start + size])
            except ClientError as error:
                if not is_throttle(error):
                    raise
                left += requests[start:]  # the calls after a throttled one would be throttled too
                attempt += ATTEMPTS_OF_THE_CLIENT - 1
                break
        requests = left
        attempt += 1
    return requests


def back_off(attempt: int) -> None:
    """Wait before the next attempt: exponential with full jitter, at most 0.8 s, so that a 10 s handler can finish."""
    clock.sleep(random.uniform(0, min(0.8, 0.05 * 2**attempt)))  # noqa: S311, guards no secret


def chunks(items: Iterable[T], size: int) -> Iterator[Sequence[T]]:
    """Split ``items`` into chunks of at most ``size``."""
    iterator = iter(items)
    while chunk := list(islice(iterator, size)):
        yield chunk
