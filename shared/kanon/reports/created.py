"""Output files that get their names only when all of them are complete."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

PRIVATE = 0o600
SHARED = 0o666
"""File mode before the process's umask."""

Create = Callable[[Path, int], IO[bytes]]


@contextmanager
def created() -> Iterator[Create]:
    """Yield ``create(place, access)``, which opens a new file for writing. ``access`` is a file mode.

    Files are written under other names in the same folder and renamed at the end. No existing file is overwritten.
    After an error no new file remains.

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
            os.close(os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE))  # a rename would overwrite
            named.append(place)
            beside.replace(place)
    except BaseException:
        for path in named:
            path.unlink(missing_ok=True)
        raise
    finally:
        for path in hidden.values():
            path.unlink(missing_ok=True)
