"""Leases of an operator's command: it holds the slots that it changes, so no worker evaluates them meanwhile."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from uuid import uuid4

from kanon.gate.storage.control import Control, Mark
from kanon.operate.changes import ChangeRefusedError


@contextmanager
def leased(control: Control, slots: Iterable[int], now: float, seconds: int) -> Iterator[tuple[str, dict[int, Mark]]]:
    """Hold the leases of slots for at most ``seconds`` from ``now`` (Unix s) on, and release them at the end.

    Yields:
        The holder, a new name for each run, and the mark of each slot.

    Raises:
        ChangeRefusedError: a worker holds one of the slots.
    """
    holder, marks = f"operate {uuid4()}", dict[int, Mark]()
    try:
        for slot in slots:
            mark = control.lease(slot, holder, now, now + seconds)
            if mark is None:
                raise ChangeRefusedError(f"a worker holds slot {slot}: wait until its lease expires")
            marks[slot] = mark
        yield holder, marks
    finally:
        for slot in marks:
            control.release(slot, holder)


def refuse_moved(marks: Mapping[int, Mark], expected: Mapping[int, int | None]) -> None:
    """Check that no slot was evaluated since its mark was read.

    Raises:
        ChangeRefusedError: one was.
    """
    for slot, mark in marks.items():
        if mark.evaluated_through != expected[slot]:
            raise ChangeRefusedError(f"slot {slot} was evaluated meanwhile: run the command again")
