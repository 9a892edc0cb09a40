"""Use case: take a value out of the lists of a type, past and future.

A record of its set key comes first, so no list that is published later, or again, has it. A copy of the directory may
be older than the record: it takes what its original has.
"""

from collections.abc import Collection
from contextlib import closing
from hashlib import sha256
from pathlib import Path

from kanon.disk import transaction
from kanon.errors import ConfigurationError
from kanon.gate.lists import read_parquet
from kanon.gate.names import set_key
from kanon.gate.storage.disk.control import NAME as CONTROL
from kanon.gate.storage.disk.control import ControlFile
from kanon.keys import Secret
from kanon.serving.directory import Directory, locked, stored_settings
from kanon.serving.lists import FOLDER, NAME, ListsFile, history_of, write_history
from kanon.serving.secret_files import pepper_of


def unlist(directory: Directory, type_name: str, value: str) -> int:
    """Unlist a value. Repeating it changes nothing.

    Returns:
        The number of lists of the history that had it.

    Raises:
        ConfigurationError: the type is not listed.
    """
    check_listed(directory, type_name)
    key = set_key(directory.joining.pepper, type_name, sha256(value.encode()).digest())
    directory.control.unlist(key)
    if (directory.path / NAME).exists():
        _forget(directory, type_name, value, key)
    return _remove_from_history(directory.path, directory.joining.pepper, type_name, {key})


def check_listed(directory: Directory, type_name: str) -> None:
    """Refuse a type that is not listed.

    Raises:
        ConfigurationError: it is not.
    """
    type_ = directory.types.get(type_name)
    if type_ is None or not type_.listed:
        listed = ", ".join(name for name, each in directory.types.items() if each.listed) or "none"
        raise ConfigurationError(f"type {type_name!r} is not listed: listed types: {listed}")


def refuse_other(path: Path, original: Path) -> None:
    """Check that a directory is of the same deployment.

    Raises:
        ConfigurationError: it is of another one, or of none.
    """
    if not (original / CONTROL).is_file():
        raise ConfigurationError(f"{original} holds no deployment: check --original")
    with closing(ControlFile(path, accept_older=True)) as control, closing(ControlFile(original)) as other:
        if stored_settings(other).deployment != stored_settings(control).deployment:
            raise ConfigurationError(f"{original} holds another deployment than {path}: check --original")


def take_over(path: Path, original: Path) -> None:
    """Suppress and unlist in a copy what is suppressed or unlisted in its original. Repeating it changes nothing.

    Raises:
        ConfigurationError: a process has the copy open, or the original is another deployment or none.
    """
    refuse_other(path, original)
    with locked(path):
        with closing(ControlFile(path)) as control, closing(ControlFile(original)) as other:
            for key in other.suppressed():
                control.suppress(key)
            for key in other.unlisted():
                control.unlist(key)
            keys = control.unlisted()
        for file in path.glob(f"{NAME}*"):  # it is made again
            file.unlink()
        for folder in (path / FOLDER).glob("*"):
            _remove_from_history(path, pepper_of(path), folder.name, keys)


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


def _remove_from_history(path: Path, pepper: Secret, type_name: str, keys: Collection[bytes]) -> int:
    """Take values out of the history of a type, by their set keys. Returns the number of the lists that had one."""
    found = 0
    for file in sorted(history_of(path, type_name).glob("date=*/step=*/values.parquet")):
        rows = read_parquet(file)
        kept = [row for row in rows if set_key(pepper, type_name, sha256(row.value.encode()).digest()) not in keys]
        if len(kept) < len(rows):
            write_history(file, kept)
            found += 1
    return found
