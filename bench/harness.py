"""Compares two pieces of work by their processor time, turn by turn, each in a process of its own.

Times on a shared machine vary from minute to minute, but the ratio of two adjacent measurements is stable. So both
sides take turns, and each ratio is that of two adjacent turns. In one process the objects of one side would slow down
the garbage collector of the other one; here each side has its own, which ignores everything that was there before a
turn.
"""

from __future__ import annotations

import gc
import hashlib
import resource
import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from typing import Any, NamedTuple


@dataclass(frozen=True)
class Form:
    """The form of a run. The short form checks counts and that every row runs; its times are rough."""

    short: bool = False

    def size(self, whole: int, short: int) -> int:
        """A number of turns, requests or sets that depends on the form."""
        return short if self.short else whole


class Took(float):
    """Seconds that a piece of work measured itself, such as the time of the busiest of its processes."""


class Turn(NamedTuple):
    """A piece of work, prepared, and the number of its units.

    ``answer`` computes from the result of the work what both sides must agree on; its time does not count.
    """

    units: int
    work: Callable[[], Any]
    answer: Callable[[Any], object] = lambda _: None


Start = Callable[..., AbstractContextManager[Callable[[], Turn]]]


class Side(NamedTuple):
    """One side of a comparison. In its process ``start(*arguments)`` gives the function that prepares its turns."""

    start: Start
    arguments: tuple[Any, ...] = ()


@dataclass(frozen=True)
class Comparison:
    """A row that is to be measured: the project's work relative to other work.

    ``inside`` and ``against`` say what each side includes. ``target`` is the upper limit of the ratio. With ``warm``
    both sides begin with a turn that does not count.
    """

    name: str
    inside: str
    against: str
    unit: str
    ours: Side
    theirs: Side
    turns: int
    target: float | None = None
    warm: bool = True


@dataclass(frozen=True)
class Ratio:
    """A measured comparison. Times in s, for one unit."""

    row: Comparison
    ours: tuple[float, ...]
    theirs: tuple[float, ...]

    @property
    def name(self) -> str:
        """The name of the row."""
        return self.row.name

    @property
    def ratios(self) -> list[float]:
        """The ratio of each turn."""
        return [ours / theirs for ours, theirs in zip(self.ours, self.theirs, strict=True)]

    @property
    def seconds(self) -> tuple[float, float]:
        """The time of one unit on each side, the median over the turns."""
        return statistics.median(self.ours), statistics.median(self.theirs)

    @property
    def median(self) -> float:
        """The figure of the row."""
        return statistics.median(self.ratios)

    @property
    def met(self) -> bool | None:
        """Whether the target is met; None without a target."""
        return None if self.row.target is None else self.median <= self.row.target

    @property
    def figures(self) -> dict[str, object]:
        """What goes into the history."""
        return {
            "name": self.name,
            "inside": self.row.inside,
            "against": self.row.against,
            "ratio": round(self.median, 4),
            "least": round(min(self.ratios), 4),
            "most": round(max(self.ratios), 4),
            "microseconds": round(1e6 * self.seconds[0], 4),
            "microseconds_against": round(1e6 * self.seconds[1], 4),
            "unit": self.row.unit,
            "target": self.row.target,
            "met": self.met,
        }


@dataclass(frozen=True)
class Count:
    """A count, which is the same on every machine. ``most`` is the target."""

    name: str
    against: str
    value: float
    most: float

    @property
    def met(self) -> bool:
        """Whether the target is met."""
        return self.value <= self.most

    @property
    def figures(self) -> dict[str, object]:
        """What goes into the history."""
        value = round(self.value, 4)
        return {"name": self.name, "against": self.against, "count": value, "target": self.most, "met": self.met}


class Failed(NamedTuple):
    """A row that could not be measured, or the claim whose further rows are missing."""

    name: str
    reason: str
    met: bool = False


Result = Ratio | Count
Row = Comparison | Count


class SideError(Exception):
    """A side failed, or both sides give different answers."""


def results(claim: str, rows: Iterable[Row]) -> Iterator[Result | Failed]:
    """Measure the rows of a claim. A comparison that fails is lost alone; an error of ``rows`` ends the claim."""
    try:
        for row in rows:
            try:
                yield compare(row) if isinstance(row, Comparison) else row
            except SideError as error:
                yield Failed(row.name, str(error))
    except Exception as error:  # noqa: BLE001, the other claims are still to be measured
        yield Failed(claim, _reason(error))


def compare(row: Comparison) -> Ratio:
    """Measure both sides in turns; each goes first every other time.

    Raises:
        SideError: a side failed, or the sides give different answers.
    """
    found: tuple[list[float], list[float]] = [], []
    with _process(row.ours) as ours, _process(row.theirs) as theirs:
        for number in range(row.turns + row.warm):
            sides = [(found[0], ours), (found[1], theirs)]
            answers = []
            for seconds, take in sides[:: 1 if number % 2 else -1]:
                taken, answer = take()
                seconds.append(taken)
                answers.append(answer)
            if len(set(answers)) > 1:
                raise SideError("the two sides give different answers")
    mine, others = (tuple(seconds[row.warm :]) for seconds in found)
    return Ratio(row, mine, others)


@contextmanager
def _process(side: Side) -> Iterator[Callable[[], tuple[float, str]]]:
    """A side in its process. Yields the function that takes a turn: seconds for one unit, and the answer's digest."""
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:

        def do(work: Callable[..., Any], *given: Any) -> Any:
            try:
                return pool.submit(_told, work, *given).result()
            except BrokenProcessPool:
                raise SideError("the process of a side ended") from None

        do(_begin, side)
        try:
            yield partial(do, _take)
        finally:
            with suppress(SideError):
                do(_end)


def _told(work: Callable[..., Any], *given: Any) -> Any:
    """Do a piece of work in a side's process; any error is told to the other process as text."""
    try:
        return work(*given)
    except Exception as error:  # noqa: BLE001
        raise SideError(_reason(error)) from None


_opened = ExitStack()
_prepares: list[Callable[[], Turn]] = []
"""What the process of a side holds."""


def _begin(side: Side) -> None:
    _prepares.append(_opened.enter_context(side.start(*side.arguments)))


def _take() -> tuple[float, str]:
    return timed(_prepares[0]())


def _end() -> None:
    gc.unfreeze()  # so that extensions can end as usual
    _opened.close()


def timed(turn: Turn) -> tuple[float, str]:
    """Do the work of a turn: seconds for one unit, and a digest of its answer."""
    gc.unfreeze()
    gc.collect()
    gc.freeze()
    began = _spent()
    result = turn.work()
    seconds = float(result) if isinstance(result, Took) else _spent() - began
    return seconds / turn.units, hashlib.sha256(repr(turn.answer(result)).encode()).hexdigest()


def _spent() -> float:
    """The processor time so far, in s, of this process and of the children that it has awaited."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def _reason(error: Exception) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:200]}" if text else type(error).__name__
