"""Explore a small model breadth-first: every order of the moves, every state checked.

A model gives its first state, the moves from a state, what is wrong in a state, and when its work is finished. States
are immutable and compared by value. The search is breadth-first, so the moves that it prints are a shortest way to a
wrong state.
"""

from collections.abc import Hashable, Iterator
from typing import NamedTuple, Protocol, TypeVar

State = TypeVar("State", bound=Hashable)


class Model(Protocol[State]):
    """A protocol with its workers, small enough to be explored."""

    @property
    def start(self) -> State:
        """The first state."""

    def moves(self, state: State) -> Iterator[tuple[str, State]]:
        """Each move from a state: what happens, in words, and the state after it."""

    def wrong(self, state: State) -> str | None:
        """What is wrong in a state, in words; None if nothing is."""

    def finished(self, state: State) -> bool:
        """Whether all work is done. From every state some finished state must be reachable."""


class Explored(NamedTuple):
    """The number of states, what is wrong in the first wrong one, and the moves that lead to it."""

    states: int
    problem: str | None = None
    moves: tuple[str, ...] = ()

    def __str__(self) -> str:
        if self.problem is None:
            return f"{self.states} states, none wrong"
        return "\n".join((*self.moves, f"=> {self.problem}"))


def explore(model: Model[State]) -> Explored:
    """Explore every state of a model, or stop at the first wrong one."""
    states, moved = [model.start], [""]
    number_of, came_from = {model.start: 0}, [0]
    before: list[list[int]] = [[]]
    for number, state in enumerate(states):  # grows while it is read
        if (problem := model.wrong(state)) is not None:
            return Explored(len(states), problem, _way(number, came_from, moved))
        for move, later in model.moves(state):
            at = number_of.setdefault(later, len(states))
            if at == len(states):
                states.append(later)
                moved.append(move)
                came_from.append(number)
                before.append([])
            before[at].append(number)
    stuck = _stuck(before, [number for number, state in enumerate(states) if model.finished(state)])
    if stuck is None:
        return Explored(len(states))
    return Explored(len(states), "from here the work can never be finished", _way(stuck, came_from, moved))


def _way(number: int, came_from: list[int], moved: list[str]) -> tuple[str, ...]:
    """The moves from the first state to a state."""
    way = []
    while number:
        way.append(moved[number])
        number = came_from[number]
    return tuple(reversed(way))


def _stuck(before: list[list[int]], finished: list[int]) -> int | None:
    """The first state from which no finished state can be reached."""
    able = bytearray(len(before))
    waiting = list(finished)
    for number in waiting:
        able[number] = 1
    while waiting:
        for earlier in before[waiting.pop()]:
            if not able[earlier]:
                able[earlier] = 1
                waiting.append(earlier)
    stuck = able.find(0)
    return None if stuck < 0 else stuck
