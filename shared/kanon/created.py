"""Output files that get their names only when all of them are complete."""

import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

PRIVATE = 0o600
SHARED = 0o666
"""File mode before the process's umask."""

Create = Callable[[Path, int], IO[bytes]]


def never(_: Path) -> bool:
    """Replace no file."""
    return False


def is_stream(path: Path) -> bool:
    """Whether a path names a device or a pipe, which keeps nothing."""
    return path.is_char_device() or path.is_fifo()


@contextmanager
def created(may_replace: Callable[[Path], bool] = never) -> Iterator[Create]:
    """Yield ``create(place, access)``, which opens a new file for writing. ``access`` is a file mode.

    Files are written under other names in the same folder and renamed at the end, each in one step. After an error
    no new file remains. A symbolic link stays: the file that it names is written. Devices and pipes keep nothing, so
    they are written directly.

    Args:
        may_replace: whether the existing file at a place may be replaced. It keeps its mode, unless the new file is
            private.

    Raises:
        OSError: a file exists and may not be replaced (FileExistsError), or a file cannot be written.
    """
    hidden: dict[Path, Path] = {}
    named: list[Path] = []

    def create(place: Path, access: int) -> IO[bytes]:
        if is_stream(place):
            return place.open("wb")
        place = Path(os.path.realpath(place))
        if place in hidden:
            raise FileExistsError(f"{place} is written twice")
        beside = place.with_name(f".{os.urandom(8).hex()}.part")
        file = os.fdopen(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, access), "wb")
        hidden[place] = beside
        if access != PRIVATE and place.is_file():
            beside.chmod(stat.S_IMODE(place.stat().st_mode))
        return file

    try:
        yield create
        replaced = {place for place in hidden if place.is_file() and may_replace(place)}
        for beside in hidden.values():
            flush(beside)
        for place in hidden.keys() - replaced:
            os.close(os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE))  # a rename would overwrite
            named.append(place)
        for place, beside in hidden.items():
            beside.replace(place)
    except BaseException:
        for path in named:
            path.unlink(missing_ok=True)
        raise
    finally:
        for path in hidden.values():
            path.unlink(missing_ok=True)


def flush(path: Path) -> None:
    """Write a file, or the names in a folder, to its disk. So a crash of the machine leaves the old or the new one."""
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)
