"""Output files of commands: checked before the work begins, and written in one step after it.

A command never writes over an input, or over a file that kanon did not write, unless ``--force`` is given. kanon wrote
a file if the mark in it has the SHA-256 of the rest, so a file that was changed since is kept. A table has no place
for a mark: the digest of a table is in the description beside it.
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from hashlib import file_digest, sha256
from pathlib import Path
from tempfile import TemporaryFile
from typing import Annotated
from zlib import crc32

import typer

from kanon.cli.errors import CommandError
from kanon.created import SHARED, Create, created, is_stream

Force = Annotated[
    bool, typer.Option("--force", help="Write over inputs, and over existing files that kanon did not write.")
]

_PNG, _IHDR_ENDS = b"\x89PNG\r\n\x1a\n", 33
_SVG = b'<?xml version="1.0"?>\n'
_SKETCH = b"kanonKHL"
"""The first bytes of a sketch file, whose last bytes are the CRC-32 of the others."""


class OutputFiles:
    """The output files of a command."""

    def __init__(self, context: typer.Context, *, force: bool) -> None:
        self._context, self._force = context, force
        self._checked: dict[str, str] = {}

    def picture(self, path: Path | None, option: str, suffix: str = ".png") -> None:
        """Check the path of a picture, as :meth:`check` does, and its name.

        Raises:
            typer.BadParameter: also if the name does not end in the suffix.
        """
        if path is not None and path.suffix.lower() != suffix:
            raise typer.BadParameter(f"{path}: give a name that ends in {suffix}", param_hint=option)
        self.check(path, option)

    def check(self, path: Path | None, option: str) -> None:
        """Check the path of a file, if it was given. Its folder is created.

        Raises:
            typer.BadParameter: it cannot be written, it exists and may not be replaced, or another option names it.
        """
        if path is None:
            return
        try:
            problem = self._problem(path, option)
        except (OSError, ValueError) as error:
            problem = _unwritable(getattr(error, "strerror", None) or str(error))
        if problem:
            raise typer.BadParameter(f"{path} {problem}", param_hint=option)

    def _problem(self, path: Path, option: str) -> str:
        if is_stream(path):
            self._checked[str(path)] = option
            return "" if os.access(path, os.W_OK) else _unwritable("you may not write it")
        real = Path(os.path.realpath(path))
        make_folder(real.parent)
        if real.exists() and not real.is_file():
            return _unwritable("it is not a file")
        if real.exists() and not os.access(real, os.W_OK):
            return _unwritable("you may not write this file")
        if self._checked.setdefault(str(real).casefold(), option) != option:
            return f"is also the file of {self._checked[str(real).casefold()]}: choose another name"
        if self._force or not real.is_file():
            return ""
        if named := [name for name, other in self._others(option) if same_file(real, other)]:
            return f"is also given as {named[0]}: choose another name"
        return "" if _replaceable(real) else "exists already: choose another name, or write over it with --force"

    def _others(self, option: str) -> Iterator[tuple[str, Path]]:
        """What the other parameters of the command say, as paths."""
        for parameter in self._context.command.params:
            given = self._context.params.get(parameter.name or "")
            if option not in parameter.opts:
                for one in given if isinstance(given, list | tuple) else [given]:
                    if isinstance(one, str | Path):
                        yield parameter.opts[0], Path(one)

    def write(self, contents: Mapping[Path, bytes], access: int = SHARED) -> None:
        """Write files, all or none.

        Raises:
            CommandError: a file cannot be written, or it appeared since it was checked.
        """
        with self.created() as create:
            for path, content in contents.items():
                with create(path, access) as file:
                    file.write(_marked(content))

    @contextmanager
    def created(self) -> Iterator[Create]:
        """Yield ``create(place, access)`` of :func:`kanon.created.created`, for files of any size.

        Raises:
            CommandError: as :meth:`write`.
        """
        try:
            with created(self.may_replace) as create:
                yield create
        except FileExistsError as error:
            raise CommandError(f"{error.filename or error} exists already: choose another name") from error
        except OSError as error:  # such as a full disk
            options = " or ".join(dict.fromkeys(self._checked.values()))
            raise CommandError(f"{options} cannot be written: {error.strerror or error}") from error

    def may_replace(self, path: Path) -> bool:
        """Whether the existing file may be replaced."""
        return self._force or _replaceable(path)


def make_folder(folder: Path) -> None:
    """Make the folder of an output.

    Raises:
        OSError: no file can be made in it. ``os.access`` says yes to root in /proc.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with TemporaryFile(dir=folder):
        pass


def _unwritable(reason: str) -> str:
    return f"cannot be written ({reason}): choose another name"


def same_file(one: Path, other: Path) -> bool:
    """Whether two paths name one file, by whatever name or link."""
    try:
        return one.samefile(other)
    except (OSError, ValueError):
        return False


def _replaceable(path: Path) -> bool:
    """Whether a file is empty or kanon wrote it."""
    content = path.read_bytes() if _looks_written(path) else b""
    if content.startswith(_SKETCH):
        return crc32(content[:-4]).to_bytes(4, "big") == content[-4:]
    if content:
        return any(_marked(content[:at] + content[at + size :]) == content for _, at, size in _places(content))
    return not path.stat().st_size or _is_described(path)


def _looks_written(path: Path) -> bool:
    with path.open("rb") as file:
        start = file.read(_IHDR_ENDS)
    return start.startswith(_SKETCH) or any(True for _ in _places(start))


def _is_described(path: Path) -> bool:
    """Whether a description that kanon wrote is beside a table, and has its digest."""
    beside = path.with_suffix(".json")
    if path == beside or not beside.is_file() or not _replaceable(beside):
        return False
    with path.open("rb") as file:
        return file_digest(file, "sha256").hexdigest() in beside.read_text()


def _marked(content: bytes) -> bytes:
    """A picture, page or description with the mark in it; other files are as they were."""
    for mark, at, _ in _places(content):
        return content[:at] + mark + content[at:]
    return content


def _places(content: bytes) -> Iterator[tuple[bytes, int, int]]:
    """The mark of a content, its place and its size."""
    digest = b"kanon " + sha256(content).hexdigest().encode()
    text = b"tEXtSoftware\0" + digest
    chunk = (len(text) - 4).to_bytes(4, "big") + text + crc32(text).to_bytes(4, "big")
    forms = {
        _PNG: (chunk, _IHDR_ENDS),
        b"<!doctype html>\n": (b"<!-- Written by %s -->\n" % digest, 16),
        _SVG: (b"<!-- Written by %s -->\n" % digest, len(_SVG)),
        b"{\n": (b'  "written_by": "%s",\n' % digest, 2),
    }
    for start, (mark, at) in forms.items():
        if content.startswith(start):
            yield mark, at, len(mark)
