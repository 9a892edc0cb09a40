"""``kanon doctor --skip``: gives up steps whose rows may be gone, so that evaluation can go on.

What follows is the published algorithm on a log without these steps, at which nothing can cross. That holds for
a set nobody joins only if it is looked at as if it had been: a wake-up in the steps given up is put into
the first step that follows, for every set that had one. Without it such a set would next be looked at when
somebody joins it, and its answer could show that one join.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from kanon.errors import KanonError
from kanon.gate.names import slot_of
from kanon.gate.storage.step_log import Row
from kanon.operate.stacks import RunningStack

LEASE = 3600
"""Seconds for which the slots are held: longer than reading all Members takes. Given back at the end."""
ROWS_A_BATCH = 1000


class SkipRefusedError(KanonError):
    """Nothing was moved; the message says why."""


@dataclass(frozen=True)
class Gap:
    """Steps of a slot to be given up: those after ``mark`` and before ``first``."""

    slot: int
    mark: int
    first: int


def gaps(stack: RunningStack, now: float) -> list[Gap]:
    """What must be given up at ``now`` (Unix s): one gap for each slot that is too far behind, by slot."""
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
    """Move the marks of slots that are too far behind to the end of their gaps; harmless if it is cut short.

    The horizon is left where it is: evaluation moves it when the first step that follows is complete.

    Args:
        stack: the stack.
        found: as :func:`gaps` found them.
        holder: a name for this run, new for each.
        now: Unix seconds.

    Raises:
        SkipRefusedError: a worker is at one of the slots, or was; or ``found`` is too old.
        LeaseLostError: a mark was moved while the wake-ups were written; those moved before stay moved.
        ThrottledError: the log did not take every wake-up. Run again; nothing is lost.
    """
    control, log = stack.control, stack.log
    by_slot, leased = {gap.slot: gap for gap in found}, []
    if any(gap.first < stack.schedule.oldest_allowed(now) for gap in found):
        raise SkipRefusedError("the steps that were to follow are too old by now: look again")
    try:
        for gap in found:
            mark = control.lease(gap.slot, holder, now, now + LEASE)
            if mark is None:
                raise SkipRefusedError(f"a worker is at slot {gap.slot}: wait until its lease has passed")
            leased.append(gap.slot)
            if mark.evaluated_through != gap.mark:
                raise SkipRefusedError(f"slot {gap.slot} was evaluated meanwhile: look again")
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
