"""The emulator of most tests: moto, in this process, which starts and answers faster than a child process.

Concurrent stacks share it and use different names. ``kanon.local`` brings the other emulator, which the conformance
tests compare with this one.
"""

import threading
from typing import Any

from moto import mock_aws
from moto.backends import get_backend
from moto.dynamodb.models.table import Table

from kanon.local.engines import Emulator, Ministack
from kanon.local.template import ACCOUNT, REGION


class Moto(Emulator):
    """moto in this process. Concurrent stacks share it and use different names."""

    def __init__(self) -> None:
        super().__init__()
        self._mock: Any = None

    def start(self) -> None:
        """Make moto answer boto3 in this process."""
        _query_partitions()
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


ENGINES: dict[str, type[Emulator]] = {"moto": Moto, "ministack": Ministack}
"""The emulators, by name."""
