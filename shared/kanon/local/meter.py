"""Counts the DynamoDB units and the SQS and S3 calls of a function, from its real calls.

Emulators report consumed capacity wrongly, so ``kanon.dynamo.units`` measures the sizes of requests and responses.
A replaced item counts with its new size (DynamoDB charges the larger of the two). An update, a deletion or a condition
check counts as DynamoDB charges it: with the whole item, before or after the call, whichever is larger. A projection
counts with the returned attributes. DynamoDB charges the whole item, but these items are far below the 4 KiB of one
unit.
"""

from __future__ import annotations

import io
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import boto3

from kanon.dynamo.units import item_size, read_units, write_units

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient


class Meter:
    """Units spent, items and bytes moved and calls made so far, by function name.

    ``sent``: bytes of messages. ``stored``: bytes of objects written. ``reader`` reads the items that writes name; its
    own calls are not counted.
    """

    def __init__(self, reader: DynamoDBClient) -> None:
        self._reader = reader
        self.calls: Counter[tuple[str, str]] = Counter()
        self.written: Counter[str] = Counter()
        self.read: dict[str, float] = {}
        self.items_written: Counter[str] = Counter()
        self.items_read: Counter[str] = Counter()
        self.sent: Counter[str] = Counter()
        self.stored: Counter[str] = Counter()
        self._lock = threading.Lock()

    def attach(self, session: boto3.Session, function: str) -> None:
        """Count every call of the clients that this session will create."""

        def before(model: Any, params: dict[str, Any], context: dict[str, Any], **_: Any) -> None:
            context["kanon_params"] = params
            context["kanon_sizes"] = self._sizes(model.name, params)

        def after(model: Any, parsed: dict[str, Any], context: dict[str, Any], **_: Any) -> None:
            params = context.pop("kanon_params", {})
            sizes = context.pop("kanon_sizes", {}), self._sizes(model.name, params)
            units = _put(model.name, params, parsed) + _changed(model.name, params, *sizes)
            items = _items_written(model.name, params)
            with self._lock:  # a function writes in parallel, and an addition is not atomic
                self.calls[function, model.name] += 1
                self.written[function] += units
                self.items_written[function] += items
                self.items_read[function] += _items_read(model.name, parsed)
                self.read[function] = self.read.get(function, 0.0) + _read(model.name, params, parsed)

        def count(model: Any, parsed: dict[str, Any], context: dict[str, Any], **_: Any) -> None:
            params = context.pop("kanon_params", {})
            with self._lock:
                self.calls[function, model.name] += 1
                self.sent[function] += _sent(params)
                self.stored[function] += 0 if "Error" in parsed else _stored(params)

        for service, counted in (("dynamodb", after), ("sqs", count), ("s3", count)):
            session.events.register(f"before-parameter-build.{service}", before)
            session.events.register(f"after-call.{service}", counted)

    def _sizes(self, operation: str, params: dict[str, Any]) -> dict[str, int]:
        """Bytes of the stored items that a write names by their keys."""
        asked: dict[str, Any] = {}
        for part in _parts(operation, params):
            if "Key" in part:
                table = asked.setdefault(part["TableName"], {"Keys": [], "ConsistentRead": True})
                table["Keys"].append(part["Key"])
        found = self._reader.batch_get_item(RequestItems=asked)["Responses"] if asked else {}
        return {
            _name(table, {name: item[name] for name in asked[table]["Keys"][0]}): item_size(item)
            for table, items in found.items()
            for item in items
        }


def _put(operation: str, params: dict[str, Any], parsed: dict[str, Any]) -> int:
    """The units of the items that a call puts."""
    match operation:
        case "PutItem":
            return write_units(item_size(params["Item"]))
        case "BatchWriteItem" if "Error" not in parsed:
            asked = _puts(params["RequestItems"])
            return asked - _puts(parsed.get("UnprocessedItems", {}))
    return 0


def _parts(operation: str, params: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """A call that changes an item, or the writes and condition checks of a transaction; none for another call."""
    if operation in ("UpdateItem", "DeleteItem"):
        yield params
    for entry in params.get("TransactItems", []):
        yield from entry.values()


def _changed(operation: str, params: dict[str, Any], before: Mapping[str, int], after: Mapping[str, int]) -> int:
    """The units of these, also if they are refused. Each part of a transaction costs twice."""
    sizes = (
        item_size(part["Item"])
        if "Item" in part
        else max(each.get(_name(part["TableName"], part["Key"]), 0) for each in (before, after))
        for part in _parts(operation, params)
    )
    return (2 if "TransactItems" in params else 1) * sum(map(write_units, sizes))


def _name(table: str, key: Mapping[str, Any]) -> str:
    """One text for a table and a key, whose order does not matter."""
    return repr((table, sorted(key.items())))


def _sent(params: dict[str, Any]) -> int:
    """Bytes of the messages of a call."""
    entries = [params, *params.get("Entries", [])]
    return sum(len(entry.get("MessageBody", "").encode()) for entry in entries)


def _stored(params: dict[str, Any]) -> int:
    """Bytes of the object of a call: botocore has wrapped them, or it is a file."""
    body = params.get("Body", b"")
    if not hasattr(body, "seek"):
        return len(body)
    at, size = body.tell(), body.seek(0, io.SEEK_END)
    body.seek(at)
    return int(size)


def _items_written(operation: str, params: dict[str, Any]) -> int:
    if operation == "BatchWriteItem":
        return sum(map(len, params["RequestItems"].values()))
    if operation == "TransactWriteItems":
        return sum("ConditionCheck" not in entry for entry in params["TransactItems"])
    return operation in ("PutItem", "UpdateItem", "DeleteItem")


def _items_read(operation: str, parsed: dict[str, Any]) -> int:
    if operation == "BatchGetItem":
        return sum(map(len, parsed.get("Responses", {}).values()))
    return len(parsed.get("Items", [])) + ("Item" in parsed)


def _puts(requests: dict[str, list[dict[str, Any]]]) -> int:
    return sum(
        write_units(item_size(request["PutRequest"]["Item"])) if "PutRequest" in request else 1
        for table in requests.values()
        for request in table
    )


def _read(operation: str, params: dict[str, Any], parsed: dict[str, Any]) -> float:
    match operation:
        case "GetItem" | "Query":
            size = sum(map(item_size, parsed.get("Items", [parsed.get("Item", {})])))
            return read_units(size, consistent=params.get("ConsistentRead", False))
        case "BatchGetItem" if "Error" not in parsed:
            return sum(
                _batch_read(request, parsed["Responses"].get(table, []))
                for table, request in params["RequestItems"].items()
            )
    return 0.0


def _batch_read(request: dict[str, Any], found: list[dict[str, Any]]) -> float:
    """Every key costs a read, even if it has no item."""
    consistent = request.get("ConsistentRead", False)
    sizes = [item_size(item) for item in found] + [0] * (len(request["Keys"]) - len(found))
    return sum(read_units(size, consistent=consistent) for size in sizes)
