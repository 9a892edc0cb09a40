"""The meter counts every unit, also if several threads write at once."""

import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import boto3
from botocore.awsrequest import AWSResponse
from botocore.compat import HTTPHeaders

from kanon.local.meter import Meter

ITEM: dict[str, Any] = {"name": {"S": "n" * 1500}}
"""Two write units."""


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
    """The empty answer of DynamoDB."""

    def stream(self, **_: object) -> list[bytes]:
        return [b"{}"]


def metered_client(meter: Meter) -> Any:
    """A client whose calls are counted and answered without a network."""
    session = boto3.Session("key", "secret", region_name="us-east-1")
    meter.attach(session, "evaluate")
    client = session.client("dynamodb")
    answer = AWSResponse("https://dynamodb.test", 200, HTTPHeaders(), Body())
    client.meta.events.register("before-send.dynamodb", lambda **_: answer)
    return client


def test_two_threads_that_write_at_the_same_moment_lose_no_unit() -> None:
    meter = Meter()
    client = metered_client(meter)
    meter.written = Interleaved()
    with ThreadPoolExecutor(2) as threads:
        list(threads.map(lambda _: client.put_item(TableName="t", Item=ITEM), range(2)))
    assert dict(meter.written) == {"evaluate": 4}
