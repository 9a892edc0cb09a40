"""Use case: evaluate the closed steps of a slot, in order, and publish them at their ticks.

Correct under crashes, repetitions and several workers because of the order of writes (docs/architecture.md,
rule 8): per chunk of sets all wake-ups, then all statuses, then Members; after the last chunk of a step the
horizon, then the mark. Noise is a function of set and step, so repeated work writes the same values.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from typing import NamedTuple, Self

from kanon.errors import ConfigurationError, TooFarBehindError
from kanon.gate.mechanism.above_threshold import SetState
from kanon.gate.mechanism.steps import end_of, first_step, instance_of, phase_of, step_at
from kanon.gate.mechanism.tape import Tapes
from kanon.gate.mechanism.vectorised import evaluate_all
from kanon.gate.publishing import clock_step, next_tick, tick_of
from kanon.gate.settings import EvaluateSettings
from kanon.gate.storage.control import Control
from kanon.gate.storage.members import Members, to_item
from kanon.gate.storage.statuses import Statuses
from kanon.gate.storage.step_log import Row, StepLog, Touched
from kanon.gate.types import Type
from kanon.noise.words import NoiseKey

SETS_A_CHUNK = 500
"""Decided at once: half as many cost a tenth more (docs/performance.md)."""
WRITERS = 16
SECONDS_TO_STOP = 20.0
"""A worker with less time left than this starts no further chunk."""

DAY = 86_400


@dataclass(frozen=True)
class Schedule:
    """The clock figures of a deployment, all in seconds (docs/architecture.md, rules 2, 3, 8 and 9)."""

    period: int
    grace: int
    lease: int
    publish_delay: int
    publish_margin: int
    outage_allowance: int

    @classmethod
    def of(cls, settings: EvaluateSettings) -> Self:
        """The figures a function is told."""
        return cls(
            period=settings.period,
            grace=settings.grace,
            lease=settings.lease,
            publish_delay=settings.publish_delay,
            publish_margin=settings.publish_margin,
            outage_allowance=settings.outage_allowance,
        )

    def last_closed(self, now: float) -> int:
        """The last step that no join can enter any more."""
        return step_at(now - self.grace, self.period) - 1

    def oldest_in_log(self, now: float) -> int:
        """The oldest step whose rows cannot have expired."""
        return step_at(now - self.outage_allowance, self.period)

    def oldest_allowed(self, now: float) -> int:
        """The oldest step from which a late evaluation may go on: a day's reserve before the log is gone."""
        return step_at(now - self.outage_allowance + self._reserve, self.period)

    def allowed_until(self, step: int) -> int:
        """Until when a late evaluation may go on from ``step`` (Unix seconds)."""
        return end_of(step, self.period) + self.outage_allowance - self._reserve

    @property
    def _reserve(self) -> int:
        return min(DAY, self.outage_allowance // 7)

    def first_after_skip(self, now: float) -> int:
        """The step with which a slot that is too far behind goes on: the oldest that leaves two periods to begin."""
        return min(self.oldest_allowed(now + 2 * self.period), self.last_closed(now))

    def expiry(self, step: int) -> int:
        """When a row that is needed up to ``step`` may go (Unix seconds)."""
        return end_of(step, self.period) + self.outage_allowance

    def overdue(self, evaluated_through: int, now: float) -> int:
        """How many steps a slot lacks whose tick has come."""
        return max(0, clock_step(now, self.period, self.publish_delay) - evaluated_through)

    def visible_from(self, now: float) -> int:
        """The first tick late enough for every reader to see what is written at ``now``."""
        return next_tick(now + self.publish_margin, self.period, self.publish_delay)


@dataclass(frozen=True)
class NoiseKeys:
    """The noise keys by the step from which instances begin under them, oldest first."""

    entries: tuple[tuple[int, NoiseKey], ...]

    def for_instance(self, first: int) -> NoiseKey:
        """The key of an instance that begins at step ``first``: the latest entry not after it.

        Raises:
            ConfigurationError: no entry is that old; an old key was removed before its time.
        """
        for start, key in reversed(self.entries):
            if start <= first:
                return key
        raise ConfigurationError(
            f"no noise key covers an instance that begins at step {first}: a key may only be removed once every"
            f" slot is evaluated past the next key's from_step and a window; put it back"
        )


class Evaluated(NamedTuple):
    """A touched set, its state before and after the step."""

    touched: Touched
    before: SetState
    after: SetState


@dataclass(frozen=True)
class Outcome:
    """What one run over a slot did.

    Attributes:
        steps: steps completed.
        sets: sets touched by them.
        skipped: sets of types no longer configured.
        behind: closed steps that are left.
        late: seconds by which the latest of the completed steps missed its tick.
    """

    steps: int = 0
    sets: int = 0
    skipped: int = 0
    behind: int = 0
    late: int = 0


@dataclass
class Evaluation:
    """Everything an evaluation needs."""

    types: Mapping[str, Type]
    noise_keys: NoiseKeys
    deployment: str
    schedule: Schedule
    log: StepLog
    members: Members
    statuses: Statuses
    control: Control
    _tapes: dict[tuple[str, str], Tapes] = field(default_factory=dict)

    def run(self, slot: int, holder: str, clock: Callable[[], float], time_left: Callable[[], float]) -> Outcome:
        """Evaluate the closed steps of ``slot`` that are not evaluated yet, until all are or time is short.

        Args:
            slot: which slot.
            holder: a name for this worker, new for each run.
            clock: the server's clock, Unix seconds.
            time_left: seconds until this worker must have stopped.

        Raises:
            TooFarBehindError: the log of the next step may have expired.
            LeaseLostError, ThrottledError, UndecodableMembersError: run again; nothing is lost or half done.
        """
        now = clock()
        mark = self.control.lease(slot, holder, now, now + self.schedule.lease)
        if mark is None:
            return Outcome()  # somebody else is at the slot
        resume: tuple[int, bytes] | None = None
        held = True
        try:
            step = self._first_step(mark.evaluated_through, now)
            outcome, after = Outcome(), mark.resume_after
            through, idle = mark.evaluated_through, 0
            last = self.schedule.last_closed(clock())
            with ThreadPoolExecutor(WRITERS) as writers:
                while step <= last:
                    chunks = chunked(self.log.touched(step, slot, self._most_kept, after), SETS_A_CHUNK)
                    while (in_time := time_left() >= SECONDS_TO_STOP) and (chunk := next(chunks, None)):
                        if idle:
                            through, idle = self._complete(slot, through, step - 1, clock()), 0
                        outcome = self._evaluate_chunk(step, slot, chunk, writers, outcome)
                        after = chunk[-1].set_key
                    if not in_time:
                        if idle:
                            self._complete(slot, through, step - 1, clock())
                        resume = None if after is None else (step, after)
                        return replace(outcome, behind=last - step + 1)
                    if after is None and step < last:
                        idle += 1  # steps without rows are completed together: each costs one read
                    else:
                        if through is not None:  # a new slot's past is not late
                            outcome = replace(outcome, late=max(outcome.late, self._late(step - idle, clock())))
                        # Looks again at the clock: a step that closes meanwhile finds its message acknowledged.
                        last = self.schedule.last_closed(clock())
                        ends = step >= last
                        through, idle = self._complete(slot, through, step, clock(), holder if ends else None), 0
                        held = not ends
                    outcome = replace(outcome, steps=outcome.steps + 1)
                    step, after = step + 1, None
            return outcome
        finally:
            if held:
                self.control.release(slot, holder, resume)

    def _first_step(self, evaluated_through: int | None, now: float) -> int:
        if evaluated_through is None:
            return self.schedule.oldest_in_log(now)
        if evaluated_through + 1 < self.schedule.oldest_allowed(now):
            raise TooFarBehindError(
                f"evaluation is behind by more than the outage allowance less its reserve: step"
                f" {evaluated_through + 1} may have lost rows; move the mark with `kanon doctor --skip`"
            )
        return evaluated_through + 1

    def _evaluate_chunk(
        self, step: int, slot: int, chunk: Sequence[Touched], writers: ThreadPoolExecutor, outcome: Outcome
    ) -> Outcome:
        """Read, decide and commit a chunk of the sets of a step."""
        known = [touched for touched in chunk if touched.type_name in self.types]
        states = self.members.read(touched.set_key for touched in known)
        self._commit(slot, self._decide(step, known, states), writers)
        skipped = outcome.skipped + len(chunk) - len(known)
        return replace(outcome, sets=outcome.sets + len(known), skipped=skipped)

    def _decide(self, step: int, chunk: Sequence[Touched], states: Mapping[bytes, SetState]) -> list[Evaluated]:
        """The new states of the sets not yet evaluated at ``step``, type by type."""
        pending: dict[str, list[tuple[Touched, SetState]]] = {}
        for touched in chunk:
            before = states.get(touched.set_key, SetState())
            if before.evaluated is None or before.evaluated < step:
                pending.setdefault(touched.type_name, []).append((touched, before))
        decided = []
        for type_name, entries in pending.items():
            after = evaluate_all(
                self.types[type_name].parameters,
                partial(self._tapes_of, type_name),
                step,
                [(touched.set_key, before, touched.joined) for touched, before in entries],
            )
            decided += [Evaluated(*entry, state) for entry, state in zip(entries, after, strict=True)]
        return decided

    def _commit(self, slot: int, decided: Sequence[Evaluated], writers: ThreadPoolExecutor) -> None:
        """Write wake-ups, statuses and Members, each kind complete before the next."""
        self.log.put_wake_ups(
            Row(
                e.after.wake_up,
                slot,
                e.touched.set_key,
                None,
                e.touched.type_name,
                self.schedule.expiry(e.after.wake_up),
            )
            for e in decided
            if e.after.wake_up is not None and e.after.wake_up != e.before.wake_up
        )
        crossed = [e for e in decided if e.after.crossings != e.before.crossings]
        _each(writers, self._write_status, crossed)
        _each(writers, self._write_members, decided)

    def _write_status(self, e: Evaluated) -> None:
        self.statuses.write(e.touched.set_key, e.after.crossings, self.schedule.expiry(self._last_true(e)))

    def _write_members(self, e: Evaluated) -> None:
        parameters = self.types[e.touched.type_name].parameters
        needed = [e.after.evaluated or 0]
        if e.after.members:
            needed.append(e.after.members[0].last + parameters.window)
        if e.after.crossings:
            needed.append(self._last_true(e))
        if e.after.wake_up is not None:
            needed.append(e.after.wake_up)
        token_bytes = -(-parameters.client_bits // 8)
        item = to_item(e.touched.set_key, e.touched.type_name, e.after, token_bytes, self.schedule.expiry(max(needed)))
        self.members.write(item)

    def _last_true(self, e: Evaluated) -> int:
        """The last step of the instance of the newest crossing."""
        parameters = self.types[e.touched.type_name].parameters
        phase = phase_of(e.touched.set_key, parameters.window, parameters.phase)
        instance = instance_of(e.after.crossings[-1], phase, parameters.window)
        return first_step(instance + 1, phase, parameters.window) - 1

    def _complete(self, slot: int, through: int | None, step: int, now: float, leaving: str | None = None) -> int:
        """Publish the steps after ``through`` up to ``step``, all of whose rows are written; then move the mark.

        A holder that is ``leaving`` gives its lease back with the mark.
        """
        self.statuses.move_horizon(slot, step, self.schedule.visible_from(now))
        self.control.advance(slot, through, step, leaving)
        return step

    def _late(self, step: int, now: float) -> int:
        """Seconds by which a step completed at ``now`` misses its tick."""
        tick = tick_of(step, self.schedule.period, self.schedule.publish_delay)
        return max(0, self.schedule.visible_from(now) - tick)

    def _tapes_of(self, type_name: str, first: int) -> Tapes:
        """The tapes of a type's instances that begin at step ``first``."""
        key = self.noise_keys.for_instance(first)
        place = (key.id, type_name)
        if place not in self._tapes:
            self._tapes[place] = Tapes(key, self.deployment, type_name, self.types[type_name].parameters)
        return self._tapes[place]

    @property
    def _most_kept(self) -> int:
        return max(t.parameters.members_kept for t in self.types.values())


def chunked(items: Iterable[Touched], size: int) -> Iterator[list[Touched]]:
    """Cut a stream into lists of at most ``size``."""
    stream = iter(items)
    while chunk := list(islice(stream, size)):
        yield chunk


def _each(writers: ThreadPoolExecutor, write: Callable[[Evaluated], None], decided: Iterable[Evaluated]) -> None:
    """Write side by side; all are done, or an error is raised, on return."""
    for _ in list(writers.map(write, decided)):
        pass
