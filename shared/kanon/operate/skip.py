"""``kanon operate skip``: skips steps whose rows may have expired, so that evaluation can continue.

The answers are then those of the published algorithm on a log without these steps, in which no set can cross.
Every wake-up in a skipped step moves to the first step that follows. Otherwise a set that nobody joins would next be
evaluated when a client joins it, and its answer could reveal that one join.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from kanon.errors import KanonError
from kanon.gate.names import slot_of
from kanon.gate.storage.step_log import Row
from kanon.operate.stacks import RunningStack

LEASE = 3600
"""Seconds for which the slots are leased: longer than reading all Members takes. They are released at the end."""
ROWS_A_BATCH = 1000


class SkipRefusedError(KanonError):
    """No mark was moved; the message says why."""


@dataclass(frozen=True)
class Gap:
    """The steps of a slot to skip: those after ``mark`` and before ``first``."""

    slot: int
    mark: int
    first: int


def gaps(stack: RunningStack, now: float) -> list[Gap]:
    """The steps to skip at ``now`` (Unix s): one gap for each slot that is too far behind, ordered by slot."""
    oldest, first = stack.schedule.oldest_allowed(now), stack.schedule.first_after_skip(now)
    behind = [
        Gap(progress.slot, progress.evaluated_through, first)
        for progress in stack.control.progress()
        if progress.slot < stack.evaluate.slots
        and progress.evaluated_through is not None
        and progress.evaluated_through + 1 < oldest
    ]
    return sorted(behind, key=lambda gap: gap.slot)


def skip(stack: RunningStack, found: Sequence[Gap], holder: str, now: float) -> None:
    """Move the marks of slots that are too far behind to the end of their gaps. It is safe to interrupt and to repeat.

    The horizon does not move here: evaluation moves it when the first step that follows is complete.

    Args:
        stack: the stack.
        found: the result of :func:`gaps`.
        holder: a name for this run, new for each.
        now: Unix seconds.

    Raises:
        SkipRefusedError: a worker holds or has evaluated one of the slots, or ``found`` is too old.
        LeaseLostError: a mark was moved while the wake-ups were written; marks moved before stay moved.
        ThrottledError: the log did not store every wake-up. Run again; nothing is lost.
    """
    control, log = stack.control, stack.log
    by_slot, leased = {gap.slot: gap for gap in found}, []
    if any(gap.first < stack.schedule.oldest_allowed(now) for gap in found):
        raise SkipRefusedError("too much time has passed since the steps were listed: run the command again")
    try:
        for gap in found:
            mark = control.lease(gap.slot, holder, now, now + LEASE)
            if mark is None:
                raise SkipRefusedError(f"a worker holds slot {gap.slot}: wait until its lease expires")
            leased.append(gap.slot)
            if mark.evaluated_through != gap.mark:
                raise SkipRefusedError(f"slot {gap.slot} was evaluated meanwhile: run the command again")
        rows = (
            Row(by_slot[slot].first, slot, set_key, None, type_name, stack.schedule.expiry(by_slot[slot].first))
            for set_key, type_name in stack.members.waking(max(gap.first for gap in found))
            if (slot := slot_of(set_key, stack.evaluate.slots)) in by_slot
        )
        for _, batch in groupby(enumerate(rows), key=lambda numbered: numbered[0] // ROWS_A_BATCH):
            log.put_wake_ups(row for _, row in batch)
        for gap in found:
            control.advance(gap.slot, gap.mark, gap.first - 1)
    finally:
        for slot in leased:
            control.release(slot, holder)
