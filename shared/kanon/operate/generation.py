"""``kanon doctor --new-generation``: begins a log generation, after a table was restored or made again.

From its first step on all noise is new, so that no noise meets two logs. The step lies behind all that was ever
evaluated: nothing released is drawn again, and what has crossed stays true to the end of its instance. Wake-ups were
computed from the old noise and may be gone with the old log, so every set is looked at once at the first step: a set
looked at only because somebody joined it could show that one join.

Every step of the command may be repeated: it can be cut short anywhere and run again.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from kanon.dynamo.tables import table_ids
from kanon.errors import KanonError
from kanon.gate.generations import LOG, Ids, as_recorded, begun, replaced
from kanon.gate.mechanism.above_threshold import SetState
from kanon.gate.names import slot_of
from kanon.gate.settings import LogGenerationEntry
from kanon.gate.storage.step_log import Row
from kanon.operate.stacks import RunningStack

LEASE = 3600
"""Seconds for which the slots are held: longer than reading Members and Statuses takes. Given back at the end."""
ROWS_A_BATCH = 1000
WIDEST_TOKEN = 32
"""Bits a token may have: those of a type that is no longer configured are not known."""
ENTRIES_SHOWN = 2
"""How many of the newest generations are to be configured; the newest alone decides."""


class GenerationRefusedError(KanonError):
    """Nothing was changed; the message says why."""


@dataclass(frozen=True)
class Situation:
    """What is recorded and what there is.

    Attributes:
        known: the tables of each generation by its first step; empty if Control knows of none.
        ids: the tables there are.
    """

    known: Mapping[int, Ids]
    ids: Ids

    @property
    def replaced(self) -> list[str]:
        """The tables that are not those of the newest generation; all, if there is none."""
        return replaced(list(self.known.values())[-1], self.ids) if self.known else sorted(self.ids)


def situation(stack: RunningStack) -> Situation:
    """Compare the tables with those recorded."""
    ids = table_ids(stack.client("dynamodb"), stack.evaluate.tables)
    return Situation(begun(stack.control.recorded("evaluate")), ids)


def begin(stack: RunningStack, holder: str, now: float) -> tuple[LogGenerationEntry, ...]:
    """Begin a log generation on the tables there are; the newest entries of ``LogGenerations``, to be deployed.

    A generation that was begun on these tables and not deployed is begun again.

    Args:
        stack: the stack.
        holder: a name for this run, new for each.
        now: Unix seconds.

    Raises:
        GenerationRefusedError: a worker is at a slot.
        UndecodableMembersError: a set's state cannot be read.
        LeaseLostError: a mark was moved meanwhile. Run again.
        ThrottledError: the log did not take every wake-up. Run again.
    """
    control, leased = stack.control, []
    try:
        marks, touched = {}, [0]
        for slot in range(stack.evaluate.slots):
            mark = control.lease(slot, holder, now, now + LEASE)
            if mark is None:
                raise GenerationRefusedError(f"a worker is at slot {slot}: wait until its lease has passed")
            leased.append(slot)
            marks[slot] = mark.evaluated_through
            if mark.evaluated_through is not None:
                touched.append(mark.evaluated_through + (mark.resume_after is not None))
        seen = situation(stack)
        crossings, horizons = stack.statuses.released()
        touched += [horizon.through for horizon in horizons.values()]
        touched += [steps[-1] for steps in crossings.values() if steps]
        touched += [state.evaluated or 0 for _, _, state in stack.members.states()]
        first = _first_step(stack, seen, max(touched), now)
        _keep_crossings(stack, crossings, first)
        _wake_all(stack, first)
        control.check("evaluate", {**_unrecorded(stack, seen), **as_recorded(first, seen.ids)})
        for slot, through in marks.items():
            if through != first - 1:
                control.advance(slot, through, first - 1)
        return _entries(begun(control.recorded("evaluate")))
    finally:
        for slot in leased:
            control.release(slot, holder)


def _first_step(stack: RunningStack, seen: Situation, touched: int, now: float) -> int:
    """The step behind all that was evaluated.

    ``touched`` is the last step that left a trace. A table of marks or of answers that was restored has forgotten
    some: then every step that is closed by now counts as evaluated.
    """
    declared = [entry.from_step for entry in stack.evaluate.log_generations]
    newest = max([0, *seen.known, *declared])
    if not seen.replaced and newest not in (0, *declared) and touched < newest:
        return newest  # begun before on these tables, not deployed yet
    if {"Control", "Statuses"} & set(seen.replaced):
        touched = max(touched, stack.schedule.last_closed(now))
    return max(touched, newest) + 1


def _keep_crossings(stack: RunningStack, crossings: Mapping[bytes, tuple[int, ...]], first: int) -> None:
    """Let Members and Statuses hold the same crossings: whichever of them was restored lacks some."""
    types, left = stack.evaluate.read_types(), dict(crossings)
    longest = max(type_.parameters.window for type_ in types.values())
    expires = stack.schedule.expiry(first + longest)
    for set_key, type_name, state in stack.members.states():
        shown = left.pop(set_key, ())
        known = tuple(sorted({*shown, *state.crossings})[-2:])
        if known[-1:] != state.crossings[-1:]:
            bits = types[type_name].parameters.client_bits if type_name in types else WIDEST_TOKEN
            stack.members.put(set_key, type_name, replace(state, crossings=known), bits, expires)
        if known[-1:] != shown[-1:]:
            stack.statuses.write(set_key, known, expires)
    for set_key, known in left.items():
        if known:
            # Its clients are forgotten: nothing wakes it. The type is told by the next join.
            stack.members.put(set_key, "", SetState(crossings=known, evaluated=first - 1), WIDEST_TOKEN, expires)


def _wake_all(stack: RunningStack, first: int) -> None:
    """Leave a wake-up for every set at the first step."""
    expires = stack.schedule.expiry(first)
    rows = (
        Row(first, slot_of(set_key, stack.evaluate.slots), set_key, None, type_name, expires)
        for set_key, type_name, state in stack.members.states()
        if type_name and state.members
    )
    for _, batch in groupby(enumerate(rows), key=lambda numbered: numbered[0] // ROWS_A_BATCH):
        stack.log.put_wake_ups(row for _, row in batch)


def _unrecorded(stack: RunningStack, seen: Situation) -> dict[str, str]:
    """The generations configured that a restored Control has forgotten; of their tables only the log is known."""
    missing = [entry for entry in stack.evaluate.log_generations if entry.from_step not in seen.known]
    return {name: text for entry in missing for name, text in as_recorded(entry.from_step, {LOG: entry.log}).items()}


def _entries(known: Mapping[int, Ids]) -> tuple[LogGenerationEntry, ...]:
    later: Sequence[tuple[int, Ids]] = [(from_step, ids) for from_step, ids in known.items() if from_step > 0]
    return tuple(LogGenerationEntry(log=ids[LOG], from_step=step) for step, ids in later[-ENTRIES_SHOWN:])
