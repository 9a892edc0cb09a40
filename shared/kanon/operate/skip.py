"""``kanon operate skip``: skips steps whose rows may have expired, so that evaluation can continue.

The answers are then those of the published algorithm on a log without these steps, in which no set can cross.
Every wake-up in a skipped step moves to the first step that follows. Otherwise a set that nobody joins would next be
evaluated when a client joins it, and its answer could reveal that one join.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from kanon.dynamo.batches import chunks
from kanon.gate.slots import Layout
from kanon.gate.stamps import put_stamps
from kanon.gate.storage.aws.step_log import Row
from kanon.operate.changes import SKIP, ChangeRefusedError, leased, record_change, refuse_moved, refuse_rolled_back
from kanon.operate.stacks import RunningStack

LEASE = 3600
"""Seconds for which the slots are leased: longer than reading all Members takes. They are released at the end."""
ROWS_A_BATCH = 1000


@dataclass(frozen=True)
class Gap:
    """The steps of a slot to skip: from ``start`` on, before ``first``. ``mark`` is its mark, None if it has none."""

    slot: int
    mark: int | None
    start: int
    first: int


def gaps(stack: RunningStack, now: float) -> list[Gap]:
    """The steps to skip at ``now`` (Unix s): one gap for each slot that is too far behind, ordered by slot.

    Raises:
        ChangeRefusedError: a deployment was rolled back.
    """
    refuse_rolled_back(stack)
    layouts = stack.evaluate.layouts
    oldest, first = stack.schedule.oldest_allowed(now), stack.schedule.first_after_skip(now)
    marks, found = stack.marks, []
    for slot in layouts.slots:
        start = _start(stack, slot, marks)
        if start is not None and start < oldest:
            end = layouts.last_step(start, first - 1) + 1
            found.append(Gap(slot, marks.get(slot), start, end if end >= oldest else first))
    return found


def _start(stack: RunningStack, slot: int, marks: Mapping[int, int | None]) -> int | None:
    """The step with which a slot continues; None if there is none, or if nothing was evaluated before it."""
    layouts, mark = stack.evaluate.layouts, marks.get(slot)
    step = layouts.next_step(slot, -1 if mark is None else mark)
    if mark is None and step is not None:
        known = (marks.get(before) is not None for before in layouts.preceding(slot, step))
        return step if any(known) else None
    return step


def skip(stack: RunningStack, found: Sequence[Gap], now: float) -> None:
    """Move the marks of slots that are too far behind to the end of their gaps, the result of :func:`gaps`.

    It is safe to interrupt and to repeat. The horizon does not move here: evaluation moves it when the first step that
    follows is complete. ``now`` is in Unix s.

    Raises:
        ChangeRefusedError: a worker holds or has evaluated one of the slots, or ``found`` is too old.
        LeaseLostError: a mark was moved while the wake-ups were written; marks moved before stay moved.
        ThrottledError: the log did not store every wake-up. Run again; nothing is lost.
    """
    control, log = stack.control, stack.log
    if any(gap.first < stack.schedule.oldest_allowed(now) for gap in found):
        raise ChangeRefusedError("too much time has passed since the steps were listed: run the command again")
    expected = {gap.slot: gap.mark for gap in found}
    with leased(control, expected, now, LEASE) as (_, marks):
        refuse_moved(marks, expected)
        for rows in chunks(_wake_ups(stack, found), ROWS_A_BATCH):
            log.put_wake_ups(rows)
        for gap in found:
            record_change(control, SKIP, gap.first - 1)
            put_stamps(gap.slot, gap.first - 1, stack.members, stack.statuses)
            control.advance(gap.slot, gap.mark, gap.first - 1)


def _wake_ups(stack: RunningStack, found: Sequence[Gap]) -> Iterator[Row]:
    """A wake-up at the end of its gap for every set that has one before."""
    by_layout: dict[Layout, dict[int, Gap]] = {}
    for gap in found:
        by_layout.setdefault(stack.evaluate.layouts.at(gap.start), {})[gap.slot] = gap
    for set_key, type_name in stack.members.waking(max(gap.first for gap in found)):
        for layout, gaps in by_layout.items():
            if (slot := layout.slot_of(set_key)) in gaps:
                first = gaps[slot].first
                yield Row(first, set_key, None, type_name, stack.schedule.expiry(first))
