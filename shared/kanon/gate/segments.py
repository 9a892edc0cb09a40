"""Use case: evaluate the closed steps of a slot whose states are sorted parts, and publish each one at its tick.

A step reads its joins range by range, in the order of set keys, merges them into the parts, and writes the parts that
changed as new files. Then one transaction publishes crossings, horizon, manifest and mark together. Before it, nothing
has happened: a process that stops evaluates the step again with the same joins, states and noise.

Steps at which nothing happens are not evaluated: no client joined, and no set crosses or may be forgotten. The mark
moves over them.
"""

import time
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from kanon.gate.deciding import Decisions
from kanon.gate.storage.disk.log import DiskLog
from kanon.gate.storage.disk.parts import PartFiles
from kanon.gate.storage.protocols import Manifest, Piece, Sealed, Status


class RunResult(NamedTuple):
    """The result of a run: steps completed, sets decided, and the largest delay of a step after its tick (s)."""

    steps: int = 0
    sets: int = 0
    late: int = 0


class SlotControl(Protocol):
    """Mark, manifests and answers of a slot: those of a directory, or of a replay, which publishes nothing."""

    def evaluated_through(self) -> int | None:
        """The mark; None before the first step."""

    def manifest(self) -> Manifest | None:
        """The newest manifest."""

    def manifests(self) -> list[Manifest]:
        """All manifests that are kept, oldest first."""

    def forget_manifests(self, steps: Iterable[int]) -> None:
        """Forget manifests."""

    def commit(
        self,
        run: int,
        before: int | None,
        step: int,
        pieces: Sequence[Piece],
        statuses: Iterable[Status],
        visible_from: int,
        sealed: Iterable[Sealed] = (),
    ) -> None:
        """Publish everything up to ``step`` in one transaction."""

    def expire(self, now: float) -> None:
        """Forget the crossings that no reader needs any more."""


@dataclass
class Segments(Decisions):
    """The use case with its storage, types and keys.

    Attributes:
        run: the number of this run.
        begin_at: the first step of a deployment that has no mark.
    """

    log: DiskLog
    parts: PartFiles
    control: SlotControl
    run: int
    begin_at: int

    def evaluate(self, now: float, published: Callable[[], None] = lambda: None) -> RunResult:
        """Evaluate and publish the closed steps that are not evaluated yet. After each, ``published`` is called.

        Raises:
            ConfigurationError: a noise key or a type is missing.
            LeaseLostError: another process has continued this deployment.
            UndecodableMembersError: a part is missing or damaged.
        """
        began = time.monotonic()
        done, last = RunResult(), self.schedule.last_closed(now)
        self.log.close_through(last)
        joined = self.log.steps()  # once: a log may have many thousand files
        before, mark, manifest = self.control.evaluated_through(), self._mark(), self.control.manifest() or Manifest(-1)
        while mark < last:
            step = min(self._next_with_work(mark, manifest, joined), last)
            pieces, crossed, sealed, sets = self._step(step, mark, manifest)
            # A step may take longer than the margin, and then the tick that was next at ``now`` has passed.
            visible_from = self.schedule.visible_from(now + time.monotonic() - began)
            self.control.commit(self.run, before, step, pieces, crossed, visible_from, sealed)
            published()
            late = visible_from - self.schedule.tick_of(mark + 1)
            done = RunResult(done.steps + step - mark, done.sets + sets, max(done.late, late))
            before, mark, manifest = step, step, Manifest(step, tuple(pieces))
        return done

    def lag(self, now: float) -> int:
        """The number of closed steps that are not evaluated yet."""
        return max(0, self.schedule.last_closed(now) - self._mark())

    def keep(self, now: float) -> None:
        """Delete what no recovery needs any more: old joins, crossings, manifests and their parts.

        The last manifests are kept, and one a day for the outage allowance; joins as long as the oldest of these.
        """
        kept = self.control.manifests()
        wanted = self.schedule.manifests_kept([manifest.step for manifest in kept], now)
        self.control.forget_manifests([manifest.step for manifest in kept if manifest.step not in wanted])
        self.sweep()
        if wanted:
            self.log.forget_before(min(wanted) + 1)
        self.control.expire(now)

    def sweep(self) -> None:
        """Delete the parts that no manifest names: old ones, and those of a step that was not completed."""
        named = {piece.name for manifest in self.control.manifests() for piece in manifest.pieces}
        self.parts.sweep(named, self.run)

    def _mark(self) -> int:
        mark = self.control.evaluated_through()
        return self.begin_at - 1 if mark is None else mark

    def _next_with_work(self, mark: int, manifest: Manifest, joined: Sequence[int]) -> int:
        """The first step after the mark at which something may happen. ``joined``: those with joins, sorted."""
        after = bisect_right(joined, mark)
        begins = None if self.generation is None else self.generation.from_step
        steps = (
            *joined[after : after + 1],
            manifest.earliest,
            begins if begins is not None and begins > mark else None,
        )
        return max(mark + 1, min((step for step in steps if step is not None), default=_NO_STEP))

    def _step(self, step: int, mark: int, manifest: Manifest) -> tuple[list[Piece], list[Status], list[Sealed], int]:
        """The pieces after ``step``, the crossings at it with their sealed values, and the number of sets decided."""
        pieces: list[Piece] = []
        crossed: list[Status] = []
        sealed: list[Sealed] = []
        sets = 0
        for found in self.decided(step, self.run, self.log, self.parts, manifest.pieces, mark=mark):
            pieces += found.pieces
            crossed += found.crossed
            sealed += found.sealed
            sets += found.sets
        self.parts.sync()
        return pieces, crossed, sealed, sets


_NO_STEP = 2**62
