"""The clock of a rehearsal: it moves forwards, and every step on the way is evaluated."""

import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from kanon.local import Stack
from kanon.local.clock import Every
from kanon.local.stack import MOST_STEPS
from tests.moto_engine import Moto

PERIOD, START = 3600, 1_700_000_000 // 3600 * 3600
TYPES = json.dumps({"fledge": {"k": 20, "window": 24, "profile": "crossing"}})
PLACE = "/v1/types/fledge/sets/aGVsbG8"


@pytest.fixture
def stack() -> Iterator[Stack]:
    with rehearsal(START) as made:
        yield made


def rehearsal(start: float | None) -> Stack:
    return Stack({"Types": TYPES}, engine=Moto, start=start, seed=1, schedule=Every(PERIOD, 60))


def evaluations(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """When evaluation is started, from now on."""
    started: list[float] = []
    invoke = stack.invoke

    def noted(function: str, event: Any, *more: Any) -> Any:
        if function == "evaluate" and "Records" not in event:
            started.append(stack.clock.now())
        return invoke(function, event, *more)

    monkeypatch.setattr(stack, "invoke", noted)
    return started


def test_every_step_that_a_move_passes_is_evaluated_in_its_time(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    started = evaluations(stack, monkeypatch)
    stack.move(START + 5 * PERIOD + 300)
    assert started == [START + 60 + n * PERIOD for n in range(6)]
    assert stack.clock.now() == START + 5 * PERIOD + 300


def test_a_set_turns_true_and_false_again_while_the_clock_moves(stack: Stack) -> None:
    for n in range(60):
        assert stack.request("POST", f"{PLACE}:join", {"client": f"client {n}"}).status == 200
    shown = []
    for hour in range(60):
        stack.move(START + (hour + 1) * PERIOD + 1800)
        shown.append(stack.request("GET", PLACE).json()["kAnonymous"])
    assert shown.index(True) <= 1
    assert shown[-1] is False
    assert stack.failures == []


def test_the_clock_never_moves_back_nor_far_at_once(stack: Stack) -> None:
    for moment in (START - 0.001, START + (MOST_STEPS + 1) * PERIOD, float("nan"), -1e18, 1e18):
        with pytest.raises(ValueError, match="forwards only, by at most 100 steps"):
            stack.move(moment)
    assert stack.clock.now() == START


def test_a_real_clock_is_moved_while_the_service_runs() -> None:
    with rehearsal(None) as stack:
        stop = threading.Event()
        running = threading.Thread(target=stack.run, args=(stop,))
        running.start()
        try:
            stack.request("POST", f"{PLACE}:join", {"client": "one"})
            target = stack.clock.now() + 10 * PERIOD
            stack.move(target)
            assert target <= stack.clock.now() < target + 60
            assert stack.describe()["ahead"] > 9 * PERIOD
            assert stack.request("GET", PLACE).json()["step"] >= target // PERIOD - 3
            with pytest.raises(ValueError, match="forwards only"):
                stack.move(target - PERIOD)
        finally:
            stop.set()
            running.join(30)
        assert stack.failures == []
