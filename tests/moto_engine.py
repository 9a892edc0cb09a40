"""The emulator of most tests: moto, in this process, which starts and answers faster than a child process.

Concurrent stacks share it and use different names. ``kanon.local`` brings the other emulator, which the conformance
tests compare with this one.

moto reads no ``?`` in an INSERT, no REMOVE beside a SET, scans every table for each statement, and reports success
where DynamoDB reports a failed condition. So this module executes the statements of ``kanon.dynamo.statements`` in its
place, by DynamoDB's rules.
"""

import threading
from typing import Any

from moto import mock_aws
from moto.backends import get_backend
from moto.dynamodb.models import DynamoDBBackend
from moto.dynamodb.models.dynamo_type import DynamoType
from moto.dynamodb.models.table import Table

from kanon.local.engines import Emulator, Ministack
from kanon.local.partiql import Write, read
from kanon.local.template import ACCOUNT, REGION

_executing = threading.Lock()


class Moto(Emulator):
    """moto in this process. Concurrent stacks share it and use different names."""

    def __init__(self) -> None:
        super().__init__()
        self._mock: Any = None

    def start(self) -> None:
        """Make moto answer boto3 in this process."""
        _query_partitions()
        teach_moto()
        self._mock = mock_aws()
        self._mock.start()

    def stop(self) -> None:
        """Restore boto3. When the last stack stops, all data is lost."""
        self.close_clients()
        if self._mock is not None:
            self._mock.stop()
            self._mock = None

    def expire(self, table: str, attribute: str, now: float) -> int:
        """Delete inside moto's table: a scan through its API would take seconds."""
        rows: Any = get_backend("dynamodb")[ACCOUNT][REGION].tables[table]

        def expired(item: Any) -> bool:
            ttl = item.attrs.get(attribute)
            return ttl is not None and int(ttl.value) < now

        deleted = 0
        for partition, content in list(rows.items.items()):
            if rows.range_key_attr:
                for key in [key for key, item in list(content.items()) if expired(item)]:
                    del content[key]
                    deleted += 1
                if not content:
                    del rows.items[partition]
            elif expired(content):
                del rows.items[partition]
                deleted += 1
        return deleted


def _query_partitions() -> None:
    """Make moto's Query read one partition; without this it sorts and compares the whole table."""
    if getattr(Table.query, "reads_one_partition", False):
        return
    whole_query, whole_items = Table.query, Table.all_items
    reading = threading.local()

    def query(self: Any, hash_key: Any, *args: Any, **options: Any) -> Any:
        reading.partition = hash_key
        try:
            return whole_query(self, hash_key, *args, **options)
        finally:
            reading.partition = None

    def all_items(self: Any) -> Any:
        partition = getattr(reading, "partition", None)
        if partition is None or self.global_indexes or self.indexes:
            return whole_items(self)
        content = self.items.get(partition)
        if content is None:
            return []
        return list(content.values()) if self.range_key_attr else [content]

    query.reads_one_partition = True  # type: ignore[attr-defined]
    Table.query = query  # type: ignore[method-assign]
    Table.all_items = all_items  # type: ignore[method-assign]


def teach_moto() -> None:
    """Make moto execute the statements of a BatchExecuteStatement as DynamoDB does."""
    DynamoDBBackend.batch_execute_statement = _batch_execute  # type: ignore[method-assign]


def _batch_execute(self: Any, statements: list[dict[str, Any]]) -> list[dict[str, Any]]:
    with _executing:
        return [_execute(self, read(statement)) for statement in statements]


def _execute(backend: Any, write: Write) -> dict[str, Any]:
    table = backend.get_table(write.table)
    found = table.get_item(DynamoType(write.item[table.hash_key_attr]))
    before = None if found is None else found.to_json()["Attributes"]
    if write.stored is None:
        if before is not None:
            return _error(write.table, "DuplicateItem", "Duplicate primary key exists in table")
    elif before is None or any(before.get(name) != value for name, value in write.stored.items()):
        return _error(write.table, "ConditionalCheckFailed", "The conditional request failed")
    after = {**(before or {}), **write.changed}
    table.put_item({name: value for name, value in after.items() if name not in write.removed})
    return {"TableName": write.table}


def _error(table: str, code: str, message: str) -> dict[str, Any]:
    return {"TableName": table, "Error": {"Code": code, "Message": message}}


ENGINES: dict[str, type[Emulator]] = {"moto": Moto, "ministack": Ministack}
"""The emulators, by name."""
