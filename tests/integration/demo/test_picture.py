"""The demo's picture."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from xml.etree import ElementTree as ET

import pytest

from kanon.demo import picture
from kanon.demo.drawing import ticks
from kanon.demo.picture import _empty_spot, _fell_while_true, _story, draw, near_threshold, restarts_of
from kanon.demo.replay import History, Result
from kanon.gate.mechanism.parameters import CrossingRestart, Parameters, profile

SVG = "{http://www.w3.org/2000/svg}"
PARAMETERS = Parameters(50, 168, 3600, *profile("published", 168))


@pytest.fixture
def result() -> Result:
    """Sets that rise to a peak and fall again, true from some count on; one is far from the threshold."""
    made = Result(k=50, window=168, period=3600, start=1_700_000_000)
    peaks = {"early": (55, 45), "late": (60, 55), "never": (44, 99), "small": (5, 99), "huge": (500, 40)}
    peaks["again"] = (52, 46)
    seen: set[str] = set()
    for step in range(472_000, 472_200):
        ramp = 1 - abs(step - 472_100) / 100
        counts = Counter({name: int(peak * ramp) for name, (peak, _) in peaks.items()})
        seen |= {name for name, count in counts.items() if count >= peaks[name][1]}
        restarted = {"again"} if step >= 472_150 else set()
        made.note(step, counts, seen - restarted)
    return made


def test_sets_near_the_threshold_with_different_stories_are_chosen(result: Result) -> None:
    assert near_threshold(result, 35, 57) == ["again", "early", "late", "never"]


def test_the_picture_is_drawn(result: Result) -> None:
    drawn = draw(result, PARAMETERS, dict.fromkeys(result.histories, 60), "title")
    texts = [text.text for text in ET.fromstring(drawn).iter(f"{SVG}text")]
    assert texts[0] == "title"
    assert [text.partition(" ")[0] for text in texts if "turns true" in text] == ["again", "early", "late", "never"]
    assert {"k = 50", "noise decides:", "instance", "true", "false", "the set stays true"} <= set(texts)


def test_with_restart_after_the_crossing_the_picture_shows_the_ends_of_the_holds(result: Result) -> None:
    after = replace(PARAMETERS, restart=CrossingRestart(168, 8736))
    history = History(100, RISE_AND_FALL, [n in range(3, 14) for n in range(16)])
    short = replace(after, window=4, restart=CrossingRestart(4, 60))
    assert restarts_of(history, short, 0) == [107, 111, 115]  # true again at once at 107 and 111
    assert restarts_of(history, replace(short, restart=None), 2) == [102, 106, 110, 114]
    drawn = draw(result, after, dict.fromkeys(result.histories, 60), "title")
    assert b">instance<" not in drawn
    assert drawn != draw(result, PARAMETERS, dict.fromkeys(result.histories, 60), "title")


def test_a_log_with_one_set_can_be_drawn() -> None:
    made = Result(k=50, window=168, period=3600, start=0)
    made.note(1, Counter(only=1), set())
    assert draw(made, PARAMETERS, {"only": 0}, "title").startswith(b"<?xml")


RISE_AND_FALL = [*range(1, 9), *range(8, 0, -1)]
"""The counts of steps 100 to 115: 8 clients at steps 107 and 108."""


@pytest.mark.parametrize(
    ("true", "restarts", "story"),
    [
        (range(0), [], "never turns true, with at most 8 clients"),
        (range(105, 110), [110], "turns true at 6 clients, false at its restart"),
        ([*range(105, 110), 112], [110], "turns true at 6 clients, false at its restart, true again"),
        (range(105, 116), [104], "turns true at 6 clients, stays true though they leave"),
        (range(105, 111), [], "turns true at 6 clients"),
    ],
)
def test_each_panel_describes_the_history_of_its_set(true: Sequence[int], restarts: list[int], story: str) -> None:
    history = History(100, RISE_AND_FALL, [100 + n in true for n in range(16)])
    assert _story(history, restarts) == story


def test_a_lower_count_is_compared_with_the_crossing_of_its_instance() -> None:
    always = [n >= 5 for n in range(16)]
    assert _fell_while_true(History(100, RISE_AND_FALL, always), []) == 15  # 1 or 2 clients, after a crossing at 6
    assert _fell_while_true(History(100, RISE_AND_FALL, always), [112]) is None  # new crossing at 4: 1 is near enough
    assert _fell_while_true(History(100, RISE_AND_FALL, [False] * 16), [112]) is None


def test_the_set_that_stays_true_below_k_until_a_restart_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(picture, "PANELS", 1)
    made = Result(k=50, window=168, period=3600, start=0)
    for step, count in enumerate([40, 60, 60, 30, 30, 20]):
        true = {name for name, end in {"short": 3, "long": 5, "huge": 5}.items() if 1 <= step < end}
        made.note(step, Counter({"short": count, "long": count, "huge": 3 * count}), true)
    assert near_threshold(made, 35, 57) == ["long"]


def drawn_alone(name: str, count: int) -> ET.Element:
    made = Result(k=50, window=168, period=3600, start=1_700_000_000)
    for step in range(472_222, 472_232):
        made.note(step, Counter({name: count}), {name})
    return ET.fromstring(draw(made, PARAMETERS, {name: 0}, "title"))


def test_lines_are_where_the_counts_are() -> None:
    lines = [line.get("points", "") for line in drawn_alone("one", 50).iter(f"{SVG}polyline")]
    k, count = (next(line for line in lines if len(line.split()) == points) for points in (2, 19))
    assert {point.split(",")[1] for point in k.split()} == {point.split(",")[1] for point in count.split()}


def test_a_name_with_signs_that_no_picture_can_show_is_drawn() -> None:
    texts = [text.text or "" for text in drawn_alone("a<b>\0\x1b[2J", 50).iter(f"{SVG}text")]
    assert any(text.startswith("a<b>\ufffd\ufffd[2J turns true") for text in texts)


@pytest.mark.parametrize(
    ("end", "most", "found"),
    [(70.0, 6, [0, 20, 40, 60]), (16, 8, [0, 2, 4, 6, 8, 10, 12, 14, 16]), (0.4, 8, [0]), (1e9, 1, [0, 10**9])],
)
def test_ticks_are_round_numbers(end: float, most: int, found: list[int]) -> None:
    assert list(ticks(end, most)) == found


@pytest.mark.parametrize(("counts", "spot"), [([90] * 100, (10, 15.0)), ([5] * 50 + [90] * 50, (60, 15.0))])
def test_the_explanation_is_placed_far_from_the_curve(counts: list[int], spot: tuple[int, float]) -> None:
    assert _empty_spot(counts, 0, 100, 10, 100.0) == spot
    assert _empty_spot(counts, 30, 40, 10, 100.0)[0] == 40  # an instance narrower than the text
