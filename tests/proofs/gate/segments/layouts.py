"""A change of the number of slots: what an heir's first manifest is made from, and when its inputs may go.

There are two parts, A and B. A layout with one slot has both in it; with two slots, A is in slot 0 and B in slot 1.
Each layout has one step, so that slots change as fast as they can. A has joins in every step, B in the first. Rows in
Control and names of objects have layout and slot.

Two workers evaluate any slot that has work; an operator takes a slot of the first layout back to a kept manifest once,
under the leases of that slot and of all later ones, unless a slot from which these begin is retired. An old slot is
*retired* when all heirs have committed and shown their first step: one write empties its row, and only then its objects
are unreferenced. Recoveries and retirements have a number that each raises; each of their writes is conditional on it,
so that only the newest goes on. Here the sweeper deletes at once what it may: that is the worst for who reads.
``stepping`` has its races within a slot, and every crash between two writes.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple

JOINED = {"A": range(1, 9), "B": range(1, 2)}
"""The steps in which a part has joins."""


class Flaw(Enum):
    """A way to get the protocol wrong; the model must find each."""

    KEYED_BY_SLOT = "a row is keyed by the slot alone"
    HEIR_BEFORE_ALL = "an heir begins when one of the preceding slots has evaluated the last step of its layout"
    HEIR_NAMES_OLD_PARTS = "an heir's first manifest carries parts of a preceding slot over"
    RUN_BEGINS_AGAIN = "a recovery removes an heir's row with its run"
    RETIRED_AFTER_ONE_HEIR = "a slot is retired when one heir has shown its first step"
    RETIRED_AFTER_HORIZON = "a slot is retired when all heirs have shown their first step, committed or not"
    RETIRED_BESIDE_RECOVERY = "a slot is retired while an operator recovers it or another one"
    RECOVERY_BESIDE_RETIREMENT = "a recovery goes on after somebody began to retire a slot"
    NOT_RETIRED_BY_A_WRITE = "the sweeper takes a slot's objects as unreferenced when all heirs are there"
    RECOVERY_BESIDE_RETIRED = "a slot is recovered although another one, from which its heir also begins, is retired"


Place = tuple[int, int]
"""Layout and slot."""
Name = tuple[int, int, str, int, int]
"""An object: layout, slot, kind, step, run."""


class Row(NamedTuple):
    """A slot's row in Control. An heir's has no mark until its first commit; ``kept`` is manifests, newest last."""

    run: int = 0
    mark: int | None = None
    kept: tuple[Name, ...] = ()
    retired: bool = False


class Worker(NamedTuple):
    """A worker: what it does next, in which slot and step, and the manifests from which it makes the next."""

    does: str = ""
    at: Place = (0, 0)
    run: int = 0
    step: int = 0
    bases: tuple[Name, ...] = ()
    first: bool = False
    """Whether the step is the first of the slot in its layout."""


class Operator(NamedTuple):
    """A recovery: the slots that it needs, the runs of those that it has leased, how many rows it has written."""

    places: tuple[Place, ...] = ()
    runs: tuple[int, ...] = ()
    written: int = 0
    command: int = 0


class World(NamedTuple):
    """A state of everything. ``horizons`` is the newest object of crossings of each slot, or None."""

    rows: tuple[Row, ...]
    horizons: tuple[Name | None, ...]
    objects: frozenset[tuple[Name, Any]]
    workers: tuple[Worker, ...] = (Worker(), Worker())
    operator: Operator = Operator()
    recovered: bool = False
    command: int = 0
    """The number of the operator's command or retirement that began last: only its writes succeed."""
    retiring: tuple[Place, int] | None = None
    """The slot that somebody is about to retire, having read that all heirs are there; the number of the command."""
    strange: str = ""


@dataclass(frozen=True)
class Model:
    """Layouts with these numbers of slots, with a flaw or none.

    Attributes:
        runs: how often each slot can be leased.
        evaluated: whether the first layout has evaluated its step at the start.
        recovers: whether an operator may then recover a slot.
    """

    flaw: Flaw | None = None
    slots: tuple[int, ...] = (1, 2)
    runs: int = 3
    evaluated: bool = True
    recovers: bool = True

    @property
    def places(self) -> list[Place]:
        """Every slot of every layout."""
        return [(layout, slot) for layout, slots in enumerate(self.slots) for slot in range(slots)]

    def keys(self, place: Place) -> str:
        """The parts of a slot."""
        return "AB" if self.slots[place[0]] == 1 else "AB"[place[1]]

    def from_step(self, layout: int) -> int:
        return layout + 1

    def sharing(self, place: Place, layout: int) -> list[Place]:
        """The slots of a layout that have parts in common with a slot."""
        return [
            (layout, slot)
            for lay, slot in self.places
            if lay == layout and set(self.keys(place)) & set(self.keys((lay, slot)))
        ]

    def heirs(self, place: Place) -> list[Place]:
        return self.sharing(place, place[0] + 1)

    @property
    def start(self) -> World:
        """The slots of the first layout have a manifest of step 0 with empty parts, and one of step 1 if evaluated."""
        world = World(tuple(Row() for _ in self.places), tuple(None for _ in self.places), frozenset())
        for place in self.places:
            steps = range(1 + self.evaluated) if place[0] == 0 else ()
            for step in steps:
                parts = {(*place, key, step, 0): _expected(key, step) for key in self.keys(place)}
                manifest: Name = (*place, "manifest", step, 0)
                kept = (*self.row(world, place).kept, manifest)
                objects = world.objects | set(parts.items()) | {(manifest, tuple(parts))}
                world = self._write(world._replace(objects=objects), place, Row(0, step, kept))
        return world

    def number(self, place: Place) -> int:
        """The row of a slot."""
        if self.flaw is Flaw.KEYED_BY_SLOT:
            place = next(other for other in self.places if other[1] == place[1])
        return self.places.index(place)

    def row(self, world: World, place: Place) -> Row:
        return world.rows[self.number(place)]

    def finished(self, world: World) -> bool:
        """Whether the last layout has evaluated its step, and only its objects are left."""
        last = len(self.slots) - 1
        waiting = [worker for worker in world.workers if worker.does == "read"]
        if len(waiting) == 2 and all(self.row(world, worker.at).run == self.runs for worker in waiting):
            return True  # both wait with the last run of the model, and a third worker would finish
        done = all(self.row(world, place).mark == last + 1 for place in self.places if place[0] == last)
        return done and (self.flaw is not None or all(name[0] == last for name, _ in world.objects))

    def moves(self, world: World) -> Iterator[tuple[str, World]]:
        """Each move of a worker, of the operator and of who retires a slot; after each the sweeper."""
        for move, later in self._moves(world):
            yield move, self._swept(later)

    def _moves(self, world: World) -> Iterator[tuple[str, World]]:
        if world.strange:
            return
        for number, worker in enumerate(world.workers):
            if worker.does:
                if worker.run < self.runs:
                    yield f"run {worker.run} of {worker.at} crashes", _with(world, number, Worker())
                for does, later in self._step(world, number, worker):
                    yield f"run {worker.run} of {worker.at} {does}", later
            else:
                yield from self._lease(world, number)
        if self.evaluated and self.recovers:
            yield from self._recover(world)
        yield from self._retire(world)

    def _lease(self, world: World, number: int) -> Iterator[tuple[str, World]]:
        """A worker takes the lease of any slot that has a step to evaluate."""
        for place in self.places:
            row, first = self.row(world, place), self.from_step(place[0])
            is_first = row.mark is None
            step = first if row.mark is None else row.mark + 1
            if step != first or row.retired or row.run >= self.runs or (is_first and not self._ready(world, place)):
                continue
            row = row._replace(run=row.run + 1)
            bases = () if is_first else row.kept[-1:]
            worker = Worker("read" if is_first else "put", place, row.run, step, bases, is_first)
            yield f"a worker leases {place}: run {row.run}", _with(self._write(world, place, row), number, worker)

    def _ready(self, world: World, place: Place) -> bool:
        """Whether the preceding slots have evaluated the last step of their layout."""
        marks = [self.row(world, other).mark for other in self.sharing(place, place[0] - 1)]
        some = any if self.flaw is Flaw.HEIR_BEFORE_ALL else all
        return some(mark == self.from_step(place[0]) - 1 for mark in marks)

    def _step(self, world: World, number: int, worker: Worker) -> Iterator[tuple[str, World]]:
        """The one move of a worker; none while it waits for a preceding slot."""
        row, place, step = self.row(world, worker.at), worker.at, worker.step
        over = "finds its run over", _with(world, number, Worker())
        if worker.does != "put" and row.run != worker.run:
            yield over
        elif worker.does == "read":
            preceding = self.sharing(place, place[0] - 1)
            read = self.row(world, preceding[len(worker.bases)])
            if read.kept and (read.mark == step - 1 or self.flaw is Flaw.HEIR_BEFORE_ALL):
                bases = (*worker.bases, read.kept[-1])
                does = "put" if len(bases) == len(preceding) else "read"
                yield (
                    f"reads the manifest of {preceding[len(worker.bases)]}",
                    _with(world, number, worker._replace(bases=bases, does=does)),
                )
        elif worker.does == "put":
            again = "finds an input gone and reads again", _with(world, number, worker._replace(does="read", bases=()))
            yield self._put(world, number, worker) or (again if row.run == worker.run and worker.first else over)
        elif worker.does == "horizon":
            at = self.places.index(place)
            named = world.horizons[at]
            if named is None or named[3] < step:
                named = (*place, "crossings", step, worker.run)
            horizons = (*world.horizons[:at], named, *world.horizons[at + 1 :])
            yield (
                f"moves the horizon to step {step}",
                _with(world._replace(horizons=horizons), number, worker._replace(does="commit")),
            )
        else:
            is_read = row.mark is None if worker.first else row.kept[-1:] == worker.bases
            if is_read:
                kept = (*row.kept, (*place, "manifest", step, worker.run))[-2:]
                world = self._write(world, place, row._replace(mark=step, kept=kept))
            yield f"commits step {step}", _with(world, number, Worker())

    def _put(self, world: World, number: int, worker: Worker) -> tuple[str, World] | None:
        """Put the parts, the object of crossings and the manifest; None if an input is gone."""
        objects, place, step = dict(world.objects), worker.at, worker.step
        parts: dict[str, Name] = {}
        for base in worker.bases:
            if base not in objects:
                return None
            parts |= {name[2]: name for name in objects[base] if name[2] in self.keys(place)}
        if any(name not in objects for name in parts.values()):
            return None
        put: dict[Name, Any] = {}
        for key, name in parts.items():
            if step in JOINED[key] or (worker.first and self.flaw is not Flaw.HEIR_NAMES_OLD_PARTS):
                parts[key] = (*place, key, step, worker.run)
                put[parts[key]] = (*objects[name], step) if step in JOINED[key] else objects[name]
        named = tuple(parts[key] for key in sorted(parts))
        put[*place, "manifest", step, worker.run] = named
        put[*place, "crossings", step, worker.run] = tuple((part[2], (objects | put)[part]) for part in named)
        if put.keys() & objects.keys():
            return "puts its objects", world._replace(strange="a name is written twice")
        world = world._replace(objects=world.objects | set(put.items()))
        return f"puts its objects of step {step}", _with(world, number, worker._replace(does="horizon"))

    def _recover(self, world: World) -> Iterator[tuple[str, World]]:
        """Lease the slot and its heirs; then the slot's row goes back, and the heirs' rows lose their marks."""
        operator = world.operator
        if not operator.places:
            for place in self.places if not world.recovered else ():
                row = self.row(world, place)
                retired = any(self.row(world, other).retired for other in self.places if other[0] == 0)
                if self.flaw is Flaw.RECOVERY_BESIDE_RETIRED:
                    retired = row.retired
                if place[0] == 0 and len(row.kept) == 2 and not retired:
                    places = [place]
                    for layout in range(1, len(self.slots)):
                        places += [other for other in self.places if other[0] == layout]
                    number = world.command + 1
                    begun = world._replace(
                        command=number, operator=Operator(tuple(places), command=number), recovered=True
                    )
                    yield f"an operator begins to recover {place}", begun
            return
        yield "the operator stops", world._replace(operator=Operator())
        has, at = operator.runs, operator.written
        if len(has) < len(operator.places):
            place = operator.places[len(has)]
            row = self.row(world, place)
            if row.run + 1 < self.runs:
                row = row._replace(run=row.run + 1)
                later = self._write(world, place, row)
                yield (
                    f"it leases {place}: run {row.run}",
                    later._replace(operator=operator._replace(runs=(*has, row.run))),
                )
            return
        place = operator.places[at]
        row = self.row(world, place)
        if operator.command != world.command and self.flaw is not Flaw.RECOVERY_BESIDE_RETIREMENT:
            return  # it can only stop
        if row.run != has[at] or row.retired or (at == 0 and len(row.kept) < 2):
            return
        if at == 0:
            row = row._replace(kept=row.kept[:-1], mark=row.kept[-2][3])
        else:
            row = Row() if self.flaw is Flaw.RUN_BEGINS_AGAIN else Row(row.run)
        done = at + 1 == len(operator.places)
        later = self._write(world, place, row)
        yield (
            f"it writes the row of {place}",
            later._replace(operator=Operator() if done else operator._replace(written=at + 1)),
        )

    def _retire(self, world: World) -> Iterator[tuple[str, World]]:
        """Begin a command, see that all heirs are there; then empty the row and raise its run, if no other began."""
        if self.flaw is Flaw.NOT_RETIRED_BY_A_WRITE:
            return
        if world.retiring is None:
            for place in self.places:
                if self.heirs(place) and not self.row(world, place).retired and self._all_there(world, place):
                    later = world._replace(command=world.command + 1, retiring=(place, world.command + 1))
                    yield f"somebody begins to retire {place} and reads that its heirs are there", later
            return
        place, command = world.retiring
        row, world = self.row(world, place), world._replace(retiring=None)
        if command == world.command or self.flaw is Flaw.RETIRED_BESIDE_RECOVERY:
            at = self.places.index(place)
            horizons = (*world.horizons[:at], None, *world.horizons[at + 1 :])
            retired = Row(row.run + 1, row.mark, (), retired=True)
            yield f"{place} is retired", self._write(world._replace(horizons=horizons), place, retired)
        else:
            yield f"{place} is not retired: another command has begun", world

    def _all_there(self, world: World, place: Place) -> bool:
        """Whether all heirs have committed and shown their first step."""
        heirs = self.heirs(place)
        shown = [world.horizons[self.places.index(heir)] is not None or self.row(world, heir).retired for heir in heirs]
        marked = [self.row(world, heir).mark is not None for heir in heirs]
        if self.flaw is Flaw.RETIRED_AFTER_ONE_HEIR:
            return any(both == (True, True) for both in zip(shown, marked, strict=True))
        return all(shown) and (all(marked) or self.flaw is Flaw.RETIRED_AFTER_HORIZON)

    def _swept(self, world: World) -> World:
        """Delete the names of lower runs that neither the slot's row nor its horizon names."""
        objects, named = dict(world.objects), set(world.horizons)
        for place in self.places:
            if not (self.flaw is Flaw.NOT_RETIRED_BY_A_WRITE and self.heirs(place) and self._all_there(world, place)):
                for manifest in self.row(world, place).kept:
                    named |= {manifest, *(part for part in objects.get(manifest, ()) if part[:2] == place)}
        gone = {name for name in objects if name not in named and name[4] < self.row(world, name[:2]).run}
        if not gone:
            return world
        return world._replace(objects=frozenset(each for each in world.objects if each[0] not in gone))

    def wrong(self, world: World) -> str | None:
        """What is wrong in a world, in words."""
        if world.strange:
            return world.strange
        objects = dict(world.objects)
        for place in self.places:
            row = self.row(world, place)
            preceding = self.sharing(place, place[0] - 1)
            if preceding and row.mark is None and any(self.row(world, other).retired for other in preceding):
                return f"{place} has not begun, and a slot from which it begins is retired"
            for manifest in row.kept:
                if manifest[:2] != place:
                    continue
                parts = {name[2]: objects.get(name) for name in objects.get(manifest, ())}
                if parts != {key: _expected(key, manifest[3]) for key in self.keys(place)}:
                    return f"the manifest of {place} at step {manifest[3]} is gone, or its parts are: {parts}"
        for key in "AB":
            named = [
                world.horizons[self.places.index(place)]
                for place in reversed(self.places)
                if key in self.keys(place) and world.horizons[self.places.index(place)] is not None
            ]
            shown = next(iter(named), None)
            if shown is not None and dict(objects.get(shown, ())).get(key) != _expected(key, shown[3]):
                return f"a reader of part {key} finds no object of crossings of step {shown[3]}, or another"
        return None

    def _write(self, world: World, place: Place, row: Row) -> World:
        at = self.number(place)
        return world._replace(rows=(*world.rows[:at], row, *world.rows[at + 1 :]))


def _expected(key: str, through: int) -> tuple[int, ...]:
    """The steps whose joins a part must have."""
    return tuple(step for step in JOINED[key] if step <= through)


def _with(world: World, number: int, worker: Worker) -> World:
    """The worker's next state. The workers are alike, so they are kept in one order."""
    workers = (*world.workers[:number], worker, *world.workers[number + 1 :])
    return world._replace(workers=tuple(sorted(workers)))
