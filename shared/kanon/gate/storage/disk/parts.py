"""The files of parts. A file is written once, under a name of its own, and is durable before a manifest names it."""

import os
import secrets
from collections.abc import Collection
from hashlib import sha256
from pathlib import Path

from kanon.created import flush
from kanon.errors import UndecodableMembersError
from kanon.gate.parts import Part, decode, encode
from kanon.gate.storage.protocols import Piece

SUFFIX = ".part"
ADVICE = "`kanon doctor --data` says what to do"


class PartFiles:
    """The folder of the parts of a directory."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(exist_ok=True)

    def put(self, part: Part, step: int, run: int, first: str) -> Piece:
        """Write a part after ``step``; ``first`` is the smallest key of its range, in hexadecimal.

        It is on the disk after :meth:`sync`.
        """
        content, digest = encode(part, step)
        name = f"{step}-{run}-{secrets.token_hex(8)}{SUFFIX}"
        with (self.folder / name).open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        return Piece(first, name, digest, part.earliest)

    def sync(self) -> None:
        """Make the names of all parts durable."""
        flush(self.folder)

    def read(self, piece: Piece) -> Part:
        """A part.

        Raises:
            UndecodableMembersError: its file is missing or damaged.
        """
        return decode(self.content(piece), checked=True)

    def content(self, piece: Piece) -> bytes:
        """The file of a part; raises as :meth:`read` does."""
        try:
            content = (self.folder / piece.name).read_bytes()
        except OSError as error:
            raise UndecodableMembersError(
                f"the part {piece.name} cannot be read ({error.strerror}): {ADVICE}"
            ) from error
        if sha256(content).hexdigest() != piece.digest:
            raise UndecodableMembersError(f"the part {piece.name} is not the one that was written: {ADVICE}")
        return content

    def sweep(self, named: Collection[str], run: int) -> None:
        """Delete the parts of runs up to ``run`` that no manifest names."""
        for path in self.folder.glob(f"*-*-*{SUFFIX}"):
            put_by = path.name.split("-")[1]
            if path.name not in named and put_by.isdecimal() and int(put_by) <= run:  # others are not ours
                path.unlink(missing_ok=True)
