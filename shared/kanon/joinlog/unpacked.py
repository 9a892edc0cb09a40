"""Unpacks gzip data, and stops if a small file holds far more than a log does."""

import gzip
import io
from errno import EFBIG
from typing import Any, BinaryIO, cast

SAFE_BYTES = 64 << 20
"""So many bytes are unpacked of every file."""
MOST_TIMES = 100
"""Beyond them, a file may hold so many times its packed size. Logs have 3 to 30 times; gzip can have 1,030."""


class Unpacked(io.RawIOBase):
    """The unpacked bytes of a gzip file.

    Raises:
        OSError: reading: it unpacks to too many bytes.
    """

    def __init__(self, packed: BinaryIO) -> None:
        self._packed = _Counted(packed)
        self._file = gzip.GzipFile(fileobj=cast(BinaryIO, self._packed))
        self._bytes = 0

    def readable(self) -> bool:
        """Always."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill the buffer."""
        count = self._file.readinto(buffer)
        self._bytes += count
        if self._bytes > max(SAFE_BYTES, MOST_TIMES * self._packed.bytes):
            reason = f"it unpacks to more than {MOST_TIMES} times its size; if it is a log, unpack it first"
            raise OSError(EFBIG, reason)
        return count


class _Counted:
    """A file that counts the bytes that are read of it."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self.bytes = file, 0

    def read(self, size: int = -1) -> bytes:
        piece = self._file.read(size)
        self.bytes += len(piece)
        return piece
