"""``kanon operate new-generation``: begins a log generation, after a table was restored or created again.

From its first step on all noise is new, so two logs never share noise. That step comes after every evaluated step: no
released answer is drawn again, and a set that has crossed stays true to the end of its instance or hold. The old
wake-ups were computed from the old noise and may be lost with the old log. So every set gets a wake-up at the first
step. Otherwise a set would next be evaluated when a client joins it, and its answer could reveal that one join.

It is safe to interrupt the command anywhere and to run it again.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from kanon.dynamo.batches import chunks
from kanon.dynamo.tables import table_ids
from kanon.gate.generations import LOG, Ids, as_recorded, recorded_generations, replaced_tables
from kanon.gate.mechanism.above_threshold import SetState
from kanon.gate.settings import LogGenerationEntry
from kanon.gate.stamps import put_stamps
from kanon.gate.storage.aws.step_log import Row
from kanon.operate.changes import leased, refuse_rolled_back
from kanon.operate.stacks import RunningStack

LEASE = 3600
"""Seconds for which the slots are leased: longer than reading Members and Statuses takes. Released at the end."""
ROWS_A_BATCH = 1000
WIDEST_TOKEN = 32
"""The most bits of a token, used for types that are no longer configured and whose number of bits is unknown."""
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
        UndecodableMembersError: the state of a set cannot be decoded.
        LeaseLostError: a mark was moved meanwhile. Run again.
        ThrottledError: the log did not store every wake-up. Run again.
    """
    refuse_rolled_back(stack)
    control = stack.control
    with leased(control, stack.evaluate.layouts.slots, now, LEASE) as (_, marks):
        seen = situation(stack)
        crossings, horizons = stack.statuses.released()
        evaluated = [(mark.evaluated_through or 0) + (mark.resume_after is not None) for mark in marks.values()]
        touched = [0, *evaluated]
        touched += [horizon.through for horizon in horizons.values()]
        touched += [steps[-1] for steps in crossings.values() if steps]
        touched += [state.evaluated or 0 for _, _, state in stack.members.states()]
        first = _first_step(stack, seen, max(touched), now)
        _keep_crossings(stack, crossings, first)
        _wake_all(stack, first)
        control.check("evaluate", {**_unrecorded(stack, seen), **as_recorded(first, seen.ids)})
        for slot, mark in marks.items():
            put_stamps(slot, first - 1, stack.members, stack.statuses)
            if mark.evaluated_through != first - 1:
                control.advance(slot, mark.evaluated_through, first - 1)
        return _entries(recorded_generations(control.recorded("evaluate")))


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


def _keep_crossings(stack: RunningStack, crossings: Mapping[bytes, tuple[int, ...]], first: int) -> None:
    """Give Members and Statuses the same crossings: a restored table lacks some."""
    types, left = stack.evaluate.read_types(), dict(crossings)
    expires = stack.schedule.expiry(first + stack.longest_memory)
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
            # Its members are lost, so it needs no wake-up. The next join brings its type.
            stack.members.put(set_key, "", SetState(crossings=known, evaluated=first - 1), WIDEST_TOKEN, expires)


def _wake_all(stack: RunningStack, first: int) -> None:
    """Write a wake-up for every set at the first step."""
    expires = stack.schedule.expiry(first)
    rows = (
        Row(first, set_key, None, type_name, expires)
        for set_key, type_name, state in stack.members.states()
        if type_name and state.members
    )
    for some in chunks(rows, ROWS_A_BATCH):
        stack.log.put_wake_ups(some)


def _unrecorded(stack: RunningStack, seen: Situation) -> dict[str, str]:
    """The configured generations that a restored Control has lost. Of their tables, only the log is known."""
    missing = [entry for entry in stack.evaluate.log_generations if entry.from_step not in seen.known]
    return {name: text for entry in missing for name, text in as_recorded(entry.from_step, {LOG: entry.log}).items()}


def _entries(known: Mapping[int, Ids]) -> tuple[LogGenerationEntry, ...]:
    later: Sequence[tuple[int, Ids]] = [(from_step, ids) for from_step, ids in known.items() if from_step > 0]
    return tuple(LogGenerationEntry(log=ids[LOG], from_step=step) for step, ids in later[-ENTRIES_SHOWN:])
