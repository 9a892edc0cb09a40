"""What the commands of ``kanon operate`` share: leases of the slots that they change, and a record of retirements.

No worker evaluates a slot while a command holds its lease. A command that changes states keeps no earlier manifest, so
no recovery crosses it. A retirement changes no state: Control records the last step that it may affect.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from uuid import uuid4

from kanon.errors import KanonError
from kanon.findings import moment
from kanon.gate.fingerprints import missing_layouts, missing_noise_keys
from kanon.gate.mechanism.steps import step_at
from kanon.gate.storage.aws.control import Control, Place, SlotRow
from kanon.operate.stacks import RunningStack

OWNER = "operate"
RETIRE = "retire"
LEASE = 3600
"""Seconds for which a command leases slots: longer than reading their parts and Statuses takes."""


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


def places_at_work(stack: RunningStack, now: float, seconds: int = LEASE) -> dict[Place, SlotRow]:
    """The slots that a worker may evaluate from ``now`` on for ``seconds``, oldest layout first, with their rows."""
    schedule, rows = stack.schedule, dict(stack.control.rows())
    oldest, newest = schedule.oldest_in_log(now), step_at(now + seconds, schedule.period)
    found = {}
    for layout, end in stack.evaluate.layouts.with_ends():
        for slot in range(layout.slots):
            row = rows.get(place := Place(layout.from_step, slot), SlotRow())
            reached = row.run > 0 or end is None or end >= oldest
            if reached and layout.from_step <= newest and not row.retired:
                found[place] = row
    return found


@contextmanager
def leased(
    control: Control, places: Iterable[Place], now: float, seconds: int = LEASE
) -> Iterator[dict[Place, SlotRow]]:
    """Hold the leases of slots for at most ``seconds`` from ``now`` (Unix s) on, and release them at the end.

    Yields:
        The row of each slot, with the run of the command.

    Raises:
        ChangeRefusedError: a worker holds one of the slots.
    """
    holder, rows = f"operate {uuid4()}", dict[Place, SlotRow]()
    try:
        for place in places:
            row = control.lease(place, holder, now, now + seconds)
            if row is None:
                until = moment(control.row(place).lease_until or now)
                raise ChangeRefusedError(
                    f"a worker or a command holds slot {place.slot}: wait until its lease expires, at {until}"
                )
            rows[place] = row
        yield rows
    finally:
        for place, row in rows.items():
            control.release(place, row.run)


def refuse_moved(rows: Mapping[Place, SlotRow], expected: Mapping[Place, SlotRow]) -> None:
    """Check that no slot was evaluated since its row was read.

    Raises:
        ChangeRefusedError: one was.
    """
    for place, row in rows.items():
        if (row.evaluated_through, row.manifest) != (expected[place].evaluated_through, expected[place].manifest):
            raise ChangeRefusedError(f"slot {place.slot} was evaluated meanwhile: run the command again")
