"""The storage of a slot in the gate's own terms, and what its parts and answers are there.

``disk`` and ``aws`` implement it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from kanon.gate.publishing import Horizon
from kanon.gate.slots import Layouts

if TYPE_CHECKING:  # `query` starts without numpy
    from kanon.gate.merging import Joins
    from kanon.gate.parts import Part


class Piece(NamedTuple):
    """A part of a manifest.

    Attributes:
        first: the smallest set key of its range, in hexadecimal; the range ends before that of the next piece.
        name: the name of its file.
        digest: the SHA-256 of the file, in hexadecimal.
        earliest: the first step at which it changes though nobody joins; None if there is none.
    """

    first: str
    name: str
    digest: str
    earliest: int | None


@dataclass(frozen=True)
class Manifest:
    """The parts of all sets after a step, in the order of their keys."""

    step: int
    pieces: tuple[Piece, ...] = ()

    @property
    def earliest(self) -> int | None:
        """The first step at which something changes though nobody joins."""
        return min((piece.earliest for piece in self.pieces if piece.earliest is not None), default=None)


Status = tuple[bytes, tuple[int, ...], int]
"""Set key, crossings, and when they may expire (Unix s)."""
Sealed = tuple[bytes, int, bytes]
"""Set key, number of its type, and sealed value."""


class JoinWriter(Protocol):
    """The log, as ``join`` sees it: it reads nothing."""

    @property
    def layouts(self) -> Layouts:
        """The layouts of the log."""

    def put(self, row: Any) -> None:
        """Put one row. Putting the same row again changes nothing."""

    def put_groups(self, groups: Sequence[Sequence[Any]]) -> list[bool]:
        """Put groups of rows of one step and slot. Returns for each group whether it is stored."""


class JoinLog(Protocol):
    """The joins of closed steps, as decisions need them."""

    def count(self, step: int) -> int:
        """The number of joins of a step; a repeated one may count again."""

    def joins(self, step: int, first: bytes, end: bytes | None) -> "Joins":
        """The distinct joins of the sets from the key ``first`` up to ``end``, which is not included, sorted."""

    def sealed(self, step: int, first: bytes, end: bytes | None) -> Mapping[bytes, bytes]:
        """The sealed value of each of these sets whose joins carried one, by set key; the first one of each."""


class Parts(Protocol):
    """The stored parts, as decisions need them."""

    def put(self, part: "Part", step: int, run: int, first: str) -> Piece:
        """Store a part under a name that is never used again."""

    def read(self, piece: Piece) -> "Part":
        """A part as it was put."""


class Statuses(Protocol):
    """The answers, as ``query`` sees them."""

    def read(
        self, set_keys: Mapping[bytes, str | None], slots: Sequence[int]
    ) -> tuple[dict[bytes, tuple[int, ...]], dict[int, Horizon]]:
        """The crossings of the sets, and the horizons of the slots that have any.

        Each set has the name of the object that has its answer too, if there is one (:class:`Memory`).
        """
