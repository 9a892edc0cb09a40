"""Lists in tables and buckets of reports, published as the lister does."""

from collections.abc import Iterable
from hashlib import sha256
from typing import Any
from uuid import uuid4

from kanon.gate.lists import ListEntry, ReadableList
from kanon.gate.mechanism.tape import SET_KEY_BYTES
from kanon.gate.ranges import name_of
from kanon.gate.storage.aws.lists import ListObjects, ListTable
from kanon.operate.unlisting import Unlisting

PERIOD, BITS = 3600, 1
"""Each list has two objects, so that it can be read in part."""
TYPES = {
    "terms": {"k": 20, "window": 24, "profile": "crossing", "listed": True},
    "fledge": {"k": 50, "window": 24, "profile": "crossing"},
}


class Publishing:
    """The lists of a type."""

    def __init__(self, session: Any, control: str, bucket: str, type_name: str = "terms") -> None:
        self.table = ListTable(session.client("dynamodb"), control)
        self.objects = ListObjects(session.client("s3"), bucket, PERIOD)
        self.type_name = type_name

    def publish(self, step: int, values: Iterable[str]) -> ReadableList:
        """Publish the list of a step, and delete the one before the last."""
        rows = sorted((sha256(value.encode()).digest(), ListEntry(value, step)) for value in values)
        found = ReadableList(step, BITS, len(rows), uuid4().hex)
        for number in range(1 << BITS):
            some = [row for digest, row in rows if digest[0] >> 8 - BITS == number]
            self.objects.put(self.type_name, found, name_of(number, BITS), some)
        before = self.table.pointer(self.type_name)
        assert self.table.publish(self.type_name, before, found, self.table.stamp())
        self.objects.keep(self.type_name, (found, *before[:1]))
        return found

    def unlist(self, value: str) -> None:
        """Take a value out, as the command does."""
        Unlisting(self.table, self.objects, self.type_name, key_of).unlist(value)

    def end(self) -> None:
        """End the lists, as the command does that retires the type."""
        self.table.end(self.type_name)
        self.objects.forget(self.type_name)


def key_of(value: str) -> bytes:
    """The set key of a value."""
    return sha256(value.encode()).digest()[:SET_KEY_BYTES]
