"""Evaluates the closed steps of a directory, each as soon as it is closed, and says whether that works."""

import threading
import time
from collections.abc import Callable

from aws_lambda_powertools import Logger

from kanon import clock
from kanon.errors import KanonError, kind_and_place
from kanon.serving.directory import AFTER_A_CLOCK_AHEAD, Directory, ahead
from kanon.serving.measures import Measures

SECONDS_TO_RETRY = 5.0
MOST_SECONDS_ASLEEP = 60.0
"""The clock of the machine may be set, and the machine may sleep."""
LEAST_MARGIN = 1


def start(name: str, turn: Callable[[float], float], stop: threading.Event) -> threading.Thread:
    """Take turns in a thread until ``stop`` is set. A turn gets the time, and returns the seconds to wait."""

    def run() -> None:
        while not stop.wait(turn(clock.now())):
            pass

    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    return thread


def told(error: Exception) -> dict[str, str]:
    """What the log says of an error: not its text, which may hold a value, unless it is one of ours."""
    return {"reason": str(error)} if isinstance(error, KanonError) else kind_and_place(error)


class Evaluating:
    """The evaluation of a directory."""

    def __init__(self, directory: Directory, measures: Measures, logger: Logger) -> None:
        self._directory, self._measures, self._logger = directory, measures, logger
        self._error = ""
        settings = directory.settings
        self._margin = max(LEAST_MARGIN, settings.publish_delay - settings.grace)

    def turn(self, now: float) -> float:
        """Evaluate what is closed at ``now``. Returns the seconds until the next turn."""
        began = time.perf_counter()
        try:
            done = self._directory.evaluate(now)
            lag = self._directory.lag(now)
            wait = self._directory.next_wake(now) - clock.now()
        except Exception as error:  # noqa: BLE001, the next turn tries again
            self._measures.stopped.inc()
            self._error = "evaluation stopped" if isinstance(error, KanonError) else "unexpected error"
            self._logger.error(self._error, extra=told(error))
            return SECONDS_TO_RETRY
        self._error = ""
        if done.steps:
            seconds = time.perf_counter() - began
            self._measures.steps.inc(done.steps)
            self._measures.seconds.inc(seconds)
            fields = {"steps": done.steps, "steps_behind": lag, "late": done.late, "seconds": round(seconds, 3)}
            self._logger.info("evaluated", extra=fields)
        return min(max(0.0, wait), MOST_SECONDS_ASLEEP)

    def problem(self, now: float) -> str:
        """What is wrong with the answers at ``now``, in words; empty if nothing is.

        The last closed step must be evaluated when it is to become visible.
        """
        directory = self._directory
        late = directory.lag(now - self._margin)
        if self._error:
            return f"{self._error}: the log of the service says why"
        if early := ahead(directory.evaluated_through, directory.segments.schedule, now):
            return f"{early}: {AFTER_A_CLOCK_AHEAD}"
        return f"evaluation is {late} step{'s' * (late > 1)} late" if late else ""
