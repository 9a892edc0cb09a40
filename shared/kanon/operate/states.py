"""The states of slots, as commands put others in their place (docs/proofs/segments.md).

``repair``, ``skip`` and ``new-generation`` do the same: they read the parts of a slot, merge the crossings of Statuses
into them, and put one manifest in the place of all. So a crossing that a worker has written before it died is not
decided again, and no recovery starts from earlier states.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from kanon.dynamo.batches import chunks
from kanon.errors import UndecodableMembersError
from kanon.gate.deciding import Keys, in_range
from kanon.gate.mechanism.columns import NEVER, crossing_columns
from kanon.gate.mechanism.tape import SET_KEY_BYTES
from kanon.gate.merging import UNKNOWN
from kanon.gate.parts import Part, keys_of
from kanon.gate.storage.aws.control import Place, SlotRow, lost
from kanon.gate.storage.aws.parts import PartList, PartObjects
from kanon.gate.storage.aws.statuses import MOST_STATUSES
from kanon.gate.storage.protocols import Piece, Status
from kanon.operate.changes import ChangeRefusedError
from kanon.operate.stacks import RunningStack

CrossingsOfSets = Mapping[bytes, tuple[int, ...]]
"""The crossings in Statuses, by set key."""


def keys_of_place(stack: RunningStack, place: Place) -> Keys:
    """The keys of the sets of a slot."""
    return Keys(*stack.evaluate.layouts.at(place.layout).range_of(place.slot))


def has(keys: Keys, key: bytes) -> bool:
    """Whether a key is in a range."""
    return keys.first <= key and (keys.end is None or key < keys.end)


def lists_of(row: SlotRow) -> list[str]:
    """The lists of parts that the next step needs: the manifest, and what is decided of the step."""
    draft = None if row.progress is None else row.progress.draft
    return [name for name in (row.manifest, draft) if name is not None]


def pieces_of(stack: RunningStack, place: Place, row: SlotRow) -> tuple[Piece, ...]:
    """The parts of a slot: its own, or those of the slots that it continues. The first and last may reach beyond it.

    Raises:
        ChangeRefusedError: a slot that it continues was retired.
        UndecodableMembersError: a list of parts is missing or damaged.
    """
    if row.retired:
        raise ChangeRefusedError(f"the states of slot {place.slot} before step {row.evaluated_through} were deleted")
    if row.evaluated_through is None:
        before = place.before(stack.evaluate.layouts)
        return tuple(piece for each in before for piece in pieces_of(stack, each, stack.control.row(each)))
    return () if row.manifest is None else stack.parts(place).list_of(row.manifest).pieces


def put_states(
    stack: RunningStack, place: Place, row: SlotRow, step: int, pieces: Sequence[Piece], crossings: CrossingsOfSets,
    *, empty: bool = False,
) -> None:  # fmt: skip
    """Put parts with the crossings of Statuses in the place of all states of a slot, as those after ``step``.

    Crossings that only the parts have are written to Statuses: a table that was restored lacks some.

    Args:
        stack: the stack.
        place: the slot.
        row: its row, with the run of the command.
        step: the new mark; not before any crossing.
        pieces: the parts from which it continues.
        crossings: the crossings in Statuses.
        empty: whether a part that cannot be read is taken as one without sets.

    Raises:
        LeaseLostError: the lease has expired, and a worker has taken the slot.
        UndecodableMembersError: a part is missing or damaged.
    """
    parts, memory = stack.parts(place), stack.longest_memory
    made: list[Piece] = []
    for piece, own in in_range(pieces, keys_of_place(stack, place)):
        part = own.of(_part(parts, piece, empty=empty))
        shown = {key: steps for key, steps in crossings.items() if has(own, key) and steps}
        _write(stack, place, row, _unwritten(stack, part, shown, memory))
        merged = with_crossings(part, shown, memory)
        if len(merged) or piece.name:
            made.append(parts.put(merged, step, row.run, own.first.hex()))
    name = parts.put_list(PartList(step, tuple(made)), row.run)
    stack.control.restate(place, row.run, step, [name])


def with_crossings(part: Part, crossings: CrossingsOfSets, memory: int) -> Part:
    """The part with these crossings too; ``memory``: for so many steps a crossing is needed.

    A set that is not in the part has no members there, and its next join brings its type.
    """
    keys = np.array(sorted(crossings), f"S{SET_KEY_BYTES}")
    if not len(keys):
        return part
    part = part.with_sets(keys[~np.isin(keys, part.keys)], np.full(1, UNKNOWN, np.uint8))
    rows = np.searchsorted(part.keys, keys)
    known = ({*part.crossings[row].tolist()} - {NEVER} for row in rows.tolist())
    both = crossing_columns(sorted(own | {*crossings[key]}) for own, key in zip(known, sorted(crossings), strict=True))
    all_crossings, ends = part.crossings.copy(), part.ends.copy()
    all_crossings[rows] = both
    ends[rows] = np.maximum(ends[rows], both[:, 1] + memory)
    return replace(part, crossings=all_crossings, ends=ends)


def newest_crossing(crossings: CrossingsOfSets) -> int:
    """The last step at which a set crossed; 0 if none did."""
    return max((steps[-1] for steps in crossings.values() if steps), default=0)


def _part(parts: PartObjects, piece: Piece, *, empty: bool) -> Part:
    if not piece.name:
        return Part.empty()
    try:
        return parts.read(piece)
    except UndecodableMembersError:
        if not empty:
            raise
        return Part.empty()


def _unwritten(stack: RunningStack, part: Part, shown: CrossingsOfSets, memory: int) -> Iterator[Status]:
    """The sets of a part whose newest crossing is not in Statuses."""
    crossed = part.rows(part.crossings[:, 1] != NEVER)
    for key, steps in zip(keys_of(crossed.keys), crossed.crossings.tolist(), strict=True):
        if shown.get(key, (NEVER,))[-1] < steps[-1]:
            known = tuple(sorted({*shown.get(key, ()), *steps} - {NEVER})[-2:])
            yield key, known, stack.schedule.expiry(known[-1] + memory)


def _write(stack: RunningStack, place: Place, row: SlotRow, statuses: Iterator[Status]) -> None:
    for some in chunks(statuses, MOST_STATUSES):
        if not stack.statuses.write(stack.control.fence(place, row.run, 0), some):
            raise lost(place)
