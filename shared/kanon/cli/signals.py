"""Signals that end the program. It imports nothing, because they may come while the first modules are imported.

A library that is stopped by a signal may raise an error of its own: DuckDB does, and an import. So the signal is noted,
and whatever error follows it is not shown.
"""

import signal
import sys
from types import FrameType

INTERRUPTING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_received: list[int] = []


def interrupted() -> int:
    """The number of the signal that has told the program to end; 0 if none has."""
    return _received[0] if _received else 0


def note_signals() -> None:
    """Note each of the signals, and raise a ``KeyboardInterrupt``. Ignored ones stay ignored, as with nohup."""
    for number in INTERRUPTING:
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, _interrupt)


def die_of_signals() -> None:
    """End at once at each of the signals that are not ignored."""
    for number in INTERRUPTING:
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)


def _interrupt(number: int, _: FrameType | None) -> None:
    _received.append(number)
    raise KeyboardInterrupt


_process = sys.modules.get("multiprocessing.process")
if _process is not None and _process.parent_process() is not None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a worker: its parent, which gets Ctrl-C too, ends it
