"""Use case: evaluate the closed steps of a slot, in order, and publish them at their ticks.

The order of writes keeps it correct under crashes, retries and several workers (docs/architecture.md, rule 8):
for each chunk of sets all wake-ups, then all statuses, then Members; after the last chunk of a step the horizon (what
readers may see), the stamp of Members, then the mark (how far the slot is evaluated). Noise is a function of set and
step, so repeated work writes the same values.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import compress
from operator import itemgetter
from typing import TYPE_CHECKING, NamedTuple, Self

import numpy as np

from kanon.errors import ConfigurationError, TooFarBehindError
from kanon.gate.fingerprints import missing_layout, refuse_rows
from kanon.gate.mechanism.columns import NEVER, Ints, States, Tokens
from kanon.gate.mechanism.steps import step_at
from kanon.gate.mechanism.tape import LogGeneration, Tapes
from kanon.gate.mechanism.vectorised import crossing_needed, evaluate_columns
from kanon.gate.reading import Touched, read_sets
from kanon.gate.schedule import Schedule
from kanon.gate.stamps import agreed_step, put_stamps
from kanon.gate.storage.control import Control, Mark
from kanon.gate.storage.members import Members, Update
from kanon.gate.storage.statuses import Statuses
from kanon.gate.storage.step_log import Row, StepLog
from kanon.gate.types import Type
from kanon.noise.words import NoiseKey

if TYPE_CHECKING:
    from kanon.gate.settings import NoiseKeyEntry

WRITERS = 16
SECONDS_TO_STOP = 20.0
"""A worker with less time left than this starts no further chunk."""
CHUNKS_TO_STOP = 1.5
"""It also starts none if less than this many times its slowest chunk so far is left."""
SHARE_WITHOUT_PLACE = 0.5
"""With less than this share of its time left, a worker stores its place after each chunk: the next may outlast it."""


@dataclass(frozen=True)
class NoiseKeys:
    """The noise keys, oldest first, each with the step from which new searches use it; None: it cannot be read."""

    entries: tuple[tuple[int, NoiseKey | None], ...]

    @classmethod
    def of(cls, entries: Iterable["NoiseKeyEntry"], keys: Mapping[str, NoiseKey]) -> Self:
        """The keys of the entries, as far as ``keys`` has them."""
        return cls(tuple(sorted(((entry.from_step, keys.get(entry.id)) for entry in entries), key=itemgetter(0))))

    def for_search(self, first: int) -> NoiseKey:
        """The key of a search that begins at step ``first``: the latest entry not after it.

        Raises:
            ConfigurationError: no entry is that old, because an old key was removed too early; or the key of the entry
                cannot be read.
        """
        for start, key in reversed(self.entries):
            if start <= first:
                if key is None:
                    raise ConfigurationError(
                        f"the noise key that begins at step {start} is not in its secret as it was recorded: restore it"
                    )
                return key
        raise ConfigurationError(
            f"no noise key covers what began before step {self.entries[0][0]}: put the removed key back; `kanon operate"
            f" destroy-noise-key` says how long a key is needed"
        )


class Decided(NamedTuple):
    """Sets of a type with their states before and after a step."""

    type_name: str
    before: States
    after: States


@dataclass(frozen=True)
class Outcome:
    """The result of one run over a slot.

    Attributes:
        steps: steps completed.
        sets: sets touched by them.
        skipped: sets of retired types.
        behind: closed steps that remain.
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
        slot: the slot.
        holder: the name of this worker, which holds the lease.
        time: the seconds that this worker has.
        through: the stored mark; None for a new slot.
        after: the last set committed in ``step``; None before the first one.
        step: the step to evaluate.
        last: the last closed step of the layout at ``step``, before ``missing``.
        missing: the first step that this version cannot evaluate, because it lacks a layout; None if there is none.
        idle: the number of steps without rows, directly before ``step``, that are not completed yet.
        slowest: the longest time that a page of the log with its chunk took so far, in seconds.
        leased: whether this worker still holds the lease.
        outcome: the work done so far.
    """

    slot: int
    holder: str
    time: float
    through: int | None
    after: bytes | None = None
    step: int = 0
    last: int = 0
    missing: int | None = None
    idle: int = 0
    slowest: float = 0.0
    leased: bool = True
    outcome: Outcome = Outcome()

    @property
    def resume(self) -> tuple[int, bytes] | None:
        """The place inside a step at which the next run continues, if time ran short or an error stopped this one."""
        return None if self.after is None else (self.step, self.after)

    @property
    def reserve(self) -> float:
        """A worker with less time left than this many seconds stops."""
        return max(SECONDS_TO_STOP, CHUNKS_TO_STOP * self.slowest)


@dataclass
class Evaluation:
    """The use case with its tables, types and keys."""

    types: Mapping[str, Type]
    noise_keys: NoiseKeys
    deployment: str
    schedule: Schedule
    log: StepLog
    members: Members
    statuses: Statuses
    control: Control
    check_control: Callable[[], int | None]
    """Gives the first step of a layout that Control has and this version lacks, or None.

    Raises ConfigurationError if a table is not the one on which the log generation began.
    """
    generation: LogGeneration | None = None
    log_created: float = 0.0
    """When the table of the log was made (Unix s): it has no older rows. 0 if they may be older."""
    _tapes: dict[tuple[str, str], Tapes] = field(default_factory=dict)

    def run(self, slot: int, holder: str, clock: Callable[[], float], time_left: Callable[[], float]) -> Outcome:
        """Evaluate the closed steps of ``slot`` that are not evaluated yet, until all are done or time is short.

        Args:
            slot: which slot.
            holder: a name for this worker, new for each run.
            clock: the server's clock, Unix seconds.
            time_left: seconds until this worker must have stopped.

        Raises:
            ConfigurationError: a table was replaced, tables are of different times, steps before the log generation
                remain, a layout or a noise key is missing, or the log has joins of a type that is neither configured
                nor retired.
            TooFarBehindError: the log rows of the next step may have expired.
            LeaseLostError, ThrottledError, UndecodableMembersError: run again; nothing is lost or half done.
        """
        now = clock()
        mark = self.control.lease(slot, holder, now, now + self.schedule.lease)
        if mark is None:
            return Outcome()  # another worker holds the lease
        run = Run(slot, holder, time_left(), mark.evaluated_through)
        try:
            run.missing = self.check_control()
            run.through = self._evaluated_through(slot, mark)
            step = self._next_step(slot, run.through, now)
            if step is None:
                return run.outcome
            if run.missing is not None and run.missing <= min(step, self.schedule.last_closed(now)):
                raise missing_layout(run.missing)
            self._begin(run, step)
            run.after, run.last = mark.resume_after, self._last(run, clock())
            with ThreadPoolExecutor(WRITERS) as writers:
                while run.step <= run.last:
                    if not self._evaluate_step(run, clock, time_left, writers):
                        self._complete_idle(run, clock)
                        return replace(run.outcome, behind=run.last - run.step + 1)
                    self._finish_step(run, clock)
            return replace(run.outcome, following=self._following(run, clock()))
        finally:
            if run.leased:
                self.control.release(slot, holder, run.resume)

    def _evaluate_step(
        self, run: Run, clock: Callable[[], float], time_left: Callable[[], float], writers: ThreadPoolExecutor
    ) -> bool:
        """Evaluate the sets of the run's step, chunk by chunk; False if time ran short.

        The loop reads the time before each page of the log and before each chunk: one page may take a second.
        """
        read = read_sets(self.log, run.step, run.slot, run.after, self.types)
        left = time_left()
        while left >= run.reserve:
            chunk = next(read, None)
            if chunk is None:
                return True
            if chunk:
                self._complete_idle(run, clock)
                run.outcome = self._evaluate_chunk(run.step, chunk, writers, run.outcome)
                run.after = chunk[-1].set_key
            before, left = left, time_left()
            run.slowest = max(run.slowest, before - left)
            if chunk and left < SHARE_WITHOUT_PLACE * run.time:
                self.control.keep_place(run.slot, run.holder, (run.step, chunk[-1].set_key))
        return False

    def _finish_step(self, run: Run, clock: Callable[[], float]) -> None:
        """Complete the run's step, unless it is idle and not the last: idle steps are completed with the next one."""
        if run.after is None and run.step < run.last:
            run.idle += 1
        else:
            # Read the clock again: if a step closes during this run, its message does nothing; this run evaluates it.
            run.last = self._last(run, clock())
            self._complete(run, run.step, clock(), leaving=run.step >= run.last)
        run.outcome = replace(run.outcome, steps=run.outcome.steps + 1)
        run.step, run.after = run.step + 1, None

    def _complete_idle(self, run: Run, clock: Callable[[], float]) -> None:
        """Complete the idle steps before the run's step."""
        if run.idle:
            self._complete(run, run.step - 1, clock())

    def _complete(self, run: Run, step: int, now: float, *, leaving: bool = False) -> None:
        """Publish the steps up to ``step``, then move the mark. All rows of these steps are already written.

        If the run is ``leaving``, the same write releases its lease.
        """
        visible_from = self.schedule.visible_from(now)
        if run.through is not None:  # the first steps of a new slot do not count as late
            late = visible_from - self.schedule.tick_of(run.through + 1)
            run.outcome = replace(run.outcome, late=max(run.outcome.late, late))
        self.statuses.move_horizon(run.slot, step, visible_from)
        self.members.stamp(run.slot, step)
        self.control.advance(run.slot, run.through, step, run.holder if leaving else None)
        run.through, run.idle, run.leased = step, 0, not leaving

    def _evaluated_through(self, slot: int, mark: Mark) -> int | None:
        """The step through which a slot is evaluated. If Control has lost the mark, it is put back."""
        through = agreed_step(slot, mark, self.members, self.statuses)
        if through is not None and mark.evaluated_through is None:
            self.control.advance(slot, None, through)
        return through

    def _next_step(self, slot: int, evaluated_through: int | None, now: float) -> int | None:
        """The step with which a slot continues; None if there is none, or if other slots must come first."""
        layouts, oldest = self.log.layouts, self._oldest(now)
        step = layouts.next_step(slot, oldest - 1 if evaluated_through is None else evaluated_through)
        if step is None:
            return None
        first = layouts.at(step).from_step if evaluated_through is None else step
        marks = [self.control.evaluated_through(each) for each in layouts.preceding(slot, first)]
        if evaluated_through is None and first <= oldest and all(mark is None for mark in marks):
            return step  # a new deployment
        if any(mark is None or mark < first - 1 for mark in marks):
            return None
        return self._in_time(first, now)

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

    def _begin(self, run: Run, step: int) -> None:
        """Continue with ``step``. A slot that its layout begins (again) gets the mark before it."""
        run.step = step
        if run.through != step - 1 and self.log.layouts.preceding(run.slot, step):
            put_stamps(run.slot, step - 1, self.members, self.statuses)
            self.control.advance(run.slot, run.through, step - 1)
            run.through = step - 1

    def _last(self, run: Run, now: float) -> int:
        """The last closed step of the layout at the run's step, before a missing layout begins."""
        last = self.log.layouts.last_step(run.step, self.schedule.last_closed(now))
        return last if run.missing is None else min(last, run.missing - 1)

    def _following(self, run: Run, now: float) -> range:
        """The slots that can continue because this run evaluated the last step of its layout."""
        if run.outcome.steps and run.last < self.schedule.last_closed(now):
            return self.log.layouts.following(run.slot, run.last)
        return range(0)

    def _evaluate_chunk(
        self, step: int, chunk: Sequence[Touched], writers: ThreadPoolExecutor, outcome: Outcome
    ) -> Outcome:
        """Read, decide and commit a chunk of the sets of a step."""
        known = [touched for touched in chunk if touched.type_name in self.types]
        if len(known) < len(chunk):
            missing = {touched.type_name for touched in chunk} - self.types.keys()
            refuse_rows(self.control.recorded("evaluate"), missing)
        states = self.members.read([touched.set_key for touched in known])
        self._commit(step, self._decide(step, known, states), writers)
        skipped = outcome.skipped + len(chunk) - len(known)
        return replace(outcome, sets=outcome.sets + len(known), skipped=skipped)

    def _decide(self, step: int, chunk: Sequence[Touched], states: States) -> list[Decided]:
        """The new states of the sets not yet evaluated at ``step``, type by type."""
        names = np.array([touched.type_name for touched in chunk])
        pending = states.evaluated < step
        decided = []
        for type_name in dict.fromkeys(names.tolist()):
            chosen = pending & (names == type_name)
            before = states.part(chosen)
            joined = Tokens.of([touched.joined for touched in compress(chunk, chosen)])
            parameters, tapes_of = self.types[type_name].parameters, partial(self._tapes_of, type_name)
            after = evaluate_columns(parameters, tapes_of, step, before, joined, self._generation_begun)
            decided.append(Decided(type_name, before, after))
        return decided

    def _commit(self, step: int, decided: Sequence[Decided], writers: ThreadPoolExecutor) -> None:
        """Write wake-ups, then statuses, then Members; each kind is complete before the next begins."""
        self.log.put_wake_ups(row for d in decided for row in self._wake_ups(d))
        statuses = [status for d in decided for status in self._statuses(step, d)]
        list(writers.map(self._write_status, statuses))
        self.members.write(step, [self._update(step, d) for d in decided], writers)

    def _wake_ups(self, d: Decided) -> Iterator[Row]:
        """The wake-ups that the log does not hold yet."""
        new = (d.after.wake_ups != d.before.wake_ups) | (d.before.evaluated < self._begun_at)
        for row in np.flatnonzero((d.after.wake_ups != NEVER) & new).tolist():
            step = int(d.after.wake_ups[row])
            yield Row(step, d.after.keys[row], None, d.type_name, self.schedule.expiry(step))

    def _statuses(self, step: int, d: Decided) -> Iterator[tuple[bytes, tuple[int, ...], int]]:
        """Set key, crossings and expiry of each set that crossed now."""
        crossed = d.after.crossings[:, 1] == step
        needed = self._crossing_needed(d)
        for row in np.flatnonzero(crossed).tolist():
            crossings = tuple(at for at in d.after.crossings[row].tolist() if at != NEVER)
            yield d.after.keys[row], crossings, self.schedule.expiry(int(needed[row]))

    def _write_status(self, status: tuple[bytes, tuple[int, ...], int]) -> None:
        self.statuses.write(*status)

    def _update(self, step: int, d: Decided) -> Update:
        """The new states. Each may expire when no later step needs it."""
        parameters = self.types[d.type_name].parameters
        needed = np.maximum(np.maximum(d.after.wake_ups, self._crossing_needed(d)), step)
        occupied = d.after.members.sizes > 0
        newest = d.after.lasts[d.after.members.starts[:-1][occupied]]
        needed[occupied] = np.maximum(needed[occupied], newest + parameters.window)
        expires = [self.schedule.expiry(at) for at in needed.tolist()]
        return Update(d.type_name, parameters.client_bits, d.after, d.before.evaluated, expires)

    def _crossing_needed(self, d: Decided) -> Ints:
        return crossing_needed(d.after.keys, d.after.crossings[:, 1], self.types[d.type_name].parameters)

    def _tapes_of(self, type_name: str, first: int) -> Tapes:
        """The tapes of a type's searches that begin at step ``first``."""
        key = self.noise_keys.for_search(first)
        place = (key.id, type_name)
        if place not in self._tapes:
            self._tapes[place] = Tapes(
                key, self.deployment, type_name, self.types[type_name].parameters, generation=self.generation
            )
        return self._tapes[place]

    @property
    def _generation_begun(self) -> int | None:
        """The first step of the log generation; None for the first one."""
        return None if self.generation is None else self.generation.from_step

    @property
    def _begun_at(self) -> int:
        """The first step of the log generation; 0 for the first one."""
        return self._generation_begun or 0
