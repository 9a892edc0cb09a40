"""Which parts a step must visit: one set in a part, every log of eight steps, and a skip.

The set crosses when its count and the noise of the step reach k. The noise is a fixed tape. A part is visited when it
has joins or is due: its earliest wake-up or its earliest end is not after the step. The evaluation of every step on the
whole log says what must come out. An operator may skip steps once: their joins are lost and nobody evaluates them.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

WINDOW = 3
HOLD = 3
K = 2
NOISE = (0, 0, 0, 1, 1, 0, 1, 0, 1)
"""The noise of each step."""
LAST = 8
LOGGED = 5
"""The last step with joins. Then all members leave."""
NEVER = 99
CLIENTS = ((), ("p",), ("q",), ("p", "q"))


class Flaw(Enum):
    """A way to get the protocol wrong; the model must find each."""

    DUE_BY_EQUALITY = "a part is due if its wake-up is the step"
    NO_END = "a part whose members have expired is never due"
    END_WITHOUT_CROSSING = "a set ends with its members, though its crossing still matters"
    WAKE_UP_KEPT = "a wake-up that has passed stays the part's earliest one"


class Part(NamedTuple):
    """A part with one set or none: (client, last step) of its members, its newest crossing, its wake-up and its end."""

    members: tuple[tuple[str, int], ...] = ()
    crossing: int = -NEVER
    wake_up: int = NEVER
    end: int = NEVER


class World(NamedTuple):
    """The part at the mark; the joins of every evaluated step and the crossings that they imply: history.

    ``skipped`` is the step to which the operator skipped, 0 if not.
    """

    mark: int = 0
    part: Part = Part()
    joins: tuple[tuple[str, int], ...] = ()
    crossings: tuple[int, ...] = ()
    skipped: int = 0
    released: tuple[int, ...] = ()
    """The crossings that evaluation has written."""


@dataclass(frozen=True)
class Model:
    """The part, with a flaw or none."""

    flaw: Flaw | None = None

    @property
    def start(self) -> World:
        """Nobody has joined."""
        return World()

    def finished(self, world: World) -> bool:
        """Whether the last step is evaluated."""
        return world.mark == LAST

    def moves(self, world: World) -> Iterator[tuple[str, World]]:
        """The next step with any joins, or a skip."""
        step = world.mark + 1
        if step > LAST:
            return
        for clients in CLIENTS if step <= LOGGED else CLIENTS[:1]:
            joins = _latest((*world.joins, *((client, step) for client in clients)))
            crossings = world.crossings
            if not _true(crossings, step) and _count(joins, step) + NOISE[step] >= K:
                crossings = (*crossings, step)
            part = self._visited(world.part, clients, step)
            released = (*world.released, step) if part.crossing == step else world.released
            later = World(step, part, joins, crossings, world.skipped, released)
            yield f"step {step}: {' and '.join(clients) or 'nobody'} joins", later
        if not world.skipped:
            for through in range(step, LAST):
                yield f"the operator skips to step {through + 1}", world._replace(mark=through, skipped=through)

    def _visited(self, part: Part, clients: tuple[str, ...], step: int) -> Part:
        """The part after a step."""
        if not clients and not self._is_due(part, step):
            return part
        joined = _latest((*part.members, *((client, step) for client in clients)))
        members = tuple((client, last) for client, last in joined if last + WINDOW > step)
        crossing = part.crossing
        if step >= crossing + HOLD and _count(members, step) + NOISE[step] >= K:
            crossing = step
        ahead = range(max(step + 1, crossing + HOLD), LAST + 1)
        wake_up = next((at for at in ahead if _count(members, at) + NOISE[at] >= K), NEVER)
        if self.flaw is Flaw.WAKE_UP_KEPT:
            wake_up = min(wake_up, part.wake_up)
        end = max((last + WINDOW for _, last in members), default=-NEVER)
        if self.flaw is not Flaw.END_WITHOUT_CROSSING:
            end = max(end, crossing + HOLD)
        return Part() if end <= step else Part(members, crossing, wake_up, end)

    def _is_due(self, part: Part, step: int) -> bool:
        if self.flaw is Flaw.DUE_BY_EQUALITY:
            return part.wake_up == step or part.end <= step
        return part.wake_up <= step or (part.end <= step and self.flaw is not Flaw.NO_END)

    def wrong(self, world: World) -> str | None:
        """What is wrong in a world, in words."""
        if world.released != world.crossings:
            return f"the set crosses at {world.crossings}, the parts say {world.released}"
        if world.part.end <= world.mark != world.skipped:
            return f"the set could be forgotten at step {world.part.end} and is there at step {world.mark}"
        if world.part.wake_up <= world.mark != world.skipped:
            return "a part is due for ever: each step rewrites it"
        return None


def _latest(joins: tuple[tuple[str, int], ...]) -> tuple[tuple[str, int], ...]:
    """Each client with its last join."""
    return tuple(sorted(dict(sorted(joins, key=lambda join: join[1])).items()))


def _count(members: tuple[tuple[str, int], ...], step: int) -> int:
    return sum(last <= step < last + WINDOW for _, last in members)


def _true(crossings: tuple[int, ...], step: int) -> bool:
    return any(crossing <= step < crossing + HOLD for crossing in crossings)
