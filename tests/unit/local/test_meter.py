"""The meter counts every unit, also if several threads write at once."""

import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import boto3
import pytest
from botocore.awsrequest import AWSResponse
from botocore.compat import HTTPHeaders
from botocore.config import Config
from botocore.exceptions import ClientError

from kanon.dynamo.units import item_size
from kanon.local.meter import Meter

ITEM: dict[str, Any] = {"name": {"S": "n" * 1500}}
"""Two write units."""


KEYS = {name: {"name": {"S": name}} for name in ("updated", "deleted", "checked")}
WRITES: list[Any] = [
    {"Put": {"TableName": "t", "Item": ITEM}},
    {"Update": {"TableName": "t", "Key": KEYS["updated"], "UpdateExpression": "REMOVE a"}},
    {"Delete": {"TableName": "t", "Key": KEYS["deleted"]}},
    {"ConditionCheck": {"TableName": "t", "Key": KEYS["checked"], "ConditionExpression": "attribute_exists(a)"}},
]


class Table:
    """A reader of a table that holds items of these sizes, bytes, first before a call and then after it."""

    def __init__(self, *sizes: dict[str, int]) -> None:
        self.sizes = iter(sizes)

    def batch_get_item(self, RequestItems: dict[str, Any]) -> Any:  # noqa: N803, boto3's name
        ((table, asked),) = RequestItems.items()
        sizes = next(self.sizes)
        keys = [key for key in asked["Keys"] if key["name"]["S"] in sizes]
        return {"Responses": {table: [self.item(key, sizes[key["name"]["S"]]) for key in reversed(keys)]}}

    @staticmethod
    def item(key: Any, size: int) -> Any:
        return {**key, "a": {"S": "a" * (size - item_size(key) - 1)}}


def table(*sizes: dict[str, int]) -> Any:
    """As :class:`Table`, in the type of a client."""
    return Table(*sizes)


class Interleaved(Counter[str]):
    """A counter whose reads wait for a read by another thread: both have then read the old value."""

    def __init__(self) -> None:
        super().__init__()
        self.both = threading.Barrier(2)

    def __getitem__(self, key: str) -> int:
        value = super().__getitem__(key)
        with suppress(threading.BrokenBarrierError):  # no other thread reads now
            self.both.wait(timeout=0.2)
        return value


class Body:
    """An empty answer."""

    def __init__(self, service: str) -> None:
        self._content = b"" if service == "s3" else b"{}"

    def stream(self, **_: object) -> list[bytes]:
        return [self._content]


def metered_client(meter: Meter, service: str = "dynamodb", status: int = 200) -> Any:
    """A client whose calls are counted and answered without a network."""
    session = boto3.Session("key", "secret", region_name="us-east-1")
    meter.attach(session, "evaluate")
    client = session.client(service, config=Config(retries={"total_max_attempts": 1}))
    answer = AWSResponse("https://service.test", status, HTTPHeaders(), Body(service))
    client.meta.events.register(f"before-send.{service}", lambda **_: answer)
    return client


@pytest.mark.slow
def test_two_threads_that_write_at_the_same_moment_lose_no_unit() -> None:
    meter = Meter(table())
    client = metered_client(meter)
    meter.written = Interleaved()
    with ThreadPoolExecutor(2) as threads:
        list(threads.map(lambda _: client.put_item(TableName="t", Item=ITEM), range(2)))
    assert dict(meter.written) == {"evaluate": 4}


def test_each_part_of_a_transaction_costs_twice_the_units_of_the_larger_of_its_two_items() -> None:
    before = {"updated": 1_500, "deleted": 4_500, "checked": 2_500}
    after = {"updated": 3_500, "checked": 2_500}
    meter = Meter(table(before, after))
    metered_client(meter).transact_write_items(TransactItems=WRITES)
    assert meter.written["evaluate"] == 2 * (2 + 4 + 5 + 3)
    assert meter.items_written["evaluate"] == 3
    assert meter.calls["evaluate", "TransactWriteItems"] == 1


def test_a_refused_transaction_costs_the_units_of_the_existing_items() -> None:
    stored = {"updated": 1_500, "checked": 2_500}
    meter = Meter(table(stored, stored))
    with suppress(ClientError):
        metered_client(meter, status=400).transact_write_items(TransactItems=WRITES)
    assert meter.written["evaluate"] == 2 * (2 + 2 + 1 + 3)


def test_messages_and_objects_are_counted_in_calls_and_bytes() -> None:
    meter = Meter(table())
    queue = metered_client(meter, "sqs")
    queue.send_message(QueueUrl="https://queue.test", MessageBody="\u00e9" * 10)
    queue.send_message_batch(
        QueueUrl="https://queue.test", Entries=[{"Id": str(n), "MessageBody": "a" * 5} for n in range(2)]
    )
    assert (meter.sent["evaluate"], meter.calls["evaluate", "SendMessageBatch"]) == (30, 1)
    metered_client(meter, "s3").put_object(Bucket="bucket", Key="a", Body=b"x" * 1000)
    with suppress(ClientError):
        metered_client(meter, "s3", status=500).put_object(Bucket="bucket", Key="a", Body=b"x" * 1000)
    assert (meter.stored["evaluate"], meter.calls["evaluate", "PutObject"]) == (1000, 2)
    assert meter.written["evaluate"] == 0
