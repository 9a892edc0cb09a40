"""Storage of a ledger and its secrets.

A store appends a line only after the last line that its caller has read, and the line is durable when ``append``
returns. So two processes cannot both spend the rest of a budget. A secret is durable when ``keep`` returns.
"""

import fcntl
import os
import re
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Protocol

from kanon.created import flush
from kanon.disk import put_file
from kanon.release.errors import LedgerError

BEGINNING = "0" * 64
"""The hash that the first line gives for the line before it."""


def hash_of(line: str) -> str:
    """SHA-256 of a line without its line break, in hexadecimal."""
    return sha256(line.encode()).hexdigest()


def hash_of_last(lines: Sequence[str]) -> str:
    """The hash that the next line gives for the line before it."""
    return hash_of(lines[-1]) if lines else BEGINNING


class Store(Protocol):
    """The lines of a ledger."""

    def lines(self) -> list[str]:
        """All complete lines."""
        ...

    def append(self, line: str, after: str) -> bool:
        """Add a line if the hash of the last one is ``after``. Returns whether it is added, durably."""
        ...


class SecretStore(Protocol):
    """Secrets by name."""

    def find(self, name: str) -> bytes | None:
        """The secret of this name, or None."""
        ...

    def keep(self, name: str, secret: bytes) -> None:
        """Keep a secret unless the name has one. Durable when it returns."""
        ...

    def destroy(self, name: str) -> None:
        """Remove a secret, if it is there."""
        ...


def private_directory(path: Path) -> Path:
    """A directory that only its owner can read; created if missing.

    Raises:
        LedgerError: it cannot be made, or others may read it.
    """
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        mode = path.stat().st_mode
    except OSError as error:
        raise LedgerError(f"{path} cannot be used as a ledger: {error.strerror}") from error
    if stat.S_IMODE(mode) & 0o077:
        raise LedgerError(f"others may read the ledger's directory {path}: run chmod 700 on it")
    return path


class FileStore:
    """``ledger.jsonl`` in a directory. A lock serialises appends; each is flushed to the disk.

    A crash during an append may leave a line without a line break. No noise was drawn for it. Readers ignore it, and
    the next append removes it.
    """

    def __init__(self, directory: Path) -> None:
        self._path = directory / "ledger.jsonl"

    def lines(self) -> list[str]:
        """All complete lines.

        Raises:
            LedgerError: the file cannot be read.
        """
        try:
            return _complete(self._path.read_bytes())
        except FileNotFoundError:
            return []
        except (OSError, UnicodeDecodeError) as error:
            raise LedgerError(f"{self._path} cannot be read: check the disk. Put no older copy in its place") from error

    def append(self, line: str, after: str) -> bool:
        """Add a line behind the one with the hash ``after``.

        Raises:
            LedgerError: the file cannot be written.
        """
        try:
            with self._locked() as handle:
                content = os.pread(handle, os.fstat(handle).st_size, 0)
                if hash_of_last(_complete(content)) != after:
                    return False
                end = content.rfind(b"\n") + 1
                os.ftruncate(handle, end)
                _write(handle, line.encode() + b"\n", end)
                os.fsync(handle)
        except (OSError, UnicodeDecodeError) as error:
            raise LedgerError(f"{self._path} cannot be written: check the disk and its permissions") from error
        return True

    @contextmanager
    def _locked(self) -> Iterator[int]:
        new = not self._path.exists()
        handle = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            if new:
                flush(self._path.parent)
            yield handle
        finally:
            os.close(handle)


def _complete(content: bytes) -> list[str]:
    return [line.decode() for line in content[: content.rfind(b"\n") + 1].splitlines()]


def _write(handle: int, content: bytes, at: int) -> None:
    while content:
        written = os.pwrite(handle, content, at)
        content, at = content[written:], at + written


_SECRET_NAME = re.compile(r"[a-z0-9-]{1,100}")
SECRET_BYTES = 32


class FileSecrets:
    """One file of 32 bytes for each secret, readable by its owner alone."""

    def __init__(self, directory: Path) -> None:
        self._directory = private_directory(directory / "secrets")

    def find(self, name: str) -> bytes | None:
        """The secret of that name.

        Raises:
            LedgerError: its file is damaged, or others may read it.
        """
        path = self._path(name)
        try:
            mode, secret = path.stat().st_mode, path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise LedgerError(f"the secret {name} cannot be read: {error.strerror}") from error
        if stat.S_IMODE(mode) & 0o077:
            raise LedgerError(f"others may read the secret {name}: run chmod 600 on its file")
        if len(secret) != SECRET_BYTES:
            raise LedgerError(f"the secret {name} is damaged: remove its file and choose another --name, at a new cost")
        return secret

    def keep(self, name: str, secret: bytes) -> None:
        """Keep a secret unless the name has one. Its file appears only when it is complete, and durably."""
        try:
            put_file(self._path(name), secret)
        except OSError as error:
            raise LedgerError(f"the secret {name} cannot be written: {error.strerror}") from error

    def destroy(self, name: str) -> None:
        """Remove the file of a secret."""
        try:
            self._path(name).unlink(missing_ok=True)
            flush(self._directory)
        except OSError as error:
            raise LedgerError(f"the secret {name} cannot be destroyed: {error.strerror}") from error

    def _path(self, name: str) -> Path:
        if not _SECRET_NAME.fullmatch(name):
            raise LedgerError("a secret's name must have lower-case letters, digits and dashes only")
        return self._directory / name
