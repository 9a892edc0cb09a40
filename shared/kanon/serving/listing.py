"""The thread that publishes lists at each tick."""

import threading

from aws_lambda_powertools import Logger

from kanon import clock
from kanon.errors import KanonError, kind_and_place
from kanon.serving.evaluating import MOST_SECONDS_ASLEEP, SECONDS_TO_RETRY, Stop
from kanon.serving.lists import Lister
from kanon.serving.measures import ListMeasures, Measures

LATE_STEPS = 2


class Listing:
    """Publishes the lists of a directory in a thread of its own."""

    def __init__(self, lister: Lister, measures: Measures, logger: Logger) -> None:
        self.lister = lister
        self._measures, self._logger = ListMeasures(measures), logger
        self._error = ""

    def run(self, stop: Stop) -> None:
        """Publish until told to stop."""
        while not stop.wait(self.turn(clock.now())):
            pass

    def turn(self, now: float) -> float:
        """Publish what is visible at ``now``. Returns the seconds until the next turn."""
        try:
            new = self.lister.publish(now)
        except KanonError as error:
            return self._failed(reason=str(error))
        except Exception as error:  # noqa: BLE001, its text may hold a value
            return self._failed(**kind_and_place(error))
        self._error = ""
        self._measures.unopened.set(self.lister.unopened)
        if self.lister.unopened:
            self._logger.error("sealed values do not open", values=self.lister.unopened)
        if new:
            self._logger.info("listed")
        behind = self.lister.behind(now)
        self._measures.behind.set(behind)
        if behind:
            return 1.0  # the step of this tick is not evaluated yet
        return min(max(0.0, self.lister.next_tick(now) - clock.now()), MOST_SECONDS_ASLEEP)

    def _failed(self, **fields: str) -> float:
        self._measures.stopped.inc()
        self._error = "lists are not published"
        self._logger.error(self._error, extra=fields)
        return SECONDS_TO_RETRY

    def problem(self, now: float) -> str:
        """What is wrong with the lists at ``now``, in words; empty if nothing is."""
        if self._error:
            return f"{self._error}: the log of the service says why"
        behind = self.lister.behind(now)
        return f"lists are {behind} steps behind the answers" if behind >= LATE_STEPS else ""


def start(listing: Listing, stop: threading.Event) -> threading.Thread:
    """Publish in a thread until ``stop`` is set."""
    thread = threading.Thread(target=listing.run, args=(stop,), name="list", daemon=True)
    thread.start()
    return thread
