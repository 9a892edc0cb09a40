"""What workers have read of a step, where that outlasts one of them: objects in the bucket, listed in the slot's row.

An object has what one worker has read. The list names the objects, and the ranges of keys that nobody has read yet. It
counts only for its step and for the manifest on which that builds: no command changes joins and leaves both as they
are. Joins of a closed step do not change otherwise, so each page is read once, and again if its worker was stopped.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

from kanon.errors import OutOfTimeError, UndecodableMembersError
from kanon.gate.storage.aws.control import Control, Place, SlotRow
from kanon.gate.storage.aws.parts import PartObjects
from kanon.gate.storage.aws.step_joins import Range
from kanon.gate.storage.aws.true_objects import step_of


class Gathered(NamedTuple):
    """What was read of a step.

    Attributes:
        base: the manifests on which the step builds, with commas.
        names: the objects.
        rest: the ranges that are not read yet.
    """

    base: str
    names: tuple[str, ...]
    rest: tuple[Range, ...]


@dataclass
class Gathering:
    """What a run and the ones before it have read of a step.

    Attributes:
        row: the row of the slot as it was leased.
        base: the manifests on which the step builds that is read, with commas.
    """

    control: Control
    parts: PartObjects
    place: Place
    row: SlotRow
    time_left: Callable[[], float]
    base: str = ""
    _others: tuple[str, ...] = ()
    _own: tuple[str, ...] = ()

    def rest(self, step: int) -> Sequence[Range] | None:
        """The ranges of a step that are still to be read; None if nothing was put yet."""
        self._others = self._own = ()
        if self.row.gathered is None or step_of(self.row.gathered) != step:
            return None
        with suppress(UndecodableMembersError):  # then the step is read again
            found = gathered(self.parts, self.row.gathered)
            if found.base == self.base:
                self._others = found.names
                return found.rest
        return None

    def put(self, step: int, contents: Iterable[bytes], rest: Sequence[Range]) -> None:
        """Put what this worker has read since the last time, and record the ranges that are left.

        Raises:
            LeaseLostError: the run is over.
        """
        run = self.row.run
        self._own += tuple(self.parts.put_read(content, step, run) for content in contents)
        found = Gathered(self.base, (*self._others, *self._own), tuple(rest))
        self.control.record_gathered(self.place, run, self.parts.put_read(_encoded(found), step, run))

    def contents(self) -> Iterator[bytes]:
        """What other workers have put of that step.

        Raises:
            OutOfTimeError: an object is missing or damaged. The next worker reads the step again.
        """
        try:
            yield from map(self.parts.read_of, self._others)
        except UndecodableMembersError as error:
            self.control.record_gathered(self.place, self.row.run, None)
            raise OutOfTimeError from error


def gathered(parts: PartObjects, name: str) -> Gathered:
    """A list.

    Raises:
        UndecodableMembersError: it is missing or damaged.
    """
    found: dict[str, Any] = json.loads(parts.read_of(name))
    rest = (
        Range(bytes.fromhex(partition), bytes.fromhex(first), bytes.fromhex(last), whole)
        for partition, first, last, whole in found["rest"]
    )
    return Gathered(found["base"], tuple(found["names"]), tuple(rest))


def _encoded(found: Gathered) -> bytes:
    rest = [(part.partition.hex(), part.first.hex(), part.last.hex(), part.whole) for part in found.rest]
    return json.dumps({**found._asdict(), "rest": rest}).encode()
