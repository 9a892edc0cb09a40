"""``kanon serve --data`` with clocks that run SPEED times as fast, and that keeps its whole log for the test."""

import sys
import time
from types import SimpleNamespace

from kanon import clock
from kanon.cli.main import app
from kanon.gate import segments
from kanon.serving import directory
from kanon.serving.evaluating import Evaluating

SPEED = 200
"""A step of 60 s takes 0.3 s."""
MARGIN = 32
"""Seconds of the fast clock for one commit: 0.16 s, because others may use this machine. The types allow no more."""

if __name__ == "__main__":
    start, began = float(sys.argv[1]), float(sys.argv[2])
    turn, timing = Evaluating.turn, directory.timing
    clock.now = lambda: start + (time.time() - began) * SPEED
    segments.time = SimpleNamespace(monotonic=lambda: time.monotonic() * SPEED)  # type: ignore[assignment]
    directory.timing = lambda period: {**timing(period), "publish_margin": MARGIN}
    Evaluating.turn = lambda self, now: turn(self, now) / SPEED  # type: ignore[method-assign]
    segments.Segments.keep = lambda *_: None  # type: ignore[method-assign]
    app(["serve", "--data", sys.argv[3], "--port", "0"])
