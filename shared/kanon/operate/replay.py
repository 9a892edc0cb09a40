"""``kanon operate replay``: evaluates again from an earlier copy of Members, and uses the result if it is the same.

Answers are a function of the log and the keys. So the states of an earlier step, evaluated again with the same log,
give the same crossings, bit for bit. The command evaluates in the table that holds the earlier states, compares every
crossing with Statuses, and only then gives its states to the stack. A difference means that the released answers came
from other data (a version with an error, or a log that lacks rows). Two data sets under one noise would reveal their
difference. So the command refuses, and only a new log generation may continue.

Joins and queries continue meanwhile. It is safe to interrupt the command anywhere and to run it again.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import repeat

from kanon.dynamo.batches import chunks
from kanon.dynamo.tables import described
from kanon.errors import ConfigurationError, LeaseLostError
from kanon.gate.evaluation import Evaluation, NoiseKeys
from kanon.gate.fingerprints import fingerprints, noise_key_fingerprints, refuse_types
from kanon.gate.generations import LOG, as_recorded, in_force, refuse_log_generations
from kanon.gate.mechanism.steps import end_of
from kanon.gate.slots import Layout
from kanon.gate.stamps import put_stamps
from kanon.gate.storage.aws.control import Mark
from kanon.gate.storage.aws.slot_rows import key_of_slot
from kanon.gate.storage.members import Members
from kanon.operate.changes import (
    ChangeRefusedError,
    changed_fingerprints,
    leased,
    newest_change,
    refuse_moved,
    refuse_rolled_back,
)
from kanon.operate.generation import situation
from kanon.operate.stacks import RunningStack

LEASE = 6 * 3600
"""Seconds for which the slots are leased; renewed after each step. Released at the end."""
ITEMS_A_BATCH = 1000
LOOK = 30
"""Seconds between two looks at a table that is being restored."""


@dataclass(frozen=True)
class ReplayPlan:
    """The inputs of a replay.

    Attributes:
        source: the table with the states.
        step: the states are complete through this step.
        layout: the slots.
        marks: the mark of each slot of any layout; None if there is none, or Control has lost it.
        complete: the last step of each slot that was completed: its mark, or its horizon if that is later.
        targets: the last step of each slot that left a trace: completed, or begun by a worker that died inside it.
        crossings: the crossings in Statuses by set key.
        last: the last step that left a trace in any slot of any layout.
    """

    source: str
    step: int
    layout: Layout
    marks: Mapping[int, int | None]
    complete: Mapping[int, int]
    targets: Mapping[int, int]
    crossings: Mapping[bytes, tuple[int, ...]]
    last: int


class _Unstamped(Members):
    """Members without new stamps. A replay that is refused or interrupted leaves them older than the mark.

    So evaluation stays stopped, also after a replay on the stack's own table.
    """

    def stamp(self, slot: int, step: int) -> None: ...


class _NoStatuses:
    """Replaces Statuses: writes nothing."""

    def write(self, set_key: bytes, crossings: tuple[int, ...], expires: int) -> None: ...

    def move_horizon(self, slot: int, step: int, visible_from: int) -> None: ...


@dataclass(frozen=True)
class _OwnMarks:
    """Replaces Control: the slot begins at ``step``, and every completed step renews the leases.

    ``recorded`` reads the fingerprints recorded for a function.
    """

    step: int
    renew: Callable[[], None]
    recorded: Callable[[str], dict[str, str]]

    def lease(self, *_: object) -> Mark:
        return Mark(self.step, None, stamped=False)  # the plan has compared the stamps

    def evaluated_through(self, _: int) -> int:
        return self.step

    def release(self, slot: int, holder: str, resume: tuple[int, bytes] | None = None) -> None: ...

    def advance(self, *_: object) -> None:
        self.renew()


def wait_until_restored(stack: RunningStack, source: str, sleep: Callable[[float], None]) -> None:
    """Wait until a table that is being restored can be read. It may take hours.

    Raises:
        ChangeRefusedError: there is no such table, or it cannot become ready.
    """
    client = stack.client("dynamodb")
    try:
        while (status := described(client, {source: source})[source]["TableStatus"]) in ("CREATING", "UPDATING"):
            sleep(LOOK)
    except client.exceptions.ResourceNotFoundException:
        raise ChangeRefusedError(f"there is no table {source}: restore Members into it first") from None
    if status != "ACTIVE":
        raise ChangeRefusedError(f"table {source} is {status}: restore Members into another table")


def plan(stack: RunningStack, step: int, source: str | None, now: float) -> ReplayPlan:
    """Plan a replay from ``step``, or refuse it.

    Args:
        stack: the stack.
        step: the states of ``source`` are complete through this step.
        source: the name of the table with the states of that time; None if it is the stack's own.
        now: Unix seconds.

    Raises:
        ChangeRefusedError: the log or Statuses were replaced, the log does not reach back, an operator changed
            something since, the states are not complete through ``step``, or a deployment was rolled back.
        ConfigurationError: the configuration differs from the recorded one.
    """
    refuse_rolled_back(stack)
    _refuse_configuration(stack)
    crossings, horizons = stack.statuses.released()
    layouts = stack.evaluate.layouts
    layout = layouts.at(step + 1)
    recorded = stack.marks
    marks = {slot: recorded.get(slot) for slot in layouts.slots}
    done = {slot: max(mark or 0, horizons[slot].through if slot in horizons else 0) for slot, mark in marks.items()}
    complete = {slot: done[slot] for slot in range(layout.slots)}
    targets = dict(complete)
    for set_key, steps in crossings.items():
        slot = layout.slot_of(set_key)
        targets[slot] = max(targets[slot], *steps)
    last = max(*targets.values(), *done.values())
    found = ReplayPlan(source or stack.evaluate.members_table, step, layout, marks, complete, targets, crossings, last)
    _refuse_steps(stack, found, now)
    evaluated_by = range(layouts.at(step).slots)  # another layout may begin after the step
    stamps = Members(stack.client("dynamodb"), found.source).stamps(evaluated_by)
    for slot in evaluated_by:
        if stamps.get(slot, -1) < step:
            seen = f"through step {stamps[slot]}" if slot in stamps else "for no step"
            raise ChangeRefusedError(
                f"table {found.source}: the states of slot {slot} are complete {seen}: give that step, or a table of a"
                f" later time"
            )
    return found


def replay(stack: RunningStack, found: ReplayPlan, clock: Callable[[], float]) -> None:
    """Run the result of :func:`plan`, compare the crossings with Statuses, and give the states to the stack.

    ``clock`` gives Unix seconds.

    Raises:
        ChangeRefusedError: a worker holds a slot or has moved its mark, or a crossing differs.
        LeaseLostError: another worker took a slot. Run again.
        ThrottledError: a table did not answer or store everything. Run again.
        UndecodableMembersError: a state cannot be decoded.
    """
    control = stack.control
    with leased(control, found.marks, clock(), LEASE) as (holder, marks):
        refuse_moved(marks, found.marks)

        def renew() -> None:
            for slot in marks:
                if control.lease(slot, holder, clock(), clock() + LEASE) is None:
                    raise LeaseLostError(f"another worker took slot {slot}: run the command again")

        _evaluate(stack, found, holder, renew)
        _compare(stack, found)
        renew()
        for slot in marks:  # the states of the table that is given up may be ahead there; these are not
            control.forget_place(slot, holder)
        _adopt(stack, found)


def _refuse_configuration(stack: RunningStack) -> None:
    """Refuse if keys, types or tables are not those with which the answers were released."""
    settings, types = stack.evaluate, stack.evaluate.read_types()
    recorded = stack.control.recorded("evaluate")
    seen = situation(stack)
    lost = sorted({LOG, "Statuses"}.intersection(seen.replaced)) if seen.known else []
    if lost:
        raise ChangeRefusedError(
            f"{' and '.join(lost)} was restored or created again: what was released cannot be compared or evaluated"
            f" again; begin a new log generation with `kanon operate new-generation`"
        )
    newest = list(seen.known.values())[-1] if seen.known else seen.ids
    refuse_log_generations(recorded, settings.log_generations, newest)
    refuse_types(recorded, types)
    of_keys = noise_key_fingerprints(settings.noise_keys, stack.noise_keys())
    changed = changed_fingerprints(recorded, {**fingerprints(settings, types, ()), **of_keys})
    if changed:
        raise ConfigurationError(f"{', '.join(changed)} differ from what this deployment started with: restore them")


def _refuse_steps(stack: RunningStack, found: ReplayPlan, now: float) -> None:
    """Refuse if the log does not reach back to the step, or an operator changed something after it."""
    schedule, types, last = stack.schedule, stack.evaluate.read_types(), found.last
    oldest = schedule.oldest_allowed(now) - 1
    generation = in_force(stack.evaluate.log_generations)
    compared = min(type_.parameters.two_crossings for type_ in types.values())
    if not last or found.step > last:
        raise ChangeRefusedError(f"nothing was evaluated after step {found.step}: there is nothing to replay")
    if last > schedule.last_closed(now):
        raise ChangeRefusedError(f"step {last} is not closed yet: a clock was wrong; wait until it is")
    if found.step < oldest:
        raise ChangeRefusedError(f"the log does not reach back that far: give step {oldest} or later")
    if generation is not None and found.step < generation.from_step - 1:
        raise ChangeRefusedError(
            f"a log generation begins at step {generation.from_step}: give step {generation.from_step - 1} or later"
        )
    for entry in stack.evaluate.layouts.entries:
        if found.step + 1 < entry.from_step <= last:
            raise ChangeRefusedError(
                f"the number of slots changes at step {entry.from_step}: give step {entry.from_step - 1} or later"
            )
    if found.step < last - compared:
        raise ChangeRefusedError(
            f"Statuses keep the last two crossings of a set, and there may be more in {compared + 1} steps: give step"
            f" {last - compared} or later"
        )
    change = newest_change(stack.control)
    if change is not None and found.step < change[0]:
        raise ChangeRefusedError(
            f"`kanon operate {change[1]}` changed what is evaluated up to step {change[0]}: give that step or a later"
            f" one"
        )


def _evaluate(stack: RunningStack, found: ReplayPlan, holder: str, renew: Callable[[], None]) -> None:
    """Evaluate the steps of each slot up to its target, in the source table."""
    settings = stack.evaluate
    evaluation = Evaluation(
        types=settings.read_types(),
        noise_keys=NoiseKeys.of(settings.noise_keys, stack.noise_keys()),
        deployment=settings.deployment,
        schedule=stack.schedule,
        log=stack.log,
        members=_Unstamped(stack.client("dynamodb"), found.source),
        statuses=_NoStatuses(),  # type: ignore[arg-type]
        control=_OwnMarks(found.step, renew, stack.control.recorded),  # type: ignore[arg-type]
        check_control=lambda: None,
        generation=in_force(settings.log_generations),
    )
    for slot, target in found.targets.items():
        closed = end_of(target, settings.period) + settings.grace
        evaluation.run(slot, holder, repeat(float(closed)).__next__, repeat(float("inf")).__next__)


def _compare(stack: RunningStack, found: ReplayPlan) -> None:
    """Refuse unless every crossing in Statuses was decided again, and no other one of a completed step."""
    left = {key: steps for key, steps in found.crossings.items() if steps}
    same = True
    for set_key, _, state in _source(stack, found).states():
        released = left.pop(set_key, ())
        decided = state.crossings
        if _is_unwritten(found, set_key, decided, released):
            decided, released = decided[:-1], released[-1:]
        if released:
            same &= decided == released
        else:  # the crossings before the replay have expired in Statuses
            same &= not any(step > found.step for step in decided)
    if left or not same:
        raise ChangeRefusedError(
            "the replay differs from what was released: the log lacks rows, or a version released wrong answers;"
            " begin a new log generation with `kanon operate new-generation`"
        )


def _is_unwritten(found: ReplayPlan, set_key: bytes, decided: tuple[int, ...], released: tuple[int, ...]) -> bool:
    """Whether the newest crossing was not written because a worker died inside its step."""
    slot = found.layout.slot_of(set_key)
    return bool(decided) and decided[-1] > found.complete[slot] and released[-1:] != decided[-1:]


def _adopt(stack: RunningStack, found: ReplayPlan) -> None:
    """Give the states to the stack, write what a dead worker left unwritten, and record the tables and stamps."""
    if found.source != stack.evaluate.members_table:
        _copy(stack, found)
    memory = stack.longest_memory
    for set_key, _, state in stack.members.states():
        if _is_unwritten(found, set_key, state.crossings, found.crossings.get(set_key, ())):
            stack.statuses.write(set_key, state.crossings, stack.schedule.expiry(state.crossings[-1] + memory))
    for slot, target in found.targets.items():
        put_stamps(slot, target, stack.members, stack.statuses)
        stack.control.advance(slot, found.marks[slot], found.complete[slot])
    seen = situation(stack)
    newest = list(seen.known)[-1] if seen.known else 0
    stack.control.record("evaluate", as_recorded(newest, seen.ids))


def _copy(stack: RunningStack, found: ReplayPlan) -> None:
    """Replace the stack's Members by the source. They have no stamps meanwhile: a part of a copy stops evaluation."""
    own = stack.members
    own.remove([key_of_slot(slot) for slot in found.targets])
    kept = set()
    for items in chunks(_source(stack, found).items(), ITEMS_A_BATCH):
        own.put_all(items)
        kept |= {item["set_key"]["B"] for item in items}
    own.remove(item["set_key"]["B"] for item in own.items() if item["set_key"]["B"] not in kept)


def _source(stack: RunningStack, found: ReplayPlan) -> Members:
    return Members(stack.client("dynamodb"), found.source)
