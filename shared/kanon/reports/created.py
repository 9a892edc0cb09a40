"""Output files that appear under their names only when all of them are complete."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

PRIVATE = 0o600
SHARED = 0o666
"""Access to a file; the process's umask takes from it."""

Create = Callable[[Path, int], IO[bytes]]


@contextmanager
def created() -> Iterator[Create]:
    """Gives a function that opens a new file to write, by its place and its access.

    Files are written beside their places and get their names at the end. No file that exists is overwritten. If
    anything fails, no file stays.

    Raises:
        OSError: a file exists (FileExistsError), or cannot be written.
    """
    hidden: dict[Path, Path] = {}
    named: list[Path] = []

    def create(place: Path, access: int) -> IO[bytes]:
        if place in hidden:
            raise FileExistsError(f"{place} is written twice")
        beside = place.with_name(f".{os.urandom(8).hex()}.part")
        file = os.fdopen(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, access), "wb")
        hidden[place] = beside
        return file

    try:
        yield create
        for place, beside in hidden.items():
            os.close(os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE))  # fails where a rename overwrites
            named.append(place)
            beside.replace(place)
    except BaseException:
        for path in named:
            path.unlink(missing_ok=True)
        raise
    finally:
        for path in hidden.values():
            path.unlink(missing_ok=True)
