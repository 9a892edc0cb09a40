"""An operator among workers: recovery, a new generation, skip and forget, at any moment and one after another.

One slot with one part and one popular set: it crosses in every step in which it may. What a worker decides in a step
is a function of the noise (the generation) and of the data (whether the client to be forgotten counts, which steps were
skipped). A decision leaves a *trace* when its crossing is written or when its step gets a horizon. No step may ever
leave traces of two decisions: that would be one noise on two data sets, or two noises on one.

A worker records its part as decided, writes its crossing, moves the horizon, commits. An operator takes the lease and
reads the row, reads horizon and Statuses, then writes the row. Everybody may stop after each move, for good or not,
with or without the lease. ``stepping`` has the objects and the sweeper: here a manifest is a value with a name.

The row also has ``begun``, the last step that anybody recorded as decided. It never goes back.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

HOLD = 2
"""The number of steps that the set is true after a crossing; then it may cross again."""


class Flaw(Enum):
    """A way to get the protocol wrong; the model must find each."""

    GENERATION_OVER_HALF_STEP = "a generation begins after the mark, whatever the next step has left"
    GENERATION_WITHOUT_CROSSINGS = "it begins after the last trace, and the manifest lacks the crossings until there"
    SKIP_WITHOUT_CROSSINGS = "a skip leaves the manifest as it is, without the crossings that the open step has written"
    FORGET_OVER_HALF_STEP = "a client is forgotten at the mark, whatever the next step has left"
    FORGET_BY_HORIZON = "a client is forgotten where the horizon is at the mark; crossings beyond it are not asked for"
    BEGUN_GOES_BACK = "a recovery also takes back which step was begun"
    RECOVERY_CROSSES_FORGET = "a recovery may go back to before a client was forgotten"
    RECOVERY_CROSSES_GENERATION = "a recovery may go back to before a generation began"
    RECOVERY_CROSSES_SKIP = "a recovery may go back to before a skip"
    TWO_CROSSINGS = "two crossings of a set are kept, however far back a recovery may go"
    COMMIT_OVER_CHANGED_MANIFEST = "a commit asks for the mark alone"
    CROSSING_WITHOUT_RUN = "a crossing is written by a worker whose run is over"
    OPERATOR_WITHOUT_RUN = "an operator's write does not ask whether its run is over"


class Decision(NamedTuple):
    """What a decision depends on beside set and step."""

    generation: int
    forgotten: bool
    skipped: tuple[int, ...]


class Manifest(NamedTuple):
    """A manifest with its only part: its crossings, whether the client counts, the steps without joins."""

    step: int = 0
    run: int = 0
    crossings: tuple[int, ...] = ()
    forgotten: bool = False
    skipped: tuple[int, ...] = ()


class Decided(NamedTuple):
    """A part that is recorded as decided: for which manifest, by which decision, with which crossings."""

    base: Manifest
    decision: Decision
    crossings: tuple[int, ...]

    @property
    def step(self) -> int:
        return self.base.step + 1

    @property
    def crosses(self) -> bool:
        return self.step in self.crossings


class Row(NamedTuple):
    """The slot's row in Control. The mark is the step of the newest kept manifest."""

    run: int = 0
    kept: tuple[Manifest, ...] = (Manifest(),)
    begun: int = 0
    progress: Decided | None = None
    generation: int = 0
    forgotten: bool = False

    @property
    def manifest(self) -> Manifest:
        return self.kept[-1]

    @property
    def mark(self) -> int:
        return self.kept[-1].step


class Worker(NamedTuple):
    """A worker: its run, what it does next, the row that it read, what it decided."""

    run: int = 0
    does: str = ""
    row: Row = Row()
    decided: Decided | None = None


class Operator(NamedTuple):
    """An operator's command: what it does next, the row that it read, the horizon and the crossings that it read."""

    command: str = ""
    does: str = ""
    row: Row = Row()
    horizon: int = 0
    crossings: tuple[int, ...] = ()


class World(NamedTuple):
    """A state of everything.

    ``traces`` has, for each step that left one, the decision and whether the set crossed: history. ``strange`` says
    what somebody found who compared with it.
    """

    row: Row = Row()
    statuses: tuple[int, ...] = ()
    horizon: int = 0
    workers: tuple[Worker, ...] = (Worker(), Worker())
    operator: Operator = Operator()
    commands: int = 0
    traces: tuple[tuple[int, Decision, bool], ...] = ()
    strange: str = ""


@dataclass(frozen=True)
class Model:
    """The slot, with a flaw or none.

    Attributes:
        last: the last step.
        runs: the number of leases.
        commands: those that the operator may give, in this order, each at any moment or never.
    """

    flaw: Flaw | None = None
    last: int = 3
    runs: int = 4
    commands: tuple[str, ...] = ("recover", "forget")

    @property
    def start(self) -> World:
        """Step 0 is committed."""
        return World()

    def finished(self, world: World) -> bool:
        """Whether the last step is committed."""
        return world.row.mark >= self.last

    def moves(self, world: World) -> Iterator[tuple[str, World]]:
        """Each move of a worker and of the operator."""
        if world.strange:
            return
        for number, worker in enumerate(world.workers):
            if worker.does:
                if worker.run < self.runs:
                    yield f"run {worker.run} crashes", _with(world, number, Worker())
                does, later = self._step(world, number, worker)
                yield f"run {worker.run} {does}", later
            elif world.row.run < self.runs and world.row.mark < self.last:
                row = world.row._replace(run=world.row.run + 1)
                yield f"a worker takes the lease: run {row.run}", _begin(world._replace(row=row), number, row.run)
        yield from self._operate(world)

    def _step(self, world: World, number: int, worker: Worker) -> tuple[str, World]:
        """The one move of a worker."""
        row, decided = world.row, worker.decided
        current = row.run == worker.run
        over = "finds its run over", _with(world, number, Worker())
        if worker.does == "decide":
            if not current:
                return over
            decided = self._decided(row)
            row = row._replace(progress=decided, begun=max(row.begun, decided.step))
            later = _with(world._replace(row=row), number, worker._replace(does="cross", decided=decided))
            return f"records its part of step {decided.step} as decided", later
        assert decided is not None
        step = decided.step
        match worker.does:
            case "cross":
                if not current and self.flaw is not Flaw.CROSSING_WITHOUT_RUN:
                    return over
                later = _with(self._write(world, decided), number, worker._replace(does="horizon"))
                return f"writes the crossings of step {step}" if decided.crosses else f"has none in step {step}", later
            case "horizon":
                if not current:
                    return over
                if world.horizon < step:
                    world = _traced(world._replace(horizon=step), decided)
                return f"moves the horizon to step {step}", _with(world, number, worker._replace(does="commit"))
            case _:
                is_read = row.manifest == decided.base and current
                if self.flaw is Flaw.COMMIT_OVER_CHANGED_MANIFEST:
                    is_read = row.mark == step - 1
                if not is_read:
                    return over
                if row.manifest != decided.base:
                    return "commits", world._replace(
                        strange=f"step {step} is committed on another manifest: parts carried over may be deleted"
                    )
                kept = self._kept(
                    (*row.kept, decided.base._replace(step=step, run=worker.run, crossings=decided.crossings))
                )
                world = world._replace(row=row._replace(kept=kept, progress=None))
                later = _begin(world, number, worker.run) if step < self.last else _with(world, number, Worker())
                return f"commits step {step}", later

    def _decided(self, row: Row) -> Decided:
        """Decide the step after the mark: the set crosses unless it is true already."""
        base, step = row.manifest, row.mark + 1
        crossings = base.crossings
        if not _true(crossings, step):
            crossings = (*crossings, step)
        return Decided(
            base, Decision(row.generation, base.forgotten or row.forgotten, base.skipped), self._needed(crossings, row)
        )

    def _needed(self, crossings: tuple[int, ...], row: Row) -> tuple[int, ...]:
        """The crossings that a manifest from which a recovery may start still needs, or a reader of its step."""
        if self.flaw is Flaw.TWO_CROSSINGS:
            return crossings[-2:]
        return tuple(crossing for crossing in crossings if crossing + 2 * HOLD > row.kept[0].step)

    def _kept(self, manifests: tuple[Manifest, ...]) -> tuple[Manifest, ...]:
        return manifests[-2 * HOLD - 1 :]

    def _write(self, world: World, decided: Decided) -> World:
        """Write the crossings of a step unless newer ones are there; compare them if the step was evaluated before."""
        step, newest = decided.step, max(world.statuses, default=0)
        if decided.crosses and newest < step:
            return _traced(world._replace(statuses=decided.crossings), decided)
        if decided.crosses != (step in world.statuses) and step <= max(newest, world.horizon):
            return world._replace(strange=f"step {step} is evaluated again and its crossing is not the one in Statuses")
        return world

    def _operate(self, world: World) -> Iterator[tuple[str, World]]:
        """The lease and the row, then horizon and Statuses, then one write."""
        operator = world.operator
        if operator.does:
            yield "the operator stops", world._replace(operator=Operator())
        if not operator.does:
            for number in range(world.commands, len(self.commands)):
                if world.row.run < self.runs - 1:
                    row = world.row._replace(run=world.row.run + 1)
                    command = Operator(self.commands[number], "read", row)
                    later = world._replace(row=row, operator=command, commands=number + 1)
                    yield f"the operator takes the lease to {command.command}: run {row.run}", later
        elif operator.does == "read":
            read = operator._replace(does="write", horizon=world.horizon, crossings=world.statuses)
            yield "the operator reads horizon and Statuses", world._replace(operator=read)
        elif operator.row.run != world.row.run and self.flaw is not Flaw.OPERATOR_WITHOUT_RUN:
            yield "the operator finds its run over", world._replace(operator=Operator())
        else:
            for does, row in self._changes(operator):
                row = row._replace(run=world.row.run)
                yield f"the operator {does}", world._replace(row=row, operator=Operator())

    def _changes(self, operator: Operator) -> Iterator[tuple[str, Row]]:
        """The rows that a command may write."""
        row = operator.row._replace(progress=None)
        manifest, flaw = row.manifest._replace(run=row.run), self.flaw
        last = max(row.mark, row.begun, operator.horizon)
        merged = tuple(sorted({*manifest.crossings, *operator.crossings}))
        match operator.command:
            case "recover":
                for number, older in enumerate(row.kept[:-1]):
                    begun = older.step if flaw is Flaw.BEGUN_GOES_BACK else row.begun
                    yield f"recovers to step {older.step}", row._replace(kept=row.kept[: number + 1], begun=begun)
            case "forget":
                least = row.mark if flaw is Flaw.FORGET_OVER_HALF_STEP else last
                if flaw is Flaw.FORGET_BY_HORIZON:
                    least = max(row.mark, operator.horizon)
                if least == row.mark:
                    before = row.kept if flaw is Flaw.RECOVERY_CROSSES_FORGET else ()
                    kept = (*before, manifest._replace(forgotten=True))
                    yield "forgets the client", row._replace(kept=kept, forgotten=True)
            case "begin a generation":
                if flaw is Flaw.GENERATION_OVER_HALF_STEP:
                    last, merged = row.mark, manifest.crossings
                if flaw is Flaw.GENERATION_WITHOUT_CROSSINGS:
                    merged = manifest.crossings
                before = row.kept if flaw is Flaw.RECOVERY_CROSSES_GENERATION else ()
                kept = (*before, manifest._replace(step=last, crossings=merged))
                yield f"begins a generation after step {last}", row._replace(kept=kept, generation=last + 1)
            case "skip":
                through = max(last, row.mark + 1)
                if flaw is Flaw.SKIP_WITHOUT_CROSSINGS:
                    merged = manifest.crossings
                before = row.kept if flaw is Flaw.RECOVERY_CROSSES_SKIP else ()
                skipped = (*manifest.skipped, *range(row.mark + 1, through + 1))
                kept = (*before, manifest._replace(step=through, crossings=merged, skipped=skipped))
                yield f"skips to step {through}", row._replace(kept=kept)

    def wrong(self, world: World) -> str | None:
        """What is wrong in a world, in words."""
        if world.strange:
            return world.strange
        row = world.row
        crossed = [step for step, _, crosses in world.traces if crosses]
        newest = max((step for step in crossed if step <= row.mark), default=None)
        if newest is not None and newest + HOLD > row.mark and newest not in row.manifest.crossings:
            return f"the set crossed in step {newest}, and the manifest of step {row.mark} does not know it"
        if missing := [step for step in crossed if step > row.kept[0].step and step not in world.statuses]:
            return f"a recovery may start from step {row.kept[0].step}, and Statuses lacks the crossing of {missing[0]}"
        if row.forgotten and not row.manifest.forgotten:
            return f"the client was forgotten, and the manifest of step {row.mark} has it"
        return None


def _traced(world: World, decided: Decided) -> World:
    """Keep the trace of a decision, and say so if its step has left one of another decision before."""
    traces = {step: (decision, crosses) for step, decision, crosses in world.traces}
    trace = decided.decision, decided.crosses
    if traces.setdefault(decided.step, trace) != trace:
        return world._replace(strange=f"step {decided.step} has traces of two decisions")
    return world._replace(traces=tuple((step, *traces[step]) for step in sorted(traces)))


def _begin(world: World, number: int, run: int) -> World:
    """A worker begins the step after the mark, or continues with what is recorded of it."""
    row = world.row
    if row.progress is not None and row.progress.base == row.manifest:
        return _with(world, number, Worker(run, "cross", Row(), row.progress))
    return _with(world, number, Worker(run, "decide"))


def _with(world: World, number: int, worker: Worker) -> World:
    """The worker's next state. The workers are alike, so they are kept in one order."""
    workers = (*world.workers[:number], worker, *world.workers[number + 1 :])
    return world._replace(workers=tuple(sorted(workers, key=_order)))


def _order(worker: Worker) -> tuple[int, str]:
    return worker.run, worker.does


def _true(crossings: tuple[int, ...], step: int) -> bool:
    return any(crossing <= step < crossing + HOLD for crossing in crossings)
