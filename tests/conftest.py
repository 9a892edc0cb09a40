"""One fixture starts the whole service: handlers, tables, queue, schedule, HTTP and clock."""

import gc
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from kanon.local import Stack
from tests.watched.watch import look_at_all, watching

START = 1_700_000_000.0
"""When simulated time starts, unless a test says otherwise: 2023-11-14 22:13:20 UTC."""


@pytest.fixture(scope="session", autouse=True)
def _every_deployment_is_watched() -> Iterator[None]:
    """No stack of any test goes unseen."""
    with watching():
        yield


@pytest.fixture(autouse=True)
def _nothing_forbidden_is_done_or_said() -> Iterator[None]:
    """The test fails that lets a function make a call its role refuses, or tell of a set or a client."""
    yield
    assert look_at_all() == []


@pytest.fixture(scope="module", autouse=True)
def _leaks_show_where_they_are() -> Iterator[None]:
    """What a module leaves open is warned of, as an error, in that module and not in some later one."""
    yield
    gc.collect()


@pytest.fixture
def new_stack() -> Iterator[Callable[..., Stack]]:
    """Starts stacks on moto at a simulated time; takes what ``Stack`` takes."""
    with ExitStack() as running:

        def start(parameters: dict[str, str] | None = None, **options: Any) -> Stack:
            return running.enter_context(Stack(parameters, **{"start": START, **options}))

        yield start


@pytest.fixture
def stack(new_stack: Callable[..., Stack]) -> Stack:
    """The service with its default parameters."""
    return new_stack()
