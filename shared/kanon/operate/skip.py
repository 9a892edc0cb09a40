"""``kanon operate skip``: skips steps whose rows may have expired, so that evaluation can continue.

The answers are then those of the published algorithm on a log without these steps, in which no set can cross.
Every wake-up in a skipped step moves to the first step that follows. Otherwise a set that nobody joins would next be
evaluated when a client joins it, and its answer could reveal that one join.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from kanon.errors import KanonError
from kanon.gate.slots import Layout
from kanon.gate.storage.step_log import Row
from kanon.operate.stacks import RunningStack

LEASE = 3600
"""Seconds for which the slots are leased: longer than reading all Members takes. They are released at the end."""
ROWS_A_BATCH = 1000


class SkipRefusedError(KanonError):
    """No mark was moved; the message says why."""


@dataclass(frozen=True)
class Gap:
    """The steps of a slot to skip: from ``start`` on, before ``first``. ``mark`` is its mark, None if it has none."""

    slot: int
    mark: int | None
    start: int
    first: int


def gaps(stack: RunningStack, now: float) -> list[Gap]:
    """The steps to skip at ``now`` (Unix s): one gap for each slot that is too far behind, ordered by slot."""
    layouts = stack.evaluate.layouts
    oldest, first = stack.schedule.oldest_allowed(now), stack.schedule.first_after_skip(now)
    marks = {progress.slot: progress.evaluated_through for progress in stack.control.progress()}
    found = []
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
    leased = []
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
        for _, batch in groupby(enumerate(_wake_ups(stack, found)), key=lambda numbered: numbered[0] // ROWS_A_BATCH):
            log.put_wake_ups(row for _, row in batch)
        for gap in found:
            control.advance(gap.slot, gap.mark, gap.first - 1)
    finally:
        for slot in leased:
            control.release(slot, holder)


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
