"""``kanon operate new-generation``: begins a log generation, after a table was restored or created again.

From its first step on all noise is new, so two logs never share noise. That step comes after every step that left a
trace: no released answer is drawn again, and a set that has crossed stays true to the end of its instance or hold. The
old wake-ups were computed from the old noise. So every set is decided at the first step. Otherwise a set would next be
evaluated when a client joins it, and its answer could reveal that one join.

A restored table of statuses may lack what was suppressed since: these sets are suppressed again first.

It is safe to interrupt the command anywhere and to run it again.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from kanon.dynamo.tables import table_ids
from kanon.errors import UndecodableMembersError
from kanon.gate.generations import LOG, Ids, as_recorded, recorded_generations, replaced_tables
from kanon.gate.publishing import Horizon
from kanon.gate.settings import LogGenerationEntry
from kanon.gate.storage.aws.control import Place, SlotRow
from kanon.gate.storage.aws.parts import PartObjects
from kanon.gate.storage.aws.true_objects import run_of, step_of
from kanon.operate.changes import leased, places_at_work, refuse_rolled_back
from kanon.operate.stacks import RunningStack
from kanon.operate.states import newest_crossing, pieces_of, put_states
from kanon.operate.suppressing import Suppressions

ENTRIES_SHOWN = 2
"""The number of newest generations to configure; only the newest is in force."""


@dataclass(frozen=True)
class Situation:
    """The recorded tables and the existing ones.

    Attributes:
        known: the tables of each generation by its first step; empty if Control has none.
        ids: the existing tables.
    """

    known: Mapping[int, Ids]
    ids: Ids

    @property
    def replaced(self) -> list[str]:
        """The tables that differ from those of the newest generation; all tables, if there is none."""
        return replaced_tables(list(self.known.values())[-1], self.ids) if self.known else sorted(self.ids)


def situation(stack: RunningStack) -> Situation:
    """Read the recorded tables and the existing ones."""
    ids = table_ids(stack.client("dynamodb"), stack.evaluate.tables)
    return Situation(recorded_generations(stack.control.recorded("evaluate")), ids)


def begin(stack: RunningStack, now: float) -> tuple[LogGenerationEntry, ...]:
    """Begin a log generation on the existing tables at ``now`` (Unix s).

    If a generation was begun on these tables but not deployed, it is begun again.

    Returns:
        The newest entries of ``LogGenerations``, for deployment.

    Raises:
        ChangeRefusedError: a worker holds a slot, or a deployment was rolled back.
        UndecodableMembersError: a part is missing or damaged.
        LeaseLostError: the lease has expired, and a worker has taken a slot. Run again.
    """
    refuse_rolled_back(stack)
    Suppressions(stack).again()
    control = stack.control
    with leased(control, places_at_work(stack, now), now) as rows:
        seen = situation(stack)
        for place, row in rows.items():
            used = max(map(run_of, stack.parts(place).names()), default=0)
            if used and ("Control" in seen.replaced or row.evaluated_through is None or used >= row.run):
                # Control is of another time than the objects: its manifest may be gone, and its runs may be used
                later = replace(row, run=control.raise_run(place, row.run, used))
                rows[place] = _found(stack, place, later)
        crossings, horizons = stack.statuses.released()
        first = _first_step(stack, seen, max(_traces(rows, horizons), newest_crossing(crossings)), now)
        marks = _marks(stack, rows, first)
        for place in marks:  # once the generation is recorded, no replay could compute what is lost
            for piece in pieces_of(stack, place, rows[place]):
                stack.parts(place).read(piece)
        control.check("evaluate", {**_unrecorded(stack, seen), **as_recorded(first, seen.ids)})
        for place, mark in marks.items():
            row = rows[place]
            put_states(stack, place, row, mark, pieces_of(stack, place, row), crossings)
            _put_horizon(stack, place, row, _newest(place.slot, rows, horizons))
        return newest_entries(recorded_generations(control.recorded("evaluate")))


def _marks(stack: RunningStack, rows: Mapping[Place, SlotRow], first: int) -> dict[Place, int]:
    """The new marks before the step ``first``. A slot that has evaluated its last step is left out: the next has it."""
    ends = {place: stack.evaluate.layouts.last_step(place.layout, first - 1) for place in rows if place.layout < first}
    return {place: end for place, end in ends.items() if end == first - 1 or rows[place].evaluated_through != end}


def _found(stack: RunningStack, place: Place, row: SlotRow) -> SlotRow:
    """The row with the newest manifest in the bucket."""
    parts = stack.parts(place)
    names = sorted(parts.names(), key=lambda name: (step_of(name), run_of(name)), reverse=True)
    complete = (name for name in names if name.endswith(".list") and _is_complete(parts, name))
    if (manifest := next(complete, None)) is None:
        return row
    stack.control.restate(place, row.run, step_of(manifest), [manifest])
    return replace(row, manifest=manifest, evaluated_through=step_of(manifest))


def _is_complete(parts: PartObjects, name: str) -> bool:
    """Whether a list is that of a whole step, and all its parts are there."""
    try:
        listed = parts.list_of(name)
    except UndecodableMembersError:
        return False
    return listed.end is None and all(parts.has(piece.name) for piece in listed.pieces)


def _traces(rows: Mapping[Place, SlotRow], horizons: Mapping[int, Horizon]) -> int:
    """The last step that left a trace."""
    of_rows = (step for row in rows.values() for step in (row.evaluated_through, row.begun) if step is not None)
    return max(0, 0, *of_rows, *(horizon.through for horizon in horizons.values()))


def _first_step(stack: RunningStack, seen: Situation, touched: int, now: float) -> int:
    """The step after every evaluated step.

    ``touched`` is the last step that left a trace. If the table of marks or of answers was restored, it has lost some
    traces. Then every closed step counts as evaluated.
    """
    declared = [entry.from_step for entry in stack.evaluate.log_generations]
    newest = max([0, *seen.known, *declared])
    if not seen.replaced and newest not in (0, *declared) and touched < newest:
        return newest  # begun before on these tables, not deployed yet
    if {"Control", "Statuses"} & set(seen.replaced):
        touched = max(touched, stack.schedule.last_closed(now))
    return max(touched, newest) + 1


def _newest(slot: int, rows: Mapping[Place, SlotRow], horizons: Mapping[int, Horizon]) -> Horizon | None:
    """The newest horizon of a slot: a table that was restored or emptied has an older one, or none."""
    known = [horizons.get(slot), *(row.horizon for place, row in rows.items() if place.slot == slot)]
    return max((each for each in known if each is not None), key=lambda each: each.through, default=None)


def _put_horizon(stack: RunningStack, place: Place, row: SlotRow, horizon: Horizon | None) -> None:
    """Write it to both tables: readers see what they saw, and no step is evaluated too far after that.

    It names no objects of true sets, so the table answers: the objects may know crossings that it had lost.
    """
    if horizon is not None:
        horizon = replace(horizon, shows=None, earlier_shows=None, earliest_shows=None)
        stack.control.put_horizon(place, row.run, horizon, stack.statuses.horizon(place.slot, horizon))


def _unrecorded(stack: RunningStack, seen: Situation) -> dict[str, str]:
    """The configured generations that a restored Control has lost. Of their tables, only the log is known."""
    missing = [entry for entry in stack.evaluate.log_generations if entry.from_step not in seen.known]
    return {name: text for entry in missing for name, text in as_recorded(entry.from_step, {LOG: entry.log}).items()}


def newest_entries(known: Mapping[int, Ids]) -> tuple[LogGenerationEntry, ...]:
    """The newest recorded generations, as ``LogGenerations`` names them."""
    later: Sequence[tuple[int, Ids]] = [(from_step, ids) for from_step, ids in known.items() if from_step > 0]
    return tuple(LogGenerationEntry(log=ids[LOG], from_step=step) for step, ids in later[-ENTRIES_SHOWN:])
