"""One slot, two workers and a sweeper: the order of writes of a step, its fences, and what the sweeper may delete.

Two parts, A and B. In step 1 both have joins, and two sets of A cross; in step 2 only B has joins, and one set of it
crosses: A is carried over. A worker's move is one call to a table or to the bucket. Between two of its moves anybody
else may take any number of moves. Any worker may take the lease at any time, as if the lease before had run out: who
had it pauses, perhaps for good, and may wake later. A worker may crash at any time, except with the last run number of
the model: so there is always somebody who could finish.

What a part contains is the steps whose joins are in it. A decision is a function of set and step, so equal contents
mean equal answers, and a part that lacks a step has lost its joins.

States are tuples: an exploration compares some hundred thousand of them.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple

PARTS = ("A", "B")
CROSSING = {("A", 1): ("a", "c"), ("B", 1): (), ("B", 2): ("b",)}
"""The sets of a part that cross in a step; a part that is not named here has no joins then and is not due."""
LAST = 2
"""The last step."""
KEPT = 2
"""The number of manifests from which a recovery may start."""


class Flaw(Enum):
    """A way to get the protocol wrong; the model must find each."""

    SWEEP_BY_REFERENCES = "the sweeper deletes what nothing names, of any run (an age limit does no more)"
    REFERENCES_BEFORE_RUN = "the sweeper reads the references, then the run"
    REFERENCES_IN_TWO_READS = "the sweeper reads the manifests, then the progress"
    NAMES_WITHOUT_RUN = "an object is named by its contents: the same digest is put twice"
    PROGRESS_WITHOUT_RUN = "a part is recorded as decided by a worker whose run is over"
    HORIZON_WITHOUT_RUN = "a worker whose run is over names its object of crossings in the horizon"
    COMMIT_WITHOUT_RUN = "a commit asks for the mark and the manifest, not for the run"
    MARK_FIRST = "the mark moves, then the manifest"
    DECIDED_IS_DONE = "who finds a part decided takes its crossings as written"
    PLACE_FIRST = "the place is stored before the crossing that it counts"
    HORIZON_FIRST = "the horizon moves before the crossings are written"
    SWEEP_HORIZON = "the sweeper does not ask the horizons"


Name = tuple[str, int, int]
"""An object: a part's letter, "manifest" or "crossings"; its step; its run."""
Contents = tuple[Any, ...]


class Progress(NamedTuple):
    """What is recorded of the step after the mark: the parts decided, in order, and the crossings of the last one."""

    run: int
    base: Name
    decided: tuple[Name, ...] = ()
    written: int = 0


class Row(NamedTuple):
    """The slot's row in Control. ``kept`` is the manifests from which a recovery may start, the current one last."""

    run: int
    mark: int
    kept: tuple[Name, ...]
    progress: Progress | None = None

    @property
    def manifest(self) -> Name:
        return self.kept[-1]


class Worker(NamedTuple):
    """A worker: what it does next, and what it read or did before."""

    run: int = 0
    step: int = 0
    does: str = ""
    base: Name = ("", 0, 0)
    decided: tuple[Name, ...] = ()
    written: int = 0


class Sweeper(NamedTuple):
    """The sweeper: what it does next, the run and the references that it read, what it will delete."""

    does: str = ""
    run: int = 0
    references: frozenset[Name] = frozenset()
    doomed: frozenset[Name] = frozenset()


class World(NamedTuple):
    """A state of everything. ``statuses`` is the sets whose crossing is stored, ``horizon`` the last three steps."""

    row: Row
    objects: frozenset[tuple[Name, Contents]]
    statuses: frozenset[str]
    horizon: tuple[Name, ...]
    workers: tuple[Worker, ...]
    sweeper: Sweeper


START = ("manifest", 0, 0)
EMPTY: tuple[Name, ...] = (("A", 0, 0), ("B", 0, 0))


@dataclass(frozen=True)
class Model:
    """The slot, with a flaw or none. ``runs`` is the number of leases before the last one."""

    flaw: Flaw | None = None
    runs: int = 3

    @property
    def start(self) -> World:
        """Step 0 is committed, with two empty parts."""
        objects = frozenset({(START, EMPTY), *((name, ()) for name in EMPTY)})
        return World(Row(0, 0, (START,)), objects, frozenset(), (), (Worker(), Worker()), Sweeper())

    def finished(self, world: World) -> bool:
        """Whether both steps are evaluated, and nothing is left that nobody names."""
        return world.row.mark == LAST and all(name in _referenced(world) for name, _ in world.objects)

    def moves(self, world: World) -> Iterator[tuple[str, World]]:
        """Each move of a worker and of the sweeper."""
        for number, worker in enumerate(world.workers):
            who = f"run {worker.run}" if worker.does else "a worker"
            if not worker.does:
                if world.row.run < self.runs or (world.row.mark == LAST and world.row.run == self.runs):
                    yield self._lease(world, number)
                continue
            if worker.run < self.runs:
                yield f"{who} crashes", _with(world, number, Worker())
            does, later = self._step(world, number, worker)
            yield f"{who} {does}", later
        yield from self._sweep(world)

    def _lease(self, world: World, number: int) -> tuple[str, World]:
        row = world.row._replace(run=world.row.run + 1)
        worker = self._begin(row, row.run)
        return f"a worker takes the lease: run {row.run}", _with(world._replace(row=row), number, worker)

    def _begin(self, row: Row, run: int) -> Worker:
        """The step after the mark, from what the progress has of it."""
        step, progress = row.mark + 1, row.progress
        if step > LAST:
            return Worker()
        first = "horizon" if self.flaw is Flaw.HORIZON_FIRST else "put"
        if progress is None or progress.base != row.manifest:
            return Worker(run, step, first, row.manifest)
        written = progress.written
        if self.flaw is Flaw.DECIDED_IS_DONE and progress.decided:
            written = len(_crossing(progress.decided[-1], step))
        return self._next(Worker(run, step, first, row.manifest, progress.decided, written))

    def _next(self, worker: Worker) -> Worker:
        """What follows when a part is put, recorded and written up to ``written``, or not."""
        if worker.decided and worker.written < len(_crossing(worker.decided[-1], worker.step)):
            return worker._replace(does="place" if self.flaw is Flaw.PLACE_FIRST else "cross")
        if len(worker.decided) < len(_due(worker.step)):
            return worker._replace(does="put")
        return worker._replace(does="crossings")

    def _step(self, world: World, number: int, worker: Worker) -> tuple[str, World]:
        """The one move of a worker."""
        current = worker.run == world.row.run
        over = "finds its run over", _with(world, number, Worker())
        match worker.does:
            case "put":
                return self._put_part(world, number, worker) or over
            case "decide":
                if not current and self.flaw is not Flaw.PROGRESS_WITHOUT_RUN:
                    return over
                decided = (*worker.decided, self._name(world, _due(worker.step)[len(worker.decided)], worker))
                progress = Progress(worker.run, worker.base, decided)
                worker = self._next(worker._replace(decided=decided, written=0))
                return f"records part {decided[-1][0]} as decided", _with(_progress(world, progress), number, worker)
            case "cross":
                if not current:
                    return over
                crossed = _crossing(worker.decided[-1], worker.step)[worker.written]
                doing = worker._replace(does="place")
                if self.flaw is Flaw.PLACE_FIRST:
                    doing = self._next(worker._replace(written=worker.written + 1))
                world = world._replace(statuses=world.statuses | {crossed})
                return f"writes that set {crossed} crosses", _with(world, number, doing)
            case "place":
                if not current:
                    return over
                written = worker.written + 1
                progress = Progress(worker.run, worker.base, worker.decided, written)
                if self.flaw is Flaw.PLACE_FIRST:
                    doing = worker._replace(does="cross")
                else:
                    doing = self._next(worker._replace(written=written))
                return f"stores its place: {written} crossings", _with(_progress(world, progress), number, doing)
            case "crossings" | "manifest":
                return self._put_list(world, number, worker) or over
            case "horizon":
                return self._horizon(world, number, worker) if current or self._late_horizon else over
            case "commit":
                return self._commit(world, number, worker)
            case "move the manifest":
                if not current:
                    return over
                return "moves the manifest", self._committed(world, number, worker)
        raise AssertionError(worker.does)

    @property
    def _late_horizon(self) -> bool:
        return self.flaw is Flaw.HORIZON_WITHOUT_RUN

    def _name(self, world: World, kind: str, worker: Worker) -> Name:
        """The name of an object that a worker puts."""
        name = kind, worker.step, worker.run
        if self.flaw is Flaw.NAMES_WITHOUT_RUN:  # the same contents: it is there already, as the run that put it first
            return next((other for other, _ in sorted(world.objects) if other[:2] == name[:2]), name)
        return name

    def _put_part(self, world: World, number: int, worker: Worker) -> tuple[str, World] | None:
        """(1) Merge the joins of the step into a part; None if the part before it is gone."""
        key = _due(worker.step)[len(worker.decided)]
        objects = dict(world.objects)
        before = next((name for name in objects.get(worker.base, ()) if name[0] == key), None)
        if before not in objects:
            return None
        name = self._name(world, key, worker)
        world = _put(world, name, (*objects[before], worker.step))
        return f"puts part {key} of step {worker.step}", _with(world, number, worker._replace(does="decide"))

    def _put_list(self, world: World, number: int, worker: Worker) -> tuple[str, World] | None:
        """(4) Put the object of crossings, then the manifest; None if a part is gone."""
        objects = dict(world.objects)
        parts = _merged(objects.get(worker.base, ()), worker.decided)
        if worker.does == "manifest":
            doing = worker._replace(does="commit" if self.flaw is Flaw.HORIZON_FIRST else "horizon")
            world = _put(world, self._name(world, "manifest", worker), parts)
            return f"puts the manifest of step {worker.step}", _with(world, number, doing)
        if any(name not in objects for name in parts) or not parts:
            return None
        world = _put(world, self._name(world, "crossings", worker), _true(parts, objects))
        doing = worker._replace(does="manifest")
        return f"puts the object of crossings of step {worker.step}", _with(world, number, doing)

    def _horizon(self, world: World, number: int, worker: Worker) -> tuple[str, World]:
        """(5) The horizon names the object; one that is there already stays."""
        doing = worker._replace(does="commit")
        if self.flaw is Flaw.HORIZON_FIRST:
            doing = worker._replace(does="put")
            world = _put(world, self._name(world, "crossings", worker), _truth(worker.step))
        if not world.horizon or world.horizon[-1][1] < worker.step:
            world = world._replace(horizon=(*world.horizon, self._name(world, "crossings", worker))[-3:])
        return f"moves the horizon to step {worker.step}", _with(world, number, doing)

    def _commit(self, world: World, number: int, worker: Worker) -> tuple[str, World]:
        """(6) One conditional write moves mark and manifest."""
        row = world.row
        is_read = row.mark == worker.step - 1 and row.manifest == worker.base
        if not is_read or (row.run != worker.run and self.flaw is not Flaw.COMMIT_WITHOUT_RUN):
            return "commits, and is refused", _with(world, number, Worker())
        if self.flaw is Flaw.MARK_FIRST:
            world = world._replace(row=row._replace(mark=worker.step, progress=None))
            return f"moves the mark to {worker.step}", _with(world, number, worker._replace(does="move the manifest"))
        return f"commits step {worker.step}", self._committed(world, number, worker)

    def _committed(self, world: World, number: int, worker: Worker) -> World:
        kept = (*world.row.kept, self._name(world, "manifest", worker))[-KEPT:]
        row = world.row._replace(mark=worker.step, kept=kept, progress=None)
        return _with(world._replace(row=row), number, self._begin(row, worker.run))

    def _sweep(self, world: World) -> Iterator[tuple[str, World]]:
        """The run, then the references of Control, then those of the horizon with the list of names; then delete."""
        sweeper = world.sweeper
        if sweeper.does:
            yield "the sweeper crashes", world._replace(sweeper=Sweeper())
        match sweeper.does:
            case "" if self.flaw in (Flaw.REFERENCES_BEFORE_RUN, Flaw.REFERENCES_IN_TWO_READS):
                found = _of_manifests(world)
                if self.flaw is Flaw.REFERENCES_BEFORE_RUN:
                    found |= _of_progress(world)
                    yield "the sweeper reads the references", _sweeps(world, "run", 0, found)
                else:
                    yield "the sweeper reads the run and the manifests", _sweeps(world, "more", world.row.run, found)
            case "":
                yield "the sweeper reads the run", _sweeps(world, "references", world.row.run)
            case "run":
                yield "the sweeper reads the run", _sweeps(world, "list", world.row.run, sweeper.references)
            case "references":
                found = _of_manifests(world) | _of_progress(world)
                yield "the sweeper reads the row's references", _sweeps(world, "list", sweeper.run, found)
            case "more":
                found = sweeper.references | _of_progress(world)
                yield "the sweeper reads the progress", _sweeps(world, "list", sweeper.run, found)
            case "list":
                below = self.runs + 1 if self.flaw is Flaw.SWEEP_BY_REFERENCES else sweeper.run
                named = sweeper.references
                if self.flaw is not Flaw.SWEEP_HORIZON:
                    named |= frozenset(world.horizon)
                doomed = frozenset(name for name, _ in world.objects if name[2] < below and name not in named)
                later = world._replace(sweeper=Sweeper("delete", doomed=doomed) if doomed else Sweeper())
                yield "the sweeper reads the horizon and lists " + _words(doomed), later
            case "delete":
                objects = frozenset(each for each in world.objects if each[0] not in sweeper.doomed)
                later = world._replace(objects=objects, sweeper=Sweeper())
                yield "the sweeper deletes " + _words(sweeper.doomed), later

    def wrong(self, world: World) -> str | None:
        """What is wrong in a world, in words."""
        row, objects = world.row, dict(world.objects)
        if row.manifest[1] != row.mark:
            return f"the mark is {row.mark}, the manifest that of step {row.manifest[1]}: joins are lost"
        for manifest in row.kept:
            if manifest not in objects:
                return f"{_words([manifest])} is gone"
            for name in objects[manifest]:
                if name not in objects:
                    return f"{_words([manifest])} names {_words([name])}, which is gone"
                if objects[name] != _expected(name[0], manifest[1]):
                    return f"{_words([name])} has the joins of steps {objects[name]}: some are lost or twice"
        for name in _of_progress(world):
            if name not in objects:
                return f"{_words([name])} is recorded as decided and gone"
        for name in world.horizon:
            if not set(_truth(name[1])) <= world.statuses:
                return f"the horizon is at step {name[1]} and a crossing is not written"
            if objects.get(name) != _truth(name[1]):
                return f"the horizon names {_words([name])}, which is gone or another"
        if world.sweeper.doomed & _referenced(world):
            return "the sweeper is about to delete what is referenced"
        return None


def _due(step: int) -> tuple[str, ...]:
    return tuple(key for key in PARTS if (key, step) in CROSSING)


def _crossing(part: Name, step: int) -> tuple[str, ...]:
    return CROSSING[part[0], step]


def _expected(key: str, through: int) -> Contents:
    """The steps whose joins a part must have."""
    return tuple(step for step in range(1, through + 1) if (key, step) in CROSSING)


def _truth(through: int) -> Contents:
    """The sets that are true at a step."""
    return _sets((key, _expected(key, through)) for key in PARTS)


def _true(parts: tuple[Name, ...], objects: dict[Name, Contents]) -> Contents:
    """The sets that are true in these parts."""
    return _sets((name[0], objects[name]) for name in parts)


def _sets(parts: Iterable[tuple[str, Contents]]) -> Contents:
    return tuple(sorted(crossed for key, steps in parts for step in steps for crossed in CROSSING[key, step]))


def _merged(before: Contents, decided: tuple[Name, ...]) -> tuple[Name, ...]:
    """The parts of a manifest: those decided, and those carried over."""
    parts = {name[0]: name for name in (*before, *decided)}
    return tuple(parts[key] for key in sorted(parts))


def _of_manifests(world: World) -> frozenset[Name]:
    objects = dict(world.objects)
    return frozenset(world.row.kept).union(*(objects.get(manifest, ()) for manifest in world.row.kept))


def _of_progress(world: World) -> frozenset[Name]:
    return frozenset(world.row.progress.decided) if world.row.progress else frozenset()


def _referenced(world: World) -> frozenset[Name]:
    return _of_manifests(world) | _of_progress(world) | frozenset(world.horizon)


def _put(world: World, name: Name, contents: Contents) -> World:
    return world._replace(objects=world.objects | {(name, contents)})


def _progress(world: World, progress: Progress) -> World:
    return world._replace(row=world.row._replace(progress=progress))


def _sweeps(world: World, does: str, run: int, references: frozenset[Name] = frozenset()) -> World:
    return world._replace(sweeper=Sweeper(does, run, references))


def _with(world: World, number: int, worker: Worker) -> World:
    """The worker's next state. The workers are alike, so they are kept in one order."""
    workers = (*world.workers[:number], worker, *world.workers[number + 1 :])
    return world._replace(workers=tuple(sorted(workers)))


def _words(names: frozenset[Name] | list[Name]) -> str:
    texts = [f"{'part ' if kind in PARTS else ''}{kind} of step {step}, run {run}" for kind, step, run in sorted(names)]
    return "; ".join(texts) or "nothing"
