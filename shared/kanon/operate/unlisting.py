"""Take a value out of the lists of a type, past and future.

A record of its set key comes first, so no list that is published later has it, and no history that is written later.
Objects are then read and replaced. Of two commands at once one may bring back what the other one has just taken out. So
each takes out every value that is recorded, and begins again if one was recorded meanwhile.
"""

from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256

from kanon.errors import ConfigurationError
from kanon.gate.lists import Found, Listed
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
        self.table.unlist(self.key_of(value))
        self.objects.forget_opened(None)
        found = set[int]()
        while True:
            stamp, keys = self.table.unlisted()
            while not self._remove_from_current(keys):
                pass
            found |= self._remove_from_history(value, keys, stamp)
            if self.table.unlisted()[0] == stamp:
                return len(found)

    def _remove_from_current(self, keys: frozenset[bytes]) -> bool:
        """Take the values out of the lists that can be read; False if there is a new one."""
        lists = self.table.pointer(self.type_name)
        after = tuple(found._replace(values=self._remove(found, keys)) for found in lists)
        return after == lists or self.table.recount(self.type_name, lists, after)

    def _remove(self, found: Found, keys: frozenset[bytes]) -> int:
        """Take the values out of a list. Returns the number of the others."""
        count = 0
        for name in (name_of(number, found.bits) for number in range(1 << found.bits)):
            rows = [row for _, row in self.objects.values(self.type_name, found, name) or []]
            kept = self._others(rows, keys)
            if len(kept) < len(rows):
                self.objects.put(self.type_name, found, name, kept)
            count += len(kept)
        return count

    def _remove_from_history(self, value: str, keys: frozenset[bytes], stamp: str) -> set[int]:
        """Take the values out of the history. Returns the steps of the lists that had ``value``."""
        found = set[int]()
        for step in self.objects.steps_of_history(self.type_name):
            rows = self.objects.history(self.type_name, step)
            kept = self._others(rows, keys)
            if len(kept) < len(rows):
                self.objects.put_history(self.type_name, step, kept, stamp)
            if any(row.value == value for row in rows):
                found.add(step)
        return found

    def _others(self, rows: list[Listed], keys: frozenset[bytes]) -> list[Listed]:
        return [row for row in rows if self.key_of(row.value) not in keys]
