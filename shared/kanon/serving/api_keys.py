"""API keys: random, shown once, kept as SHA-256 only."""

import hmac
import secrets
import sqlite3
from collections.abc import Callable
from hashlib import sha256
from typing import NamedTuple

from kanon.errors import ConfigurationError

PREFIX = "kanon_"
"""Lets a scanner of secrets recognise a key that was published by mistake."""
RANDOM_BYTES = 32


class ApiKey(NamedTuple):
    """What is known about a key: its name, and when it was made (Unix s)."""

    name: str
    made: int


class ApiKeys:
    """The keys of a deployment.

    Args:
        database: the connection of the calling thread to the control file. What is read is what is stored now, so a
            revoked key is refused from the next request on.
    """

    def __init__(self, database: Callable[[], sqlite3.Connection]) -> None:
        self._database = database

    def make(self, name: str | None, now: float) -> tuple[str, str]:
        """Make a key. Returns its name (``name``, or the first free ``key-N``) and the key, which is not stored.

        Raises:
            ConfigurationError: there is a key of this name.
        """
        names = {key.name for key in self.all()}
        name = name or next(f"key-{n}" for n in range(1, len(names) + 2) if f"key-{n}" not in names)
        key = PREFIX + secrets.token_urlsafe(RANDOM_BYTES)
        try:
            self._database().execute("INSERT INTO api_keys VALUES (?, ?, ?)", (_digest(key), name, int(now)))
        except sqlite3.IntegrityError:
            raise ConfigurationError(f"there is a key {name}: choose another name, or revoke it first") from None
        return name, key

    def revoke(self, name: str) -> None:
        """Refuse a key from now on.

        Raises:
            ConfigurationError: there is no such key.
        """
        if not self._database().execute("DELETE FROM api_keys WHERE name = ?", (name,)).rowcount:
            known = ", ".join(key.name for key in self.all()) or "no key at all"
            raise ConfigurationError(f"there is no key {name}: there is {known}")

    def all(self) -> list[ApiKey]:
        """All keys, oldest first."""
        return [ApiKey(*row) for row in self._database().execute("SELECT name, made FROM api_keys ORDER BY made, name")]

    def has(self, key: str) -> bool:
        """Whether a key is valid."""
        return self.name_of(key) is not None

    def name_of(self, key: str) -> str | None:
        """The name of a valid key. It is compared with every key, in a time that does not depend on them."""
        digest = _digest(key)
        known = self._database().execute("SELECT digest, name FROM api_keys").fetchall()
        return max((name for each, name in known if hmac.compare_digest(digest, each)), default=None)


def _digest(key: str) -> bytes:
    return sha256(key.encode()).digest()
