"""Sides of the comparisons in ``test_harness``. Each is started in a process of its own, so this imports little."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from bench.harness import Took, Turn


@contextmanager
def side(*seconds: float) -> Iterator[Callable[[], Turn]]:
    """A side whose turns take given times."""
    each = iter(seconds)
    yield lambda: Turn(1, lambda: Took(next(each)))


@contextmanager
def of_its_process() -> Iterator[Callable[[], Turn]]:
    """A side that answers with its process."""
    yield lambda: Turn(1, os.getpid, lambda pid: pid)


@contextmanager
def refusing(where: str) -> Iterator[Callable[[], Turn]]:
    """A side that fails."""

    def fail() -> Turn:
        raise RuntimeError("no | such\ntable")

    if where == "start":
        fail()
    if where == "exit":
        yield lambda: Turn(1, lambda: os._exit(3))
    yield fail if where == "prepare" else lambda: Turn(1, fail)


@contextmanager
def answering(answer: object) -> Iterator[Callable[[], Turn]]:
    """A side with this answer."""
    yield lambda: Turn(1, lambda: Took(1.0), lambda _: answer)
