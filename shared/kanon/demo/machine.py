"""A service of one machine on simulated time, in a directory that is deleted after it."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory

from aws_lambda_powertools import Logger

from kanon import clock
from kanon.serving.access import Access, AuthMode
from kanon.serving.directory import Directory, Given, open_directory
from kanon.serving.http import Server
from kanon.serving.lists import Lister
from kanon.serving.service import Service

OPEN = Access(AuthMode.OPEN, AuthMode.OPEN, {})
DAYS = 10_000
"""How long lists are kept: longer than any log."""


class Machine:
    """A service that answers at ``url``, and whose time moves only if :meth:`advance_to` moves it."""

    def __init__(self, directory: Directory, url: str, start: float) -> None:
        self.directory, self.url, self._now = directory, url, start
        self.evaluations = 0  # of a set, so far
        listed = any(type_.listed for type_ in directory.types.values())
        self._lister = Lister(directory, days=DAYS) if listed else None

    @property
    def publish_delay(self) -> float:
        """The time from the end of a step until its answers are visible (s)."""
        return self.directory.settings.publish_delay

    def now(self) -> float:
        """The simulated time (Unix s)."""
        return self._now

    def advance_to(self, moment: float) -> None:
        """Move time, and evaluate each step as soon as it is closed. Publish the lists that are visible then."""
        while (wake := self.directory.next_wake(self._now)) <= moment:
            self._now = wake
            self.evaluations += self.directory.evaluate(wake).sets
        self._now = moment
        if self._lister is not None:
            self._lister.publish(moment)


@contextmanager
def machine(types: str, period: int, start: int, seed: int) -> Iterator[Machine]:
    """A machine at the time ``start`` (Unix s), with these types. A seed gives the same secrets: the same noise."""

    def drawn(name: str) -> str:
        return sha256(f"demo {seed} {name}".encode()).hexdigest()

    with (
        TemporaryDirectory(prefix="kanon-demo-") as folder,
        open_directory(Path(folder) / "data", Given(period, types, drawn), start) as directory,
    ):
        logger = Logger(service="kanon", level="ERROR", use_rfc3339=True)
        answer = Service(directory, OPEN, logger).answer
        server = Server(answer, "127.0.0.1", 0, lambda found: logger.error("unexpected error", **found))
        made, real = Machine(directory, server.url, start), clock.now
        clock.now = made.now
        try:
            with closing(server):
                yield made
        finally:
            clock.now = real
