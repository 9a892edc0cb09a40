"""Shared by the commands that run the service on this machine."""

from collections.abc import Iterator
from contextlib import contextmanager

from kanon.cli.errors import one_line


@contextmanager
def local_errors() -> Iterator[None]:
    """End the command with one line if the stack, its emulator or its log fails.

    Status 2: the input is invalid. Status 1: the run failed.
    """
    from kanon.client import ApiError
    from kanon.joinlog import LogError
    from kanon.local import EngineError
    from kanon.local.replay import ReplayError
    from kanon.local.template import TemplateError

    with one_line(LogError, TemplateError), one_line(ApiError, EngineError, ReplayError, status=1):
        yield
