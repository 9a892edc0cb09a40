"""``kanon operate skip``: skips steps whose rows may have expired, so that evaluation can continue.

The answers are then those of the published algorithm on a log without these steps, in which no set can cross.
A set that would have crossed in a skipped step though nobody joins it is decided in the first step that follows.
Otherwise it would next be evaluated when a client joins it, and its answer could reveal that one join.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from kanon.gate.storage.aws.control import Place, SlotRow
from kanon.operate.changes import ChangeRefusedError, leased, places_at_work, refuse_moved, refuse_rolled_back
from kanon.operate.stacks import RunningStack
from kanon.operate.states import pieces_of, put_states


@dataclass(frozen=True)
class Gap:
    """The steps of a slot to skip: from ``start`` on, before ``first``. ``row`` is its row."""

    place: Place
    row: SlotRow
    start: int
    first: int

    @property
    def slot(self) -> int:
        """The number of the slot."""
        return self.place.slot


def gaps(stack: RunningStack, now: float) -> list[Gap]:
    """The steps to skip at ``now`` (Unix s): one gap for each slot that is too far behind, oldest layout first.

    Raises:
        ChangeRefusedError: a deployment was rolled back.
    """
    refuse_rolled_back(stack)
    layouts, found = stack.evaluate.layouts, []
    oldest, first = stack.schedule.oldest_allowed(now), stack.schedule.first_after_skip(now)
    rows = places_at_work(stack, now)
    for place, row in rows.items():
        start = place.layout if row.evaluated_through is None else row.evaluated_through + 1
        known = row.evaluated_through is not None or any(
            rows.get(each, SlotRow()).evaluated_through is not None for each in place.before(layouts)
        )
        end = layouts.last_step(place.layout, first - 1) + 1
        if known and start < min(oldest, end):
            found.append(Gap(place, row, start, end))
    return found


def skip(stack: RunningStack, found: Sequence[Gap], now: float) -> None:
    """Move the marks of slots that are too far behind to the end of their gaps, the result of :func:`gaps`.

    It is safe to interrupt and to repeat. The horizon does not move here: evaluation moves it when the first step that
    follows is complete. ``now`` is in Unix s.

    Raises:
        ChangeRefusedError: a worker holds or has evaluated one of the slots, or ``found`` is too old.
        LeaseLostError: the lease has expired, and a worker has taken a slot.
        UndecodableMembersError: a part is missing or damaged.
    """
    oldest, layouts = stack.schedule.oldest_allowed(now), stack.evaluate.layouts
    if any(gap.first < oldest and layouts.last_step(gap.start, gap.first) == gap.first for gap in found):
        raise ChangeRefusedError("too much time has passed since the steps were listed: run the command again")
    with leased(stack.control, [gap.place for gap in found], now) as rows:
        refuse_moved(rows, {gap.place: gap.row for gap in found})
        crossings, _ = stack.statuses.released()
        for gap in found:
            row = rows[gap.place]
            put_states(stack, gap.place, row, gap.first - 1, pieces_of(stack, gap.place, row), crossings)
