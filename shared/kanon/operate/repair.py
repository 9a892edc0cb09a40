"""``kanon operate repair``: resets the counts of sets whose Members item cannot be decoded; their slots continue.

The crossings of such a set in Statuses are kept: a set that has crossed stays true and is not decided again.
Only later joins count. For one window the count may be too low, never too high.
"""

from collections.abc import Sequence

from kanon.dynamo.batches import Item, chunks
from kanon.gate.mechanism.above_threshold import SetState
from kanon.operate.changes import REPAIR, record_change, step_in_progress
from kanon.operate.stacks import RunningStack

SETS_A_READ = 100

EMPTY_BITS = 8
"""The token length with which a state without members is written: the smallest that a type can have."""


def repair(stack: RunningStack, items: Sequence[Item]) -> None:
    """Replace Members items that cannot be decoded by states without members. It is safe to interrupt and to repeat.

    Raises:
        ThrottledError: Statuses did not answer; run again.
    """
    members, statuses = stack.members, stack.statuses
    record_change(stack.control, REPAIR, step_in_progress(stack))
    marks, memory = stack.marks, stack.longest_memory
    for some in chunks(items, SETS_A_READ):
        crossings = statuses.crossings(item["set_key"]["B"] for item in some)
        for item in some:
            set_key = item["set_key"]["B"]
            mark = max(marks.get(layout.slot_of(set_key)) or 0 for layout in stack.evaluate.layouts.entries)
            state = SetState(crossings=crossings.get(set_key, ()), evaluated=mark)
            type_name = item.get("type", {}).get("S", "")
            # A crossing is at most one step after the mark.
            members.replace(item, type_name, state, EMPTY_BITS, stack.schedule.expiry(mark + 1 + memory))
