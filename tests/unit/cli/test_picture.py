"""The demo's picture."""

from collections import Counter
from pathlib import Path

import pytest
from matplotlib import image

from kanon.gate.mechanism.parameters import Parameters, profile
from kanon.local.picture import draw, near_threshold
from kanon.local.replay import Result

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


def test_the_picture_is_drawn(result: Result, tmp_path: Path) -> None:
    path = tmp_path / "new" / "demo.png"
    draw(result, PARAMETERS, "title", path)
    pixels = image.imread(path)
    assert pixels.shape[0] > 600
    assert pixels.shape[1] > 1000
    assert pixels.std() > 0.05  # not blank


def test_a_log_of_one_set_is_drawn_too(tmp_path: Path) -> None:
    made = Result(k=50, window=168, period=3600, start=0)
    made.note(1, Counter(only=1), set())
    draw(made, PARAMETERS, "title", tmp_path / "demo.png")
    assert (tmp_path / "demo.png").exists()
