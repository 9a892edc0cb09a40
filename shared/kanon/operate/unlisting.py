"""Take a value out of the lists of a type, past and future.

A record of its set key comes first, in the bucket of lists: no list that is published later has it, and no history that
is written later. Objects are then read and replaced, unless somebody has replaced them meanwhile. Each command takes
out every value that is recorded, and begins again if one was recorded meanwhile.
"""

from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256

from kanon.errors import ConfigurationError
from kanon.gate.lists import ListEntry, ReadableList
from kanon.gate.names import set_key
from kanon.gate.ranges import name_of
from kanon.gate.storage.aws.lists import ListObjects, ListTable
from kanon.keys import fetch_secret
from kanon.operate.stacks import RunningStack


def unlist(stack: RunningStack, type_name: str, value: str) -> int:
    """Unlist a value. Repeating it changes nothing.

    Returns:
        The number of lists of the history that had it.

    Raises:
        ConfigurationError: the type is not listed.
    """
    check_listed(stack, type_name)
    pepper = fetch_secret(stack.client("secretsmanager"), "set-pepper", stack.query.set_pepper_secret)
    table = ListTable(stack.client("dynamodb"), stack.query.control_table)
    objects = ListObjects(stack.client("s3"), stack.list_bucket, stack.query.period)
    return Unlisting(
        table, objects, type_name, lambda text: set_key(pepper, type_name, sha256(text.encode()).digest())
    ).unlist(value)


def end_lists(stack: RunningStack, type_name: str) -> bool:
    """End the lists of a retired type; their history stays for its days. Repeating it ends what a stopped command left.

    Returns:
        Whether there was a list.
    """
    ListTable(stack.client("dynamodb"), stack.query.control_table).end(type_name)
    return ListObjects(stack.client("s3"), stack.list_bucket, stack.query.period).forget(type_name)


def check_listed(stack: RunningStack, type_name: str) -> None:
    """Refuse a type that is not listed.

    Raises:
        ConfigurationError: it is not.
    """
    types = stack.query.read_types()
    if type_name not in types or not types[type_name].listed or not stack.list_bucket:
        listed = ", ".join(name for name, each in types.items() if each.listed) or "none"
        raise ConfigurationError(f"type {type_name!r} is not listed: listed types: {listed}")


@dataclass(frozen=True)
class Unlisting:
    """The command with its storage, for one type. ``key_of``: the set key of a value."""

    table: ListTable
    objects: ListObjects
    type_name: str
    key_of: Callable[[str], bytes]

    def unlist(self, value: str) -> int:
        """As :func:`unlist`."""
        self.objects.unlist(self.key_of(value))
        self.table.renew_stamp()
        self.objects.forget_opened(None)
        found = set[int]()
        while True:
            stamp = self.table.stamp()
            keys = self.objects.unlisted()
            while not self._remove_from_current(keys):
                pass
            found |= self._remove_from_history(value, keys, stamp)
            if self.table.stamp() == stamp:
                return len(found)

    def _remove_from_current(self, keys: frozenset[bytes]) -> bool:
        """Take the values out of the lists that can be read; False if there is a new one."""
        lists = self.table.pointer(self.type_name)
        if lists:  # what stopped listers left, a pointer of a restored Control might name
            self.objects.keep(self.type_name, lists)
        after = tuple(found._replace(values=self._remove(found, keys)) for found in lists)
        return after == lists or self.table.change(self.type_name, lists, after)

    def _remove(self, found: ReadableList, keys: frozenset[bytes]) -> int:
        """Take the values out of a list. Returns the number of the others."""
        names = (name_of(number, found.bits) for number in range(1 << found.bits))
        return sum(self._remove_from_file(found, name, keys) for name in names)

    def _remove_from_file(self, found: ReadableList, name: str, keys: frozenset[bytes]) -> int:
        while True:
            tag = self.objects.tag(self.type_name, found, name)
            rows = [row for _, row in self.objects.values(self.type_name, found, name) or []]
            kept = self._others(rows, keys)
            if len(kept) == len(rows) or tag is None or self.objects.put(self.type_name, found, name, kept, tag):
                return len(kept)

    def _remove_from_history(self, value: str, keys: frozenset[bytes], stamp: str) -> set[int]:
        """Take the values out of the history. Returns the steps of the lists that had ``value``."""
        steps = self.objects.steps_of_history(self.type_name)
        return {step for step in steps if self._remove_from_step(step, value, keys, stamp)}

    def _remove_from_step(self, step: int, value: str, keys: frozenset[bytes], stamp: str) -> bool:
        """Take the values out of the history of a step; whether it had ``value``."""
        had = False
        while True:
            written = self.objects.written_history(self.type_name, step)
            rows = self.objects.history(self.type_name, step)
            had |= any(row.value == value for row in rows)
            kept = self._others(rows, keys)
            if len(kept) == len(rows) or self.objects.put_history(self.type_name, step, kept, stamp, written):
                return had

    def _others(self, rows: list[ListEntry], keys: frozenset[bytes]) -> list[ListEntry]:
        return [row for row in rows if self.key_of(row.value) not in keys]
