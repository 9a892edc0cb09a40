"""Use case on AWS: evaluate the closed steps of a slot, in order, and publish them at their ticks.

Several workers may run, stop or be late at any time (docs/proofs/segments.md). Of each range of keys the worker puts
the new parts, records them as decided, and writes their crossings; then one transaction moves mark, manifest and
horizon, if the worker's run is the current one. Noise is a function of set and step, so repeated work gives the same
states and crossings.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from kanon.errors import ConfigurationError, OutOfTimeError, TooFarBehindError, UndecodableMembersError
from kanon.gate import listed_sets
from kanon.gate.deciding import Decided, Decisions, Keys, Shown
from kanon.gate.fingerprints import missing_layout, removed_layout
from kanon.gate.listed_sets import ListedSet, name_beside
from kanon.gate.mechanism.steps import step_at
from kanon.gate.publishing import moved_horizon
from kanon.gate.showing import after
from kanon.gate.storage.aws.control import (
    Commit,
    Control,
    Place,
    Progress,
    Remaking,
    SlotRow,
    lost,
    older_statuses,
)
from kanon.gate.storage.aws.gathering import Gathering
from kanon.gate.storage.aws.parts import PartList, PartObjects
from kanon.gate.storage.aws.statuses import MOST_STATUSES, Statuses
from kanon.gate.storage.aws.step_joins import READING_SECONDS, StepJoins
from kanon.gate.storage.aws.step_log import StepLog
from kanon.gate.storage.aws.true_objects import step_of
from kanon.gate.storage.protocols import Piece, Status
from kanon.gate.true_sets import TrueSets

SECONDS_TO_STOP = 20.0
"""A worker with less time left than this begins no further range of a step."""
RANGES_TO_STOP = 1.5
"""Nor if less than this many times its slowest range is left."""
MOST_PARTS_READ = 64
"""Without an object of the step before, at most so many parts are read in a step: about 15 million sets."""


Made = tuple[str | None, Remaking | None]
"""The object of true sets after a step, or what is made of it so far."""


class DeploymentRecord(NamedTuple):
    """What Control has recorded of a deployment.

    Attributes:
        numbers: the number of each type, retired ones included.
        retired: the names of the types that are retired.
        missing: the first step of a layout that Control has and this version lacks, or None.
        removed: whether a layout before the first one of this version was removed.
    """

    numbers: Mapping[str, int]
    retired: frozenset[str]
    missing: int | None = None
    removed: bool = False


@dataclass(frozen=True)
class Outcome:
    """The result of one run over a slot.

    Attributes:
        steps: steps completed.
        sets: sets decided in them.
        skipped: joins of retired types.
        behind: closed steps that remain, and that may be evaluated now.
        late: the largest delay of a completed step after its tick, in seconds.
        following: the slots that can continue because this one has evaluated the last step of its layout.
    """

    steps: int = 0
    sets: int = 0
    skipped: int = 0
    behind: int = 0
    late: int = 0
    following: range = range(0)


@dataclass
class Run:
    """The state of one run over a slot.

    Attributes:
        place, row: the slot, and its row as this worker has read or written it last.
        keys: the keys of its sets.
        parts, joins: its storage.
        time_left: gives the seconds until this worker must have stopped.
        bases: the names of the manifests on which the next step builds; those of several slots in the first step of a
            layout.
        pieces: the parts that they list.
        step: the step to evaluate.
        last: the last closed step of the layout, before ``missing``.
        missing: see :class:`DeploymentRecord`.
        idle: the number of steps without work, directly before ``step``, that are not completed yet.
        shown: the sets that crossed in ``step``, by the first part of each range that this run decided.
        unlisted: whether listed sets are to be put beside the true ones though no set crosses: there are none yet.
        slowest: the longest time that a range took so far, in seconds.
        leased: whether this worker still holds the lease.
        outcome: the work done so far.
    """

    place: Place
    row: SlotRow
    keys: Keys
    parts: PartObjects
    joins: StepJoins
    gathering: Gathering
    time_left: Callable[[], float]
    bases: tuple[str, ...] = ()
    pieces: tuple[Piece, ...] = ()
    step: int = 0
    last: int = 0
    missing: int | None = None
    idle: int = 0
    shown: dict[str, Shown] = field(default_factory=dict)
    unlisted: bool = False
    slowest: float = 0.0
    leased: bool = True
    outcome: Outcome = Outcome()

    @property
    def is_short(self) -> bool:
        """Whether too little time is left for another range."""
        return self.time_left() < max(SECONDS_TO_STOP, RANGES_TO_STOP * self.slowest)

    def add(self, found: Decided) -> None:
        """Count what was decided."""
        outcome = self.outcome
        self.outcome = replace(outcome, sets=outcome.sets + found.sets, skipped=outcome.skipped + found.skipped)

    @property
    def begins(self) -> bool:
        """Whether the slot has no parts of its own yet, and continues those of other slots."""
        return self.row.evaluated_through is None and bool(self.bases)


@dataclass
class Evaluation(Decisions):
    """The use case with its storage, types and keys.

    Attributes:
        parts_of: gives the objects of a slot.
        check_control: gives what is recorded. Raises ConfigurationError if a table is not the one on which the log
            generation began.
        log_created: when the table of the log was made (Unix s): it has no older rows. 0 if they may be older.
    """

    log: StepLog
    parts_of: Callable[[Place], PartObjects]
    statuses: Statuses
    control: Control
    check_control: Callable[[], DeploymentRecord]
    log_created: float = field(default=0.0, kw_only=True)

    def run(self, slot: int, holder: str, clock: Callable[[], float], time_left: Callable[[], float]) -> Outcome:
        """Evaluate the closed steps of ``slot`` that are not evaluated yet, until all are done or time is short.

        Args:
            slot: the slot.
            holder: a new name for this worker.
            clock: the server's clock, Unix seconds.
            time_left: seconds until this worker must have stopped.

        Raises:
            ConfigurationError: a table was replaced, Statuses is older than the states, steps before the log generation
                remain, a layout or a noise key is missing, or the log has joins of a type that is neither configured
                nor retired.
            TooFarBehindError: the log rows of the next step may have expired.
            UndecodableMembersError: an object of the bucket is missing or damaged.
            UndecodableJoinsError: joins in the log cannot be read.
            LeaseLostError, ThrottledError: run again; nothing is lost or half done.
        """
        now = clock()
        place = self._place(slot, now)
        row = None if place is None else self._lease(place, holder, now)
        if place is None or row is None:
            return Outcome()  # nothing is left in any layout, or another worker holds the lease
        with ExitStack() as leased:
            leased.callback(self.control.release, place, row.run)
            recorded = self.check_control()
            self.numbers, self.retired = recorded.numbers, recorded.retired
            parts = self.parts_of(place)
            gathering = Gathering(self.control, parts, place, row, time_left)
            with StepJoins(self.log, slot, self.numbers, gathering) as joins:
                layout = self.log.layouts.at(place.layout)
                keys = Keys(*layout.range_of(slot))
                run = Run(place, row, keys, parts, joins, gathering, time_left, missing=recorded.missing)
                try:
                    if self._begin(run, now, removed=recorded.removed):
                        self._evaluate(run, clock)
                except UndecodableMembersError:
                    if self._is_over(run):  # what is missing was swept
                        raise lost(place) from None
                    raise
                if not run.leased:
                    leased.pop_all()
        return run.outcome

    def _lease(self, place: Place, holder: str, now: float) -> SlotRow | None:
        """Take the lease of a slot; None if another worker holds it.

        Without its row a slot would use runs again, and decide steps once more from empty states, with the same noise.
        """
        if self._never_leased(place) and self.parts_of(place).any() and self._never_leased(place):
            raise ConfigurationError(
                f"the table Control has lost slot {place.slot}, whose states are in the bucket: begin a new log"
                f" generation with `kanon operate new-generation`"
            )
        return self.control.lease(place, holder, now, now + self.schedule.lease)

    def _never_leased(self, place: Place) -> bool:
        row = self.control.row(place)
        return row.run == 0 and row.evaluated_through is None

    def _place(self, slot: int, now: float) -> Place | None:
        """The first layout in which ``slot`` has steps left; None if there is none."""
        for layout, end in self.log.layouts.with_ends():
            place = Place(layout.from_step, slot)
            if slot < layout.slots:
                if end is None:
                    return place
                through = self.control.row(place).evaluated_through
                if end >= (self._oldest(now) if through is None else through + 1):
                    return place
        return None

    def _begin(self, run: Run, now: float, *, removed: bool) -> bool:
        """Find the step with which the slot continues, and its parts; False if other slots must come first."""
        through, first = run.row.evaluated_through, run.place.layout
        before = [] if through is not None else run.place.before(self.log.layouts)
        rows = [self.control.row(each) for each in before]
        if through is not None:
            run.step, bases = self._in_time(through + 1, now), [run.row]
        elif all(row.run == 0 for row in rows) and first <= self._oldest(now):  # a new deployment
            if not rows and removed:
                raise removed_layout(first)
            run.step, bases = self._oldest(now), []
            if run.row.begun is not None and run.row.begun < run.step:
                raise TooFarBehindError(
                    f"step {run.row.begun}, the first one of slot {run.place.slot}, is half done and may have lost"
                    f" rows: begin a new log generation with `kanon operate new-generation`"
                )
        elif all(row.evaluated_through == first - 1 for row in rows):
            run.step, bases = self._in_time(first, now), rows
            for place, row in zip(before, rows, strict=True):  # its own row has nothing yet to compare with Statuses
                if row.horizon is not None and not self.statuses.has_moved(place.slot, row.horizon.through):
                    raise older_statuses(place)
        else:
            return False
        if run.missing is not None and run.missing <= min(run.step, self.schedule.last_closed(now)):
            raise missing_layout(run.missing)
        run.bases = tuple(row.manifest for row in bases if row.manifest is not None)
        run.pieces = tuple(piece for name in run.bases for piece in run.parts.list_of(name).pieces)
        run.last = self._last(run, now)
        if run.row.shown is not None and not run.parts.has(run.row.shown):
            run.row = replace(run.row, shown=None)  # it was lost, and is made again
        run.unlisted = self.lists and 0 < len(run.pieces) <= MOST_PARTS_READ and not self._has_listed(run)
        return True

    def _has_listed(self, run: Run) -> bool:
        """Whether the listed sets of the mark are stored."""
        return run.row.shown is not None and run.parts.has(name_beside(run.row.shown))

    def _evaluate(self, run: Run, clock: Callable[[], float]) -> None:
        """Evaluate steps, and set the outcome. Idle steps are completed together, before the next one with work."""
        with suppress(OutOfTimeError):
            self._evaluate_steps(run, clock)
        self._complete_idle(run, clock(), leaving=True)
        may = min(run.last, self._limit(run, clock()))
        run.outcome = replace(run.outcome, behind=max(0, may - run.step + 1), following=self._following(run, clock()))

    def _evaluate_steps(self, run: Run, clock: Callable[[], float]) -> None:
        while run.step <= run.last and not run.is_short and run.step <= self._limit(run, clock()):
            if self._is_idle(run):
                run.idle += 1
            else:
                self._complete_idle(run, clock())
                done = self._evaluate_step(run)
                if done is None:
                    break
                # If a step closes during this run, its message does nothing: this run evaluates it.
                run.last = self._last(run, clock())
                earlier, (manifest, run.pieces) = run.pieces, done
                made = self._put_true(run, earlier, manifest)
                self._complete(run, run.step, manifest, made, clock(), leaving=run.step >= run.last)
                run.bases = (manifest,)
            run.outcome = replace(run.outcome, steps=run.outcome.steps + 1)
            run.step += 1

    def _is_idle(self, run: Run) -> bool:
        """Whether nothing happens in the run's step: no client joined, and no set crosses or may be forgotten."""
        due = any(piece.earliest is not None and piece.earliest <= run.step for piece in run.pieces)
        if due or run.begins or run.unlisted or self.begins_generation(run.step, run.step - 1):
            return False
        return not self._read(run)

    def _read(self, run: Run) -> int:
        """Read the joins of the run's step. Returns their number.

        Raises:
            OutOfTimeError: time ran out.
        """
        before = run.time_left()
        run.gathering.base = ",".join(run.bases)
        count = run.joins.count(run.step)
        run.slowest = max(run.slowest, min(before - run.time_left(), READING_SECONDS))
        return count

    def _evaluate_step(self, run: Run) -> tuple[str, tuple[Piece, ...]] | None:
        """Decide the ranges of the run's step that are not decided yet.

        What another worker has recorded as decided is not decided again; its crossings are written first.

        Returns:
            The name of its manifest, and the parts in it; None if time ran out.
        """
        base, number = ",".join(run.bases), run.row.run
        listed, progress = PartList(run.step, ()), run.row.progress
        if progress is not None and progress.base == base:
            name, listed = progress.draft, run.parts.list_of(progress.draft)
            crossed = [each for piece in listed.pieces[-listed.last :] for each in self._crossed_in(run, piece)]
            if not self._publish(run, crossed, progress.written):
                return None
            if listed.end is None:
                return name, listed.pieces
        self._read(run)
        ranges = self.decided(
            run.step, number, run.joins, run.parts, run.pieces,
            mark=run.step - 1, keys=run.keys, write_all=run.begins,
            begin=None if listed.end is None else bytes.fromhex(listed.end),
        )  # fmt: skip
        while not run.is_short:
            before = run.time_left()
            found = next(ranges)
            end = None if found.end is None or found.end == run.keys.end else found.end.hex()
            listed = PartList(run.step, (*listed.pieces, *found.pieces), end, len(found.pieces))
            run.add(found)
            run.shown |= {piece.name: Shown() for piece in found.pieces}
            if found.new:
                run.shown[found.pieces[0].name] = found.shown
            records = bool(found.crossed) or (found.new and end is not None)
            name = run.parts.put_list(listed, number) if records or end is None else ""
            if records:
                self.control.record_decided(run.place, number, run.step, Progress(base, name, 0))
                if not self._publish(run, found.crossed, 0):
                    return None
            if end is None:
                return name, listed.pieces
            run.slowest = max(run.slowest, before - run.time_left())
        return None

    def _crossed_in(self, run: Run, piece: Piece) -> list[Status]:
        """The sets of a stored part that crossed in the run's step."""
        return self.crossed(run.parts.read(piece), run.step)

    def _publish(self, run: Run, crossed: Sequence[Status], written: int) -> bool:
        """Write the crossings of a range that is recorded as decided, from a place on; False if time ran out."""
        while written < len(crossed):
            if run.time_left() < SECONDS_TO_STOP:
                return False
            some = crossed[written : written + MOST_STATUSES]
            written += len(some)
            if not self.statuses.write(self.control.fence(run.place, run.row.run, written), some):
                raise lost(run.place)
        return True

    def _complete_idle(self, run: Run, now: float, *, leaving: bool = False) -> None:
        """Complete the idle steps before the run's step; their states are those of the step before."""
        if run.idle:
            made = run.row.shown, run.row.remaking
            self._complete(run, run.step - 1, run.row.manifest, made, now, leaving=leaving)

    def _put_true(self, run: Run, earlier: Sequence[Piece], manifest: str) -> Made:
        """Put the object of the sets that are true after the run's step. It stays as it is if no set crossed.

        If a type is listed, the listed sets are put beside it. If it must be made of the parts, at most
        MOST_PARTS_READ of them are read in a step, and the next steps continue. Those before the step (``earlier``) are
        read too: the new ones have no set that is true at this step for the last time.

        Returns:
            Its name; None if too many sets are true, or if it is not made of all parts yet. Then readers ask the table.
            And what is made of it so far; None if it is complete, or too many sets are true.
        """
        found, run.shown, before, end = run.shown, {}, None, None
        listed: Iterable[ListedSet] | None = None
        changed = [piece for piece in run.pieces if step_of(piece.name) == run.step]
        crossed = self._shown(run, changed, found, since=run.step)
        if run.row.shown is not None:
            if crossed is not None and not run.unlisted and not any(len(each.entries) for each in crossed):
                return run.row.shown, None
            with suppress(UndecodableMembersError):
                before = run.parts.true_sets(run.row.shown)
            try:
                listed = run.parts.listed_sets(run.row.shown) if self.lists and not run.unlisted else None
                again = self.lists and listed is None and before is not None and listed_sets.is_room_for(before.count)
            except UndecodableMembersError:
                again = True
            run.unlisted |= again and len(run.pieces) <= MOST_PARTS_READ  # otherwise they stay incomplete
        if before is None or run.unlisted:
            before, listed, first = self._made(run)
            some = [piece for piece in run.pieces if piece.first >= first]
            end = some[MOST_PARTS_READ].first if len(some) > MOST_PARTS_READ else None
            replaced = (piece for piece in earlier if piece not in run.pieces and first <= piece.first < (end or "g"))
            of_parts = self._shown(run, [*replaced, *some[:MOST_PARTS_READ]], {}, since=0)
            crossed = None if of_parts is None or crossed is None else [*of_parts, *crossed]
            run.unlisted = False
        content = None if crossed is None else after(before, (each.entries for each in crossed), run.step)
        if content is None or crossed is None:
            return None, None
        name = run.parts.put_true(content, run.step, run.row.run)
        if self.lists:
            new = [each for some in crossed for each in some.listed]
            run.parts.put_listed(name, None if listed is None else listed_sets.after(listed, new, run.step))
        return (name, None) if end is None else (None, Remaking(manifest, end, name))

    def _made(self, run: Run) -> tuple[TrueSets | None, Iterable[ListedSet] | None, str]:
        """What was made of the object so far, the listed sets beside it, and the key with which it continues."""
        remaking = run.row.remaking
        if remaking is not None and run.bases == (remaking.manifest,):
            with suppress(UndecodableMembersError):
                before = run.parts.true_sets(remaking.name)
                return before, run.parts.listed_sets(remaking.name) if self.lists else None, remaking.end
        return None, (), ""

    def _shown(
        self, run: Run, pieces: Sequence[Piece], found: Mapping[str, Shown], *, since: int
    ) -> list[Shown] | None:
        """The true sets of parts that crossed at step ``since`` or later. What another worker decided is read.

        Returns:
            Those of each part; None if time ran out.
        """
        sets = []
        for piece in pieces:
            if piece.name not in found and run.time_left() < SECONDS_TO_STOP:
                return None
            known = found.get(piece.name)
            sets.append(known or self.shown(run.keys.of(run.parts.read(piece)), run.step, since))
        return sets

    def _complete(self, run: Run, step: int, manifest: str | None, made: Made, now: float, *, leaving: bool) -> None:
        """Publish the steps up to ``step`` and move the mark. If the run is ``leaving``, its lease is released too."""
        row, visible_from = run.row, self.schedule.visible_from(now)
        if row.evaluated_through is not None:  # the first steps of a new slot do not count as late
            late = visible_from - self.schedule.tick_of(row.evaluated_through + 1)
            run.outcome = replace(run.outcome, late=max(run.outcome.late, late))
        kept = row.kept if manifest is None or manifest == row.manifest else (*row.kept, manifest)
        wanted = self.schedule.manifests_kept([step_of(name) for name in kept], now)
        kept = tuple(name for name in kept if step_of(name) in wanted)
        commit = Commit(step, manifest, kept, moved_horizon(row.horizon, step, visible_from, made[0]), *made)
        known = None if row.horizon is None else row.horizon.through
        moves = self.statuses.horizon_moves(run.place.slot, step, visible_from, known, commit.shown)
        self.control.commit(run.place, row.run, row, commit, moves, leaving=leaving)
        run.row = replace(row, progress=None, **commit._asdict())
        run.idle, run.leased = 0, not leaving

    def _limit(self, run: Run, now: float) -> int:
        """The last step that may be evaluated before the next tick.

        Statuses have two crossings of a set. A third one must not come before the first one stops to count for every
        reader, whose clock may be late by the publish margin. What becomes visible before the tick of a commit that is
        made now counts too: nobody can take it back.
        """
        row, late = run.row, now - self.schedule.publish_margin
        is_shown = row.horizon is not None and row.horizon.at(late) is not None
        before = () if is_shown else map(self.control.row, run.place.before(self.log.layouts))
        moments = late, self.schedule.visible_from(now) - 1
        horizons = [each.horizon for each in (row, *before) if each.horizon is not None]
        steps = (horizon.at(moment) for horizon in horizons for moment in moments)
        seen = min((step for step in steps if step is not None), default=None)
        holds = (type_.parameters for type_ in self.types.values())
        hold = min(each.window if each.restart is None else each.restart.hold for each in holds)
        if row.horizon is not None and row.evaluated_through is not None and seen == row.horizon.through:
            seen = max(seen, row.evaluated_through)  # nothing crossed in steps that a command has skipped
        return run.last if seen is None else seen + hold

    def _is_over(self, run: Run) -> bool:
        """Whether another worker or command has changed what the run is based on."""
        names = [self.control.row(each).manifest for each in run.place.before(self.log.layouts)] if run.begins else []
        return self.control.row(run.place).run != run.row.run or (
            run.begins and tuple(filter(None, names)) != run.bases
        )

    def _oldest(self, now: float) -> int:
        """The step with which a new deployment begins: every older one has no rows, or they may have expired.

        It is evaluated at the first wake-up: the step in which the log was made may not be closed then.
        """
        created = self.log_created if self.log_created <= now else 0.0  # an emulator has another clock
        before_log = step_at(created, self.schedule.period) - 1
        return max(self.schedule.oldest_in_log(now), self._begun_at, before_log)

    def _in_time(self, step: int, now: float) -> int:
        """The step, if the log still has its rows and it belongs to the log generation."""
        if step < self._begun_at:
            raise ConfigurationError(
                f"the log generation that begins at step {self._begun_at} was not started in every slot: run"
                f" `kanon operate new-generation` again"
            )
        if step < self.schedule.oldest_allowed(now):
            raise TooFarBehindError(
                f"evaluation is behind by more than the outage allowance minus its reserve: step"
                f" {step} may have lost rows; move the mark with `kanon operate skip`"
            )
        return step

    def _last(self, run: Run, now: float) -> int:
        """The last closed step of the layout at the run's step, before a missing layout begins."""
        last = self.log.layouts.last_step(run.place.layout, self.schedule.last_closed(now))
        return last if run.missing is None else min(last, run.missing - 1)

    def _following(self, run: Run, now: float) -> range:
        """The slots that can continue because this run evaluated the last step of its layout."""
        if run.outcome.steps and run.step > run.last and run.last < self.schedule.last_closed(now):
            return self.log.layouts.following(run.place.slot, run.last)
        return range(0)

    @property
    def _begun_at(self) -> int:
        """The first step of the log generation; 0 for the first one."""
        return 0 if self.generation is None else self.generation.from_step
