"""Expires objects by the stack's clock, as a bucket's lifecycle does. An engine stamps objects with the real time."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from typing import Any

import boto3

from kanon.dynamo.batches import chunks
from kanon.local.build import Lifetime

_DAY = 86400
_MOST_AT_ONCE = 1000  # keys of one call of S3
_WRITES = ("PutObject", "CopyObject", "CompleteMultipartUpload")


class ObjectTimes:
    """The time of the last write of each object by an attached session, on the clock ``now``."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._written: dict[tuple[str, str], float] = {}
        self._lock = threading.Lock()

    def attach(self, session: boto3.Session) -> None:
        """Record the writes of all clients that this session will create."""

        def before(params: dict[str, Any], context: dict[str, Any], **_: Any) -> None:
            context["kanon_object"] = params.get("Bucket", ""), params.get("Key", "")

        def after(parsed: dict[str, Any], context: dict[str, Any], **_: Any) -> None:
            if "Error" not in parsed:
                with self._lock:
                    self._written[context["kanon_object"]] = self._now()

        for operation in _WRITES:
            session.events.register(f"before-parameter-build.s3.{operation}", before)
            session.events.register(f"after-call.s3.{operation}", after)

    def expire(self, session: boto3.Session, lifetimes: Sequence[Lifetime]) -> int:
        """Delete the objects whose lifetime is over; return their number. An object without a recorded write is new."""
        if not lifetimes:
            return 0
        client = session.client("s3")
        return sum(self._expire(client, lifetime) for lifetime in lifetimes)

    def _expire(self, client: Any, lifetime: Lifetime) -> int:
        bucket, now = lifetime.bucket, self._now()
        pages = client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=lifetime.prefix)
        with self._lock:
            expired = [
                item["Key"]
                for page in pages
                for item in page.get("Contents", [])
                if now >= _midnight_after(self._written.setdefault((bucket, item["Key"]), now) + lifetime.seconds)
            ]
        for keys in chunks(expired, _MOST_AT_ONCE):
            client.delete_objects(Bucket=bucket, Delete={"Objects": [{"Key": key} for key in keys]})
        return len(expired)


def _midnight_after(moment: float) -> float:
    """S3 rounds the end of an object's lifetime up to the next midnight in UTC."""
    return math.ceil(moment / _DAY) * _DAY
