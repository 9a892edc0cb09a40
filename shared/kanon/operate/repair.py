"""``kanon operate repair``: empties the ranges of keys whose parts cannot be read; their slots continue.

What can be computed again is not lost: ``kanon operate replay`` starts from an earlier manifest. The crossings of the
sets of such a range are taken from Statuses: a set that has crossed stays true and is not decided again. Only later
joins count. For one window the counts may be too low, never too high.
"""

from dataclasses import dataclass

from kanon.errors import UndecodableMembersError
from kanon.gate.deciding import in_range
from kanon.gate.storage.aws.control import Place, Progress, SlotRow
from kanon.gate.storage.aws.parts import PartObjects
from kanon.gate.storage.protocols import Piece
from kanon.operate.changes import leased, refuse_moved
from kanon.operate.stacks import RunningStack
from kanon.operate.states import keys_of_place, put_states


@dataclass(frozen=True)
class Damage:
    """What cannot be read of a slot.

    Attributes:
        row: its row.
        pieces: its parts; None if their list cannot be read.
        unreadable: the number of those that cannot be read.
        decided: whether something that is decided of its next step cannot be read. It is decided again.
    """

    row: SlotRow
    pieces: tuple[Piece, ...] | None
    unreadable: int
    decided: bool = False

    def __str__(self) -> str:
        if self.pieces is None:
            return "the list of its parts"
        if not self.unreadable:
            return "what is decided of its next step"
        return f"{self.unreadable} of {len(self.pieces)} parts"


def damaged(stack: RunningStack) -> dict[Place, Damage]:
    """The slots with parts that cannot be read. It reads every part."""
    found = {}
    for place, row in sorted(stack.control.rows()):
        damage = _damage(stack, place, row)
        if damage.unreadable or damage.decided:
            found[place] = damage
    return found


def _damage(stack: RunningStack, place: Place, row: SlotRow) -> Damage:
    parts, unreadable = stack.parts(place), 0
    try:
        pieces = () if row.manifest is None else parts.list_of(row.manifest).pieces
    except UndecodableMembersError:
        return Damage(row, None, 1)
    for piece, _ in in_range(pieces, keys_of_place(stack, place)):
        try:
            if piece.name:
                parts.read(piece)
        except UndecodableMembersError:
            unreadable += 1
    return Damage(row, pieces, unreadable, _is_lost(parts, row.progress))


def _is_lost(parts: PartObjects, progress: Progress | None) -> bool:
    try:
        for piece in () if progress is None else parts.list_of(progress.draft).pieces:
            parts.read(piece)
    except UndecodableMembersError:
        return True
    return False


def repair(stack: RunningStack, found: dict[Place, Damage], now: float) -> None:
    """Empty the ranges of keys whose parts cannot be read, the result of :func:`damaged`.

    If only what is decided of a step is lost, it is decided again, and nothing is emptied. It is safe to interrupt and
    to repeat. ``now`` is in Unix s.

    Raises:
        ChangeRefusedError: a worker holds one of the slots, or has evaluated it.
        LeaseLostError: the lease has expired, and a worker has taken a slot.
    """
    with leased(stack.control, found, now) as rows:
        refuse_moved(rows, {place: damage.row for place, damage in found.items()})
        crossings, _ = stack.statuses.released()
        for place, row in rows.items():
            if found[place].unreadable:
                pieces = found[place].pieces or ()
                put_states(stack, place, row, row.evaluated_through or 0, pieces, crossings, empty=True)
            else:
                stack.control.forget_decided(place, row.run)
