"""Use case on AWS: delete the objects that no recovery needs any more (docs/proofs/segments.md).

An object may go if its run is over and nothing in its slot's row leads to it: then nothing ever will. A slot of an old
layout is retired first, when readers see steps of all slots that continue it.
"""

from collections.abc import Callable
from dataclasses import dataclass

from kanon.errors import UndecodableMembersError
from kanon.gate.listed_sets import name_beside
from kanon.gate.slots import Layouts
from kanon.gate.storage.aws.control import Control, Place, SlotRow
from kanon.gate.storage.aws.gathering import gathered
from kanon.gate.storage.aws.parts import PartObjects
from kanon.gate.storage.aws.true_objects import step_of
from kanon.gate.true_sets import PREFIX


@dataclass(frozen=True)
class Sweeping:
    """The use case with its storage. ``publish_margin``: in seconds, by which the clocks of readers may be late."""

    control: Control
    parts_of: Callable[[Place], PartObjects]
    layouts: Layouts
    publish_margin: int

    def sweep(self, now: float) -> None:
        """Retire the slots that nobody needs, then delete what nothing names.

        Raises:
            UndecodableMembersError: a list of parts is missing or damaged. Only its slot is not swept.
        """
        damaged = None
        for place, row in self.control.rows():
            if not row.retired and row.evaluated_through is not None and self._heirs(place):
                command = self.control.begin_command()  # before the rows of the heirs are read
                if self._is_continued(place, now):
                    self.control.retire(place, command)
            try:
                self._sweep(place)
            except UndecodableMembersError as error:
                damaged = error
        if damaged is not None:
            raise damaged

    def _heirs(self, place: Place) -> list[Place]:
        """The slots that continue a slot."""
        entries = [layout.from_step for layout in self.layouts.entries]
        later = [step for step in entries if step > place.layout]
        if place.layout not in entries or not later:
            return []
        return [Place(later[0], slot) for slot in self.layouts.following(place.slot, place.layout)]

    def _is_continued(self, place: Place, now: float) -> bool:
        """Whether every reader sees a step of each slot that continues this one."""
        horizons = [self.control.row(heir).horizon for heir in self._heirs(place)]
        return all(horizon is not None and horizon.at(now - self.publish_margin) is not None for horizon in horizons)

    def _sweep(self, place: Place) -> None:
        """Delete the objects of a slot that its row does not lead to."""
        parts, row = self.parts_of(place), self.control.row(place)
        while True:
            try:
                parts.sweep(referenced(row, parts), row.run)
            except UndecodableMembersError:  # gone if another sweep is faster; then the row has changed too
                before, row = row, self.control.row(place)
                if row == before:
                    raise
            else:
                return


def referenced(row: SlotRow, parts: PartObjects) -> set[str]:
    """The objects to which a row leads. Listed sets lie beside true sets, where a type is listed."""
    named = _named(row, parts)
    return named | {name_beside(name) for name in named if name.startswith(PREFIX)}


def _named(row: SlotRow, parts: PartObjects) -> set[str]:
    """The objects to which a row leads. Nobody reads a slot that is retired."""
    lists = {*row.kept, *([] if row.progress is None else [row.progress.draft])}
    true = set() if row.horizon is None or row.retired else row.horizon.named
    if row.remaking is not None:
        true.add(row.remaking.name)
    mark, read = row.evaluated_through, set[str]()
    if row.gathered is not None and (mark is None or step_of(row.gathered) > mark):
        read = {row.gathered, *gathered(parts, row.gathered).names}
    return {*lists, *true, *read, *(piece.name for name in lists for piece in parts.list_of(name).pieces)}
