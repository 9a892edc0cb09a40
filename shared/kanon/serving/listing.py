"""Publishes the lists of a directory at each tick, and says whether that works."""

from aws_lambda_powertools import Logger

from kanon import clock
from kanon.serving.evaluating import MOST_SECONDS_ASLEEP, SECONDS_TO_RETRY, told
from kanon.serving.lists import Lister
from kanon.serving.measures import ListMeasures, Measures

LATE_STEPS = 2


class ListPublication:
    """The publication of the lists of a directory."""

    def __init__(self, lister: Lister, measures: Measures, logger: Logger) -> None:
        self.lister = lister
        self._measures, self._logger = ListMeasures(measures), logger
        self._error = ""

    def turn(self, now: float) -> float:
        """Publish what is visible at ``now``. Returns the seconds until the next turn."""
        try:
            new, behind = self.lister.publish(now), self.lister.behind(now)
        except Exception as error:  # noqa: BLE001, the next turn tries again
            self._measures.stopped.inc()
            self._error = "lists are not published"
            self._logger.error(self._error, extra=told(error))
            return SECONDS_TO_RETRY
        self._error = ""
        self._measures.unopened.set(self.lister.unopened)
        if self.lister.unopened:
            self._logger.error("sealed values do not open", values=self.lister.unopened)
        if new:
            self._logger.info("listed")
        self._measures.behind.set(behind)
        if behind:
            return 1.0  # the step of this tick is not evaluated yet
        return min(max(0.0, self.lister.next_tick(now) - clock.now()), MOST_SECONDS_ASLEEP)

    def problem(self, now: float) -> str:
        """What is wrong with the lists at ``now``, in words; empty if nothing is."""
        if self._error:
            return f"{self._error}: the log of the service says why"
        behind = self.lister.behind(now)
        return f"lists are {behind} steps behind the answers" if behind >= LATE_STEPS else ""
