"""``kanon doctor --repair``: lets sets whose Members item cannot be read count anew, so that their slots go on.

Of such a set the crossings in Statuses are kept: an instance that has crossed stays true and is not asked again.
Its clients count from the steps that follow: too few for one window, never too many.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from kanon.dynamo.batches import Item, chunks
from kanon.gate.mechanism.above_threshold import SetState
from kanon.gate.names import slot_of
from kanon.gate.storage.members import is_newer
from kanon.operate.stacks import RunningStack

SETS_A_READ = 100

EMPTY_BITS = 8
"""A state without members is written as if tokens had so many bits: as many as the least type has."""


@dataclass(frozen=True)
class Damage:
    """Members items that cannot be read."""

    items: Sequence[Item]

    @property
    def newer(self) -> int:
        """How many of them name the format of a newer version."""
        return sum(is_newer(item) for item in self.items)


def damage(stack: RunningStack) -> Damage:
    """Look at every Members item."""
    return Damage(list(stack.members.undecodable()))


def repair(stack: RunningStack, found: Damage) -> None:
    """Put a state without clients in the place of each item; harmless if it is cut short.

    Raises:
        ThrottledError: Statuses did not answer; run again.
    """
    members, statuses = stack.members, stack.statuses
    marks = {progress.slot: progress.evaluated_through for progress in stack.control.progress()}
    types = stack.evaluate.read_types()
    window = max(type_.parameters.window for type_ in types.values())
    for some in chunks(found.items, SETS_A_READ):
        crossings = statuses.crossings(item["set_key"]["B"] for item in some)
        for item in some:
            set_key = item["set_key"]["B"]
            mark = marks.get(slot_of(set_key, stack.evaluate.slots)) or 0
            state = SetState(crossings=crossings.get(set_key, ()), evaluated=mark)
            type_name = item.get("type", {}).get("S", "")
            # A crossing is at the step after the mark at the latest, and its instance one window long.
            members.replace(item, type_name, state, EMPTY_BITS, stack.schedule.expiry(mark + 1 + window))
