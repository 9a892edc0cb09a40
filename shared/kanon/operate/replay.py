"""``kanon operate replay``: evaluates again from earlier states, and uses the result if it gives the released answers.

Answers are a function of the log and the keys. So a manifest that is kept, evaluated again with the same log, gives the
same crossings, bit for bit. The command puts the new parts beside the old ones, compares every crossing with Statuses,
and only then gives them to the slots. A difference means that the released answers came from other data (a version
with an error, or a log that lacks rows). Two data sets under one noise would reveal their difference. So the command
refuses, and only a new log generation may continue.

No mark moves: until the new states are in place, everything stays as it is. Joins and queries continue meanwhile. It is
safe to interrupt the command anywhere and to run it again.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from kanon.errors import ConfigurationError, UndecodableMembersError
from kanon.gate.deciding import Decisions, NoiseKeys
from kanon.gate.fingerprints import (
    RETIRED,
    fingerprints,
    noise_key_fingerprints,
    recorded_names,
    refuse_types,
)
from kanon.gate.generations import in_force, refuse_log_generations
from kanon.gate.storage.aws.control import Place, Progress, SlotRow
from kanon.gate.storage.aws.parts import PartList
from kanon.gate.storage.aws.step_joins import StepJoins
from kanon.gate.storage.aws.true_objects import step_of
from kanon.gate.storage.protocols import Piece
from kanon.operate.changes import (
    ChangeRefusedError,
    changed_fingerprints,
    leased,
    newest_change,
    places_at_work,
    refuse_moved,
    refuse_rolled_back,
)
from kanon.operate.generation import situation
from kanon.operate.stacks import RunningStack
from kanon.operate.states import CrossingsOfSets, has, keys_of_place, pieces_of

LEASE = 6 * 3600
"""Seconds for which the slots are leased: longer than other commands take."""
NO_END = 2**62


class Base(NamedTuple):
    """What a slot is evaluated again from.

    Attributes:
        row: its row.
        step: the states are those after this step.
        manifest: they are in this manifest; None: in those of the slots that it continues.
    """

    row: SlotRow
    step: int
    manifest: str | None

    @property
    def mark(self) -> int:
        """The last step evaluated."""
        return self.row.evaluated_through or 0

    @property
    def last(self) -> int:
        """The last step evaluated or begun."""
        return max(self.mark, self.row.begun or 0)


class Again(NamedTuple):
    """A slot, evaluated again: its parts after the mark, and the list of those after the step that is begun."""

    pieces: tuple[Piece, ...]
    progress: Progress | None
    name: str


@dataclass(frozen=True)
class ReplayPlan:
    """The inputs of a replay: what each slot begins with, oldest layout first."""

    bases: Mapping[Place, Base]

    @property
    def first(self) -> int:
        """The first step that is evaluated again."""
        return 1 + min(base.step for base in self.bases.values())

    @property
    def last(self) -> int:
        """The last one, which a worker may have begun only."""
        return max(base.last for base in self.bases.values())


def plan(stack: RunningStack, step: int | None, now: float) -> ReplayPlan:
    """Plan a replay, or refuse it.

    Args:
        stack: the stack.
        step: each slot begins with its newest manifest that is not later; None: with its oldest one.
        now: Unix seconds.

    Raises:
        ChangeRefusedError: a table was replaced, the log does not reach back, an operator changed something since, no
            such states are kept, no step after them is evaluated, or a deployment was rolled back.
        ConfigurationError: the configuration differs from the recorded one.
    """
    refuse_rolled_back(stack)
    _refuse_configuration(stack)
    rows = places_at_work(stack, now, LEASE)
    bases = {
        place: _base(stack, place, row, step, now) for place, row in rows.items() if row.evaluated_through is not None
    }
    if not bases:
        raise ChangeRefusedError("nothing was evaluated: there is nothing to replay")
    found = ReplayPlan(bases)
    if found.first > found.last:
        raise ChangeRefusedError(
            f"no step after {found.last} is evaluated: begin with earlier states (--from), if any are kept;"
            " otherwise `kanon operate repair` mends what cannot be read"
        )
    return found


def replay(stack: RunningStack, found: ReplayPlan, now: float) -> None:
    """Run the result of :func:`plan`, compare the crossings with Statuses, and give the states to the slots.

    ``now`` is in Unix s.

    Raises:
        ChangeRefusedError: a worker holds a slot or has moved its mark, or a crossing differs.
        LeaseLostError: the lease has expired, and a worker has taken a slot. Run again.
        UndecodableMembersError: a part is missing or damaged: begin with another manifest.
    """
    with leased(stack.control, places_at_work(stack, now, LEASE), now, LEASE) as rows:
        refuse_moved({place: rows[place] for place in found.bases}, {p: base.row for p, base in found.bases.items()})
        crossings, _ = stack.statuses.released()
        decisions = _decisions(stack)
        made: dict[Place, Again] = {}
        for place, base in found.bases.items():
            try:
                made[place] = _evaluate(stack, decisions, place, base._replace(row=rows[place]), crossings, made)
            except UndecodableMembersError as error:
                steps = ", ".join(str(step_of(name)) for name in base.row.kept)
                raise UndecodableMembersError(
                    f"slot {place.slot}: states to begin with are missing or damaged: begin with others (--from with"
                    f" one of {steps}); if none are whole, `kanon operate repair` empties what cannot be read"
                ) from error
        for place, again in made.items():
            base, row = found.bases[place], rows[place]
            kept = [name for name in row.kept if step_of(name) <= base.step and step_of(name) < base.mark]
            stack.control.restate(place, row.run, base.mark, [*kept, again.name], again.progress)


def _refuse_configuration(stack: RunningStack) -> None:
    """Refuse if keys, types or tables are not those with which the answers were released."""
    settings, types = stack.evaluate, stack.evaluate.read_types()
    recorded, seen = stack.control.recorded("evaluate"), situation(stack)
    if seen.replaced:
        raise ChangeRefusedError(
            f"{' and '.join(seen.replaced)} was restored or created again: what was released cannot be compared or"
            f" evaluated again; begin a new log generation with `kanon operate new-generation`"
        )
    refuse_log_generations(recorded, settings.log_generations, seen.ids)
    refuse_types(recorded, types)
    of_keys = noise_key_fingerprints(settings.noise_keys, stack.noise_keys())
    changed = changed_fingerprints(recorded, {**fingerprints(settings, types, ()), **of_keys})
    if changed:
        raise ConfigurationError(f"{', '.join(changed)} differ from what this deployment started with: restore them")


def _base(stack: RunningStack, place: Place, row: SlotRow, step: int | None, now: float) -> Base:
    """What a slot begins with."""
    lowest, reason = _lowest(stack, now)
    kept = [name for name in row.kept if step_of(name) >= lowest]
    if step is not None:
        kept = [name for name in kept if step_of(name) <= step][-1:]
    if kept:
        return Base(row, step_of(kept[0]), kept[0])
    begin, before = place.layout - 1, place.before(stack.evaluate.layouts)
    there = bool(before) and not any(stack.control.row(each).retired for each in before)
    if there and begin >= lowest and (step is None or step < place.layout):
        return Base(row, begin, None)
    listed = ", ".join(str(step_of(name)) for name in row.kept if step_of(name) >= lowest) or "none"
    raise ChangeRefusedError(f"slot {place.slot} has no such states: {reason}; states are kept after steps {listed}")


def _lowest(stack: RunningStack, now: float) -> tuple[int, str]:
    """The first step after which states may be evaluated again, and why."""
    oldest = stack.schedule.oldest_allowed(now) - 1
    lowest = [(oldest, f"the log does not reach back before step {oldest}")]
    if (generation := in_force(stack.evaluate.log_generations)) is not None:
        lowest.append((generation.from_step - 1, f"a log generation begins at step {generation.from_step}"))
    if (change := newest_change(stack.control)) is not None:
        lowest.append((change[0], f"`kanon operate {change[1]}` changed what is evaluated up to step {change[0]}"))
    return max(lowest)


def _decisions(stack: RunningStack) -> Decisions:
    settings = stack.evaluate
    types, retired = settings.read_types(), recorded_names(stack.control.recorded("evaluate"), RETIRED)
    return Decisions(
        types=types,
        numbers=stack.control.type_numbers({*types, *retired}),
        retired=frozenset(retired),
        noise_keys=NoiseKeys.of(settings.noise_keys, stack.noise_keys()),
        deployment=settings.deployment,
        schedule=stack.schedule,
        generation=in_force(settings.log_generations),
    )


def _evaluate(
    stack: RunningStack, decisions: Decisions, place: Place, base: Base, crossings: CrossingsOfSets,
    made: Mapping[Place, Again],
) -> Again:  # fmt: skip
    """Evaluate the steps of a slot up to its mark, and the one that a worker has begun, and compare."""
    parts, run, keys = stack.parts(place), base.row.run, keys_of_place(stack, place)
    if base.manifest is not None:
        pieces: Sequence[Piece] = parts.list_of(base.manifest).pieces
    else:
        before = place.before(stack.evaluate.layouts)
        pieces = [
            piece
            for each in before
            for piece in (made[each].pieces if each in made else pieces_of(stack, each, stack.control.row(each)))
        ]
    for piece in pieces:  # also what no step changes
        parts.read(piece)
    write_all = base.manifest is None
    decided: dict[bytes, list[int]] = defaultdict(list)
    listed, name = tuple(pieces), ""
    progress = None
    with StepJoins(stack.log, place.slot, decisions.numbers) as joins:
        for step in range(base.step + 1, base.last + 1):
            found = list(
                decisions.decided(step, run, joins, parts, listed, mark=step - 1, keys=keys, write_all=write_all)
            )
            write_all = False
            after = tuple(piece for each in found for piece in each.pieces)
            for key, steps, _ in (status for each in found for status in each.crossed):
                decided[key].append(steps[-1])
            if step <= base.mark:
                listed = after
            else:
                name = parts.put_list(PartList(base.mark, listed), run)
                draft = parts.put_list(PartList(step, after, None, len(after)), run)
                progress = Progress(name, draft, 0)
    released = {key: steps for key, steps in crossings.items() if has(keys, key)}
    end = stack.evaluate.layouts.last_step(place.layout, NO_END)
    if not _is_same(decided, released, base, end):
        raise ChangeRefusedError(
            "the replay differs from what was released: the log lacks rows, or a version released wrong answers;"
            " begin a new log generation with `kanon operate new-generation`"
        )
    return Again(listed, progress, name or parts.put_list(PartList(base.mark, listed), run))


def _is_same(decided: Mapping[bytes, list[int]], released: CrossingsOfSets, base: Base, end: int) -> bool:
    """Whether every crossing in Statuses since the base was decided again, and no other one up to the mark.

    Statuses have the last two crossings of a set. A worker that died in the step after the mark may not have written
    its crossings there. The slots of the next layout have decided those after ``end``.
    """
    later = {key: [step for step in steps if step > base.step] for key, steps in released.items()}
    for key in decided.keys() | {key for key, steps in later.items() if steps}:
        again, shown = decided.get(key, []), [step for step in later.get(key, []) if step <= end]
        if again and again[-1] > base.mark and shown[-1:] != again[-1:]:
            again = again[:-1]
        room = 2 - len(later.get(key, [])) + len(shown)
        if again[max(0, len(again) - room) :] != shown:
            return False
    return True
