"""What readers see: one set, one slot, a clock, the horizon of three steps, objects and the table.

The set is popular: it crosses again whenever it may, or not; then it is true for ``HOLD`` steps (a type that restarts
after the crossing). A step becomes visible at a tick. Evaluation may be late by any time and then evaluates several
steps before the next tick. The clocks of readers differ from the evaluator's by up to one unit; ticks are two units
apart, and the publish margin is one unit. An operator suppresses the set and shows it again.

A reader answers from the object that the horizon names for its step, or from the table if it does not have it. Both
must give what a sequential evaluation gives for that step, and within a tick every reader must see the same step.

Crashes are not modelled here: ``stepping`` has them.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

HOLD = 2
"""The number of steps that the set is true after a crossing."""
TICK = 2
"""The units of time between ticks. Step s is closed one tick before the tick TICK * s."""
MARGIN = 1
SKEWS = (-1, 0, 1)


class Flaw(Enum):
    """A way to get the protocol wrong; the model must find each."""

    CATCH_UP_PAST_HOLD = "a run evaluates one step more than HOLD after the oldest visible one"
    CATCH_UP_PAST_TWO_HOLDS = "a run evaluates as many steps as it can, up to two holds after the oldest visible one"
    TWO_STEPS = "the horizon remembers two steps"
    NO_MARGIN = "a step becomes visible at the next tick, however near"
    EARLY_OBJECT = "a reader uses the object that it loaded before the tick, though the horizon names another"
    SUPPRESSED_IN_OBJECT = "the object of crossings leaves out suppressed sets"
    ONE_CROSSING = "the table keeps one crossing of a set"
    CROSSING_ENDS_WITH_HOLD = "a part keeps a crossing while the set is true at its own step, and no longer"


class Horizon(NamedTuple):
    """The visible step over time; see ``kanon.gate.storage.aws.statuses.Horizon``. Each step names its object."""

    through: int = 0
    visible_from: int = 0
    earlier: int = 0
    earlier_from: int = 0
    earliest: int = 0

    def at(self, now: int) -> int:
        """The visible step."""
        if now >= self.visible_from:
            return self.through
        return self.earlier if now >= self.earlier_from else self.earliest

    @property
    def named(self) -> set[int]:
        """The steps whose objects it names."""
        return {self.through, self.earlier, self.earliest}


class World(NamedTuple):
    """A state of everything.

    Attributes:
        crossings: every crossing; history.
        table: the crossings of the set's item, which its last crossing has written from the part.
        written: whether the crossings of the step after ``mark`` are written.
        objects: (step, whether it has the set).
        seen: (tick, the step that a reader has seen in it) of the ticks in which some reader is.
        loaded: the object that a reader has loaded early, and the time from which it answers from it; or nothing.
    """

    now: int = 0
    mark: int = 0
    written: bool = False
    crossings: tuple[int, ...] = ()
    table: tuple[int, ...] = ()
    horizon: Horizon = Horizon()
    objects: frozenset[tuple[int, bool]] = frozenset({(0, False)})
    suppressed: bool = False
    seen: tuple[tuple[int, int], ...] = ((0, 0),)
    loaded: tuple[tuple[int, bool], int] | None = None


@dataclass(frozen=True)
class Model:
    """The set, with a flaw or none, for ``last`` steps."""

    flaw: Flaw | None = None
    last: int = 6

    @property
    def start(self) -> World:
        """Step 0 is visible, and nothing is true."""
        return World()

    def finished(self, world: World) -> bool:
        """Whether the last step is visible."""
        return world.horizon.at(world.now) == self.last

    def moves(self, world: World) -> Iterator[tuple[str, World]]:
        """The clock, evaluation, the operator and the reader that loads early."""
        for move, later in self._moves(world):
            yield move, self._seen(later)

    def _moves(self, world: World) -> Iterator[tuple[str, World]]:
        horizon, step = world.horizon, world.mark + 1
        waits = not world.written and not self._may_evaluate(world, step)
        if world.now < TICK * self.last or (waits and horizon.at(world.now) < self.last):
            yield f"the time is {world.now + 1}", world._replace(now=world.now + 1)
        if world.written:
            yield f"step {step} is published", self._publish(world, step)
        elif self._may_evaluate(world, step):
            later = world._replace(written=True)
            yield f"the set does not cross in step {step}", later
            if not _true(world.crossings, step):
                crossings = (*world.crossings, step)
                table = tuple(crossing for crossing in crossings if crossing + self._kept > step)
                if self.flaw is Flaw.ONE_CROSSING:
                    table = crossings[-1:]
                yield f"the set crosses in step {step}", later._replace(crossings=crossings, table=table)
        if not world.written:  # the operator's command is one write; when does not matter more finely
            verb = "shows" if world.suppressed else "suppresses"
            yield f"the operator {verb} the set", world._replace(suppressed=not world.suppressed)
        if self.flaw is Flaw.EARLY_OBJECT and world.now < horizon.visible_from:
            loaded = (horizon.through, dict(world.objects)[horizon.through]), horizon.visible_from
            yield f"a reader loads the object of step {horizon.through}", world._replace(loaded=loaded)

    @property
    def _kept(self) -> int:
        """The number of steps that a part keeps a crossing."""
        return HOLD if self.flaw is Flaw.CROSSING_ENDS_WITH_HOLD else 2 * HOLD

    def _may_evaluate(self, world: World, step: int) -> bool:
        """Whether the step is closed, and not too far after the oldest one that a reader may still see."""
        ahead = HOLD
        if self.flaw is Flaw.CATCH_UP_PAST_HOLD:
            ahead = HOLD + 1
        elif self.flaw is Flaw.CATCH_UP_PAST_TWO_HOLDS:
            ahead = 2 * HOLD
        if step > self.last or world.now < TICK * (step - 1):
            return False
        return step <= world.horizon.at(world.now + min(SKEWS)) + ahead

    def _publish(self, world: World, step: int) -> World:
        """Put the object, move the horizon, delete objects that it no longer names; then commit."""
        margin = 0 if self.flaw is Flaw.NO_MARGIN else MARGIN
        visible_from, old = TICK * ((world.now + margin) // TICK + 1), world.horizon
        if old.visible_from < visible_from:
            earliest = old.through if self.flaw is Flaw.TWO_STEPS else old.earlier
            horizon = Horizon(step, visible_from, old.through, old.visible_from, earliest)
        else:
            horizon = old._replace(through=step)
        has = _true(world.crossings, step)
        if self.flaw is Flaw.SUPPRESSED_IN_OBJECT:
            has = has and not world.suppressed
        objects = frozenset(each for each in world.objects | {(step, has)} if each[0] in horizon.named)
        return world._replace(mark=step, written=False, horizon=horizon, objects=objects)

    def _seen(self, world: World) -> World:
        """What readers see now is what they must see to the end of their tick."""
        seen = dict(world.seen)
        clocks = [world.now + skew for skew in SKEWS]
        now = {clock // TICK: seen.get(clock // TICK, world.horizon.at(clock)) for clock in clocks}
        return world._replace(seen=tuple(sorted(now.items())))

    def wrong(self, world: World) -> str | None:
        """What is wrong in a world, in words."""
        seen, objects = dict(world.seen), dict(world.objects)
        for clock in (world.now + skew for skew in SKEWS):
            visible = world.horizon.at(clock)
            if seen.get(clock // TICK, visible) != visible:
                return f"within a tick one reader sees step {seen[clock // TICK]} and another step {visible}"
            truth = _true(world.crossings, visible)
            if _true(world.table, visible) != truth:
                return f"step {visible} is visible, the set crossed at {world.crossings}, the table says {not truth}"
            if objects.get(visible) != truth:
                return f"the object of the visible step {visible} is gone, or it says {not truth}"
            if world.loaded and clock // TICK == world.loaded[1] // TICK and world.loaded[0][1] != truth:
                return f"a reader answers from the object of step {world.loaded[0][0]}, others from step {visible}"
        return None


def _true(crossings: tuple[int, ...], step: int) -> bool:
    return any(crossing <= step < crossing + HOLD for crossing in crossings)
