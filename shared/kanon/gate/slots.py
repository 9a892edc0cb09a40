"""Slots: the parts into which the sets are divided, by the leading bits of their keys.

A *layout* is a number of slots, from a step on. A deployment lists its layouts, oldest first, and may add one: the old
slots evaluate every step before it, the new ones begin there. Noise depends on set and step alone, so every answer
stays the same.

A slot is a number. It keeps its mark, its lease and its horizon when a layout with the same number follows.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from kanon.errors import ConfigurationError
from kanon.gate.mechanism.tape import SET_KEY_BYTES

MOST_SLOTS = 256
MOST_PARTITIONS = 16
"""The number of values of a token's last bits."""


@dataclass(frozen=True)
class Layout:
    """The division of the log from a step on.

    Attributes:
        slots: the number of slots: a power of two, at most 256.
        from_step: the first step.
        partitions: the number of partitions of a slot in the log: a power of two, at most 16. Then batches are packed.
            None is the first form of the log: one partition for a slot, and one row for each join.
    """

    slots: int
    from_step: int
    partitions: int | None = None

    def __str__(self) -> str:
        return str(self.slots) if self.partitions is None else f"{self.slots} x {self.partitions}"

    def slot_of(self, set_key: bytes) -> int:
        """The slot of a set: the leading bits of its key."""
        return set_key[0] * self.slots >> 8

    def keys_of(self, slot: int) -> tuple[bytes, bytes]:
        """The smallest and the largest key that a set of ``slot`` can have."""
        width = MOST_SLOTS // self.slots
        rest = SET_KEY_BYTES - 1
        return bytes([slot * width]) + bytes(rest), bytes([(slot + 1) * width - 1]) + b"\xff" * rest

    def range_of(self, slot: int) -> tuple[bytes, bytes | None]:
        """The smallest key that a set of ``slot`` can have, and that of the next slot; None after the last one."""
        return self.keys_of(slot)[0], None if slot + 1 == self.slots else self.keys_of(slot + 1)[0]

    def sharing(self, slot: int, other: "Layout") -> range:
        """The slots of ``other`` that have sets in common with ``slot``."""
        return range(slot * other.slots // self.slots, -(-(slot + 1) * other.slots // self.slots))


@dataclass(frozen=True)
class Layouts:
    """The layouts of a deployment, oldest first; at least one.

    ``late`` is the number of steps after the end of a layout in which joins may still be logged under it: a deployment
    that was rolled back lacks the next layout until it is deployed again.
    """

    entries: tuple[Layout, ...]
    late: int = 0

    @property
    def slots(self) -> range:
        """The numbers of the slots of all layouts."""
        return range(max(layout.slots for layout in self.entries))

    def at(self, step: int) -> Layout:
        """The layout in force at ``step``.

        Raises:
            ConfigurationError: every layout begins later.
        """
        for layout in reversed(self.entries):
            if layout.from_step <= step:
                return layout
        raise ConfigurationError(
            f"Slots has no entry for step {step}: put the removed entry back, or let the first one begin at step 0"
        )

    def next_step(self, slot: int, after: int) -> int | None:
        """The first step later than ``after`` that ``slot`` evaluates, or None if no later layout has it."""
        for layout, end in self.with_ends():
            first = max(layout.from_step, after + 1)
            if slot < layout.slots and (end is None or first <= end):
                return first
        return None

    def last_step(self, step: int, last: int) -> int:
        """The last step of the layout at ``step``, at most ``last``."""
        following = self._following(self.at(step))
        return last if following is None else min(last, following.from_step - 1)

    def steps(self, slot: int, after: int, through: int) -> int:
        """The number of steps later than ``after``, up to ``through``, that ``slot`` evaluates."""
        return sum(
            max(0, min(through, through if end is None else end) - max(layout.from_step, after + 1) + 1)
            for layout, end in self.with_ends()
            if slot < layout.slots
        )

    def evaluated(self, oldest: int, last: int) -> range:
        """The numbers of the slots that evaluate some step from ``oldest`` to ``last``."""
        return range(
            max(
                layout.slots
                for layout, end in self.with_ends()
                if layout.from_step <= max(last, self.entries[0].from_step) and (end is None or end >= oldest)
            )
        )

    def preceding(self, slot: int, step: int) -> range:
        """The slots that must have evaluated every earlier step before ``slot`` evaluates ``step``.

        Empty unless a later layout begins at ``step``.
        """
        layout = self.at(step)
        before = [older for older in self.entries if older.from_step < layout.from_step]
        return layout.sharing(slot, before[-1]) if before and layout.from_step == step else range(0)

    def following(self, slot: int, step: int) -> range:
        """The slots that continue when ``slot`` has evaluated ``step``, the last of its layout."""
        layout = self.at(step)
        later = self._following(layout)
        return range(0) if later is None else layout.sharing(slot, later)

    def read(self, slot: int, step: int) -> Iterator[tuple[Layout, int]]:
        """The layouts and slots under which joins of the sets of ``slot`` may lie at ``step``, the current one first.

        For ``late`` steps after the end of a layout, its rows are read too. ``slot`` is one of the layout at ``step``.

        Raises:
            ConfigurationError: an older layout is no longer listed.
        """
        layout = self.at(step)
        yield layout, slot
        oldest = self.entries[0].from_step
        if oldest > 0 and step < oldest + self.late:
            raise ConfigurationError(
                f"Slots has no entry before step {oldest}, and step {step} may have rows of it: put the removed entry"
                f" back until step {oldest + self.late} is evaluated"
            )
        for older, end in self.with_ends():
            if end is not None and end < step <= end + self.late:
                yield from ((older, each) for each in layout.sharing(slot, older))

    def with_ends(self) -> Iterator[tuple[Layout, int | None]]:
        """Each layout with its last step; None for the newest."""
        for layout, later in zip(self.entries, (*self.entries[1:], None), strict=True):
            yield layout, None if later is None else later.from_step - 1

    def _following(self, layout: Layout) -> Layout | None:
        return next((later for later in self.entries if later.from_step > layout.from_step), None)
