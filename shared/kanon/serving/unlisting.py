"""Use case: take a value out of the lists of a type, past and future.

A record of its set key comes first, so no list that is published later, or again, has it.
"""

from contextlib import closing
from hashlib import sha256

from kanon.disk import transaction
from kanon.errors import ConfigurationError
from kanon.gate.lists import read_parquet
from kanon.gate.names import set_key
from kanon.serving.directory import Directory
from kanon.serving.lists import NAME, ListsFile, history_of, write_history


def unlist(directory: Directory, type_name: str, value: str) -> int:
    """Unlist a value. Repeating it changes nothing.

    Returns:
        The number of lists of the history that had it.

    Raises:
        ConfigurationError: the type is not listed.
    """
    type_ = directory.types.get(type_name)
    if type_ is None or not type_.listed:
        listed = ", ".join(name for name, each in directory.types.items() if each.listed) or "none"
        raise ConfigurationError(f"type {type_name!r} is not listed: listed types: {listed}")
    key = set_key(directory.joining.pepper, type_name, sha256(value.encode()).digest())
    directory.control.unlist(key)
    if (directory.path / NAME).exists():
        _forget(directory, type_name, value, key)
    return _remove_from_history(directory, type_name, value)


def _forget(directory: Directory, type_name: str, value: str, key: bytes) -> None:
    """Take a value out of the last lists. Free pages keep nothing of it."""
    with closing(ListsFile(directory.path)) as file:
        database = file.database
        database.execute("PRAGMA secure_delete = ON")
        with transaction(database):
            database.execute("DELETE FROM entries WHERE type = ? AND value = ?", (type_name, value))
            database.execute("DELETE FROM opened WHERE set_key = ?", (key,))
            database.execute(
                "UPDATE lists SET count = (SELECT COUNT(*) FROM entries"
                " WHERE entries.type = lists.type AND entries.step = lists.step)"
            )
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def _remove_from_history(directory: Directory, type_name: str, value: str) -> int:
    found = 0
    for file in sorted(history_of(directory.path, type_name).glob("date=*/step=*/values.parquet")):
        rows = read_parquet(file)
        if any(row.value == value for row in rows):
            write_history(file, (row for row in rows if row.value != value))
            found += 1
    return found
