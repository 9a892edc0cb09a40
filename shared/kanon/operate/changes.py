"""What the commands of ``kanon operate`` share: records of their changes, and leases of the slots that they change.

Recorded is a change that an evaluation from an earlier step would not repeat. Control keeps one attribute for each: the
command, and the last step that it may affect. No worker evaluates a slot while a command holds its lease.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from uuid import uuid4

from kanon.errors import KanonError
from kanon.gate.fingerprints import missing_layouts, missing_noise_keys
from kanon.gate.storage.aws.control import Control, Mark
from kanon.operate.stacks import RunningStack

OWNER = "operate"
SKIP, REPAIR, RETIRE = "skip", "repair", "retire"


class ChangeRefusedError(KanonError):
    """Nothing was changed; the message says why."""


def record_change(control: Control, what: str, step: int) -> None:
    """Record a change before it is made. ``step`` is the last step that it may affect."""
    control.check(OWNER, {f"{what} {step}": "done"})


def changed_fingerprints(recorded: Mapping[str, str], current: Mapping[str, str]) -> list[str]:
    """The names of the fingerprints that differ from the recorded ones."""
    return [name for name, value in current.items() if recorded.get(name, value) != value]


def refuse_rolled_back(stack: RunningStack) -> None:
    """Check that the stack is configured with everything in force: a rollback leaves entries out.

    Raises:
        ChangeRefusedError: it lacks an entry.
    """
    recorded, settings = stack.control.recorded("evaluate"), stack.evaluate
    if missing_layouts(recorded, settings.layouts) or missing_noise_keys(recorded, settings.noise_keys):
        raise ChangeRefusedError(
            "an entry of Slots or NoiseKeys is recorded and not configured, because a deployment was rolled back:"
            " deploy it again first; `kanon doctor` shows the value"
        )


def newest_change(control: Control) -> tuple[int, str] | None:
    """The last step that a change may affect, and the command; None if nothing was changed."""
    changes = [name.split() for name in control.recorded(OWNER)]
    return max(((int(step), what) for what, step in changes), default=None)


def step_in_progress(stack: RunningStack) -> int:
    """The newest step that a worker may have begun: the one after the largest mark."""
    return 1 + max((mark or 0 for mark in stack.marks.values()), default=0)


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
