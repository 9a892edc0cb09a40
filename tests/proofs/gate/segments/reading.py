"""One step whose reading outlasts its workers: what is put of it, what is recorded, and what the sweeper deletes.

The step has two pages. A worker leases the slot, reads pages one after the other, puts what it has read, and records a
list of the objects and of the pages that are left. Who finds all pages read gets the objects of others and commits the
joins that it then has. Any worker may take the lease at any time, and who had it may wake later; a worker may crash
with any run but the last. A command may replace the states of the slot once: then what was read does not count. An
object may be lost once, as if an older version had swept what it does not know.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

PAGES = frozenset({1, 2})


class Flaw(Enum):
    """A way to get it wrong; the model must find each."""

    RECORD_FIRST = "the pages are recorded as read before their object is put"
    RECORD_WITHOUT_RUN = "two workers read on: one whose run is over records what it has read"
    OWN_OBJECTS_ONLY = "a worker names its own objects, and the pages that others read count as read"
    SWEEP_RECORDED = "the sweeper deletes the objects that the record leads to"
    REFERENCES_BEFORE_RUN = "the sweeper reads the references, then the run"
    OTHER_STATES = "what was read counts though a command has changed joins and states"
    LOST_IS_EMPTY = "an object that is lost counts as read"


Object = tuple[int, frozenset[int], int]
"""What was read: the run, the pages, and the states for which it was read."""


class Record(NamedTuple):
    """The list that the slot's row names: the objects, the pages that are left, and the states."""

    objects: frozenset[Object] = frozenset()
    rest: frozenset[int] = PAGES
    states: int = 0


class Worker(NamedTuple):
    """A worker: what it does next, what it found recorded, its pages, those not put yet, and those that it has put."""

    run: int = 0
    does: str = ""
    found: Record = Record()
    pages: frozenset[int] = frozenset()
    unsaved: frozenset[int] = frozenset()
    own: frozenset[Object] = frozenset()
    states: int = 0


class Sweeper(NamedTuple):
    """The sweeper: what it does next, the run and the references that it has read."""

    does: str = ""
    run: int = 0
    named: frozenset[Object] = frozenset()


class World(NamedTuple):
    """A state of everything. ``joins``: the pages that were committed, None before; ``states`` of a command."""

    run: int = 0
    states: int = 0
    record: Record | None = None
    objects: frozenset[Object] = frozenset()
    joins: frozenset[int] | None = None
    committed: int = 0
    lost: frozenset[Object] = frozenset()
    workers: tuple[Worker, Worker] = (Worker(), Worker())
    sweeper: Sweeper = Sweeper()


@dataclass(frozen=True)
class Model:
    """The reading of a step, with a flaw or none. ``runs``: the number of leases before the last one."""

    flaw: Flaw | None = None
    runs: int = 2

    @property
    def start(self) -> World:
        """Nothing is read."""
        return World()

    def finished(self, world: World) -> bool:
        """Whether the step is committed."""
        return world.joins is not None

    def wrong(self, world: World) -> str | None:
        """A page is missing among the joins, or the record leads to what is gone though nobody lost it."""
        if world.joins is not None and world.joins != PAGES:
            return f"the step is committed without the joins of page {min(PAGES - world.joins)}"
        if world.joins is not None and world.committed != world.states:
            return "the step is committed with joins from before a command"
        if world.joins is None and world.record and world.record.objects - world.objects - world.lost:
            return "an object is recorded that is not there"
        return None

    def moves(self, world: World) -> Iterator[tuple[str, World]]:
        """Each move of a worker, of the command, of the sweeper, and of an older version."""
        if world.joins is not None:
            return
        for number, worker in enumerate(world.workers):
            if not worker.does:
                if world.run <= self.runs:
                    yield self._lease(world, number)
                continue
            who = f"run {worker.run}"
            if worker.run <= self.runs:
                yield f"{who} crashes", _with(world, number, Worker())
            for does, later in self._step(world, number, worker):
                yield f"{who} {does}", later
        if world.states == 0 and world.run < self.runs:
            # It takes the lease, and the row's record goes with it: the worker that had it is late.
            record = world.record if self.flaw is Flaw.OTHER_STATES else None
            yield "a command changes the states", world._replace(states=1, run=world.run + 1, record=record)
        if world.record and not world.lost:
            for each in sorted(world.record.objects & world.objects, key=repr):
                gone = world._replace(objects=world.objects - {each}, lost=frozenset({each}))
                yield f"an older version sweeps what run {each[0]} has read", gone
        yield from self._sweep(world)

    def _lease(self, world: World, number: int) -> tuple[str, World]:
        run = world.run + 1
        found = Record(states=world.states)
        if world.record is not None and (world.record.states == world.states or self.flaw is Flaw.OTHER_STATES):
            found = world.record
        worker = Worker(run, "read", found, states=world.states)
        return f"a worker takes the lease: run {run}", _with(world._replace(run=run), number, worker)

    def _step(self, world: World, number: int, worker: Worker) -> Iterator[tuple[str, World]]:
        """The moves of a worker."""
        left = worker.found.rest - worker.pages
        if worker.does == "read":
            for page in sorted(left):
                later = worker._replace(pages=worker.pages | {page}, unsaved=worker.unsaved | {page})
                yield f"reads page {page}", _with(world, number, later)
            if worker.unsaved:
                yield self._save(world, number, worker)
            elif not left:
                yield self._finish(world, number, worker)
        elif worker.does == "record":
            yield self._record(world, number, worker)
        elif worker.does == "put":  # a flaw: what is recorded is put afterwards
            yield "puts what it has recorded", _put(world, number, worker, worker._replace(does="read"))

    def _save(self, world: World, number: int, worker: Worker) -> tuple[str, World]:
        each = worker.run, worker.unsaved, worker.states
        own = worker.own | {each}
        if self.flaw is Flaw.RECORD_FIRST:
            return self._record(world, number, worker._replace(own=own))
        later = worker._replace(does="record", own=own)
        return "puts what it has read", _put(world, number, worker, later)

    def _record(self, world: World, number: int, worker: Worker) -> tuple[str, World]:
        if worker.run != world.run and self.flaw is not Flaw.RECORD_WITHOUT_RUN:
            return "finds its run over", _with(world, number, Worker())
        others = frozenset[Object]() if self.flaw is Flaw.OWN_OBJECTS_ONLY else worker.found.objects
        record = Record(others | worker.own, worker.found.rest - worker.pages, worker.states)
        if self.flaw is Flaw.RECORD_FIRST:
            later = worker._replace(does="put")
        else:
            later = worker._replace(does="read", unsaved=frozenset())
        return "records what it has read", _with(world._replace(record=record), number, later)

    def _finish(self, world: World, number: int, worker: Worker) -> tuple[str, World]:
        """All pages are read: the objects of others are got, and the step is committed."""
        others = worker.found.objects
        if others - world.objects and self.flaw is not Flaw.LOST_IS_EMPTY:
            if worker.run != world.run:
                return "finds its run over", _with(world, number, Worker())
            again = Worker(worker.run, "read", Record(states=worker.states), states=worker.states)
            return "finds an object lost, and the next one begins again", _with(
                world._replace(record=None), number, again
            )
        if worker.run != world.run:
            return "commits, and is refused", _with(world, number, Worker())
        joins = worker.pages.union(*(pages for _, pages, _ in others & world.objects))
        states = min((of for _, _, of in others), default=worker.states)
        return "commits the step", _with(world._replace(joins=joins, committed=states), number, Worker())

    def _sweep(self, world: World) -> Iterator[tuple[str, World]]:
        """The run, then the references, then the objects are listed and deleted."""
        sweeper, first = world.sweeper, self.flaw is Flaw.REFERENCES_BEFORE_RUN
        named = frozenset[Object]() if world.record is None else world.record.objects
        match sweeper.does:
            case "" if first:
                yield "the sweeper reads the references", world._replace(sweeper=Sweeper("run", 0, named))
            case "":
                yield "the sweeper reads the run", world._replace(sweeper=Sweeper("named", world.run))
            case "run":
                yield "the sweeper reads the run", world._replace(sweeper=sweeper._replace(does="go", run=world.run))
            case "named":
                if self.flaw is Flaw.SWEEP_RECORDED:
                    named = frozenset()
                yield "the sweeper reads the references", world._replace(sweeper=Sweeper("go", sweeper.run, named))
            case "go":
                doomed = {each for each in world.objects if each[0] < sweeper.run and each not in sweeper.named}
                swept = world._replace(objects=world.objects - doomed, sweeper=Sweeper())
                yield "the sweeper deletes what nothing names", swept


def _put(world: World, number: int, worker: Worker, later: Worker) -> World:
    each = worker.run, worker.unsaved, worker.states
    if later.does == "read":
        later = later._replace(unsaved=frozenset())
    return _with(world._replace(objects=world.objects | {each}), number, later)


def _with(world: World, number: int, worker: Worker) -> World:
    """The worker's next state. The workers are alike, so they are kept in one order."""
    other = world.workers[1 - number]
    first, second = sorted((worker, other), key=repr)
    return world._replace(workers=(first, second))
