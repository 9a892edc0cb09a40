"""A step that is evaluated before its tick changes no answer before its tick."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from kanon.gate import segments
from kanon.gate.joining import Join
from tests.integration.serving.test_directory import FIRST, PERIOD, SETS, TYPES, Oracle, end, opened


def test_a_crossing_in_the_next_instance_does_not_hide_the_one_that_readers_still_need(tmp_path: Path) -> None:
    """Each set gets a crowd in one step of six only. So it is forgotten, and made anew when the next crowd comes."""
    directory = opened(tmp_path / "d", FIRST * PERIOD)
    oracle, questions = Oracle(directory), [(name, set_id) for name in TYPES for set_id in SETS]
    before, true = dict.fromkeys(questions, False), 0
    for step in range(FIRST, FIRST + 60):
        crowd = [n for n in range(len(SETS)) if step % 6 == n % 6]
        joins = [Join(name, SETS[n], "client", b"%d" % c) for name in TYPES for n in crowd for c in range(30)]
        for join in joins:
            oracle.join(join, step)
        assert all(directory.joining.join_all(joins, step * PERIOD))
        expected = oracle.step(step)
        directory.evaluate(end(step))
        tick = directory.segments.schedule.tick_of(step)
        for now, wanted in ((tick - 1, before), (tick, expected)):
            answer = directory.querying.query(questions, now)
            assert dict(zip(questions, answer.above, strict=True)) == wanted, (step, now)
        before = expected
        true += sum(expected.values())
    assert true > 100
    directory.close()


def test_a_step_that_takes_longer_than_the_margin_becomes_visible_at_a_later_tick(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tick that was next when its evaluation began passes before its commit: readers have cached the horizon."""
    directory = opened(tmp_path / "d", FIRST * PERIOD)
    joins = [Join("grid", set_id, "client", b"%d" % c) for set_id in SETS for c in range(30)]
    assert all(directory.joining.join_all(joins, FIRST * PERIOD))
    seconds = iter((0.0, 40.0))
    monkeypatch.setattr(segments, "time", SimpleNamespace(monotonic=lambda: next(seconds)))
    directory.evaluate(end(FIRST))
    tick = directory.segments.schedule.tick_of(FIRST)
    assert end(FIRST) + 40 > tick
    questions = [("grid", set_id) for set_id in SETS]
    shown = [directory.querying.query(questions, now) for now in (tick, tick + PERIOD - 1, tick + PERIOD)]
    # All sets are true then but those whose instance ends with the step, which is all of them once in 6^12 runs.
    assert [(answer.step, any(answer.above)) for answer in shown] == [(None, False), (None, False), (FIRST, True)]
    directory.close()
