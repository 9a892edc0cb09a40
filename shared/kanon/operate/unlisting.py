"""Take a value out of the lists of a type, past and future.

A record of its set key comes first, so no list that is published later has it, and no history that is written later.
"""

from hashlib import sha256

from kanon.errors import ConfigurationError
from kanon.gate.lists import Found
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
    table.unlist(set_key(pepper, type_name, sha256(value.encode()).digest()))
    objects.forget_opened(None)
    while not _remove_from_current(table, objects, type_name, value):
        pass
    return _remove_from_history(table, objects, type_name, value)


def check_listed(stack: RunningStack, type_name: str) -> None:
    """Refuse a type that is not listed.

    Raises:
        ConfigurationError: it is not.
    """
    types = stack.query.read_types()
    if type_name not in types or not types[type_name].listed or not stack.list_bucket:
        listed = ", ".join(name for name, each in types.items() if each.listed) or "none"
        raise ConfigurationError(f"type {type_name!r} is not listed: listed types: {listed}")


def _remove_from_current(table: ListTable, objects: ListObjects, type_name: str, value: str) -> bool:
    """Take the value out of the lists that can be read; False if there is a new one."""
    lists = table.pointer(type_name)
    after = tuple(found._replace(values=_remove(objects, type_name, found, value)) for found in lists)
    return after == lists or table.recount(type_name, lists, after)


def _remove(objects: ListObjects, type_name: str, found: Found, value: str) -> int:
    """Take the value out of a list. Returns the number of the others."""
    count = 0
    for name in (name_of(number, found.bits) for number in range(1 << found.bits)):
        rows = objects.values(type_name, found, name) or []
        kept = [row for _, row in rows if row.value != value]
        if len(kept) < len(rows):
            objects.put(type_name, found, name, kept)
        count += len(kept)
    return count


def _remove_from_history(table: ListTable, objects: ListObjects, type_name: str, value: str) -> int:
    found, stamp = 0, table.unlisted()[0]
    for step in objects.steps_of_history(type_name):
        rows = objects.history(type_name, step)
        if any(row.value == value for row in rows):
            objects.put_history(type_name, step, (row for row in rows if row.value != value), stamp)
            found += 1
    return found
